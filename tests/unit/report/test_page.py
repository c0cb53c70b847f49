"""The page: nothing that was written in a run breaks it, and no section breaks another."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from rlframe.cli.main import main
from rlframe.errors import PluginError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.report import RunRecord, Section, embed, make_page, plotting_library, read_run
from rlframe.report import page as page_module
from rlframe_plugins.report.options import differences
from tests.unit.report.made import make_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\ud800\0"
TITLES = (
    "Overview", "Warnings", "Curves", "Samples", "Stage timeline", "Placement and resharding",
    "Config",
)  # fmt: skip


def sections():
    host = current_host()
    return [resolve(host, "section", name).value() for name in host.components("section")]


class Read(HTMLParser):
    """Tags of a page, and the bodies of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.headings: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        if self.inside == "h2":
            self.headings.append(data)


def made(runs, title="t"):
    page, faults = make_page(title, runs, sections(), "var Plotly;")
    assert faults == []
    return page


def test_every_section_stands_in_its_order(tmp_path):
    run = read_run(make_run(tmp_path / "a"))
    assert tuple(Read(made([run])).headings) == TITLES


def test_what_users_wrote_is_text(tmp_path):
    folder = make_run(tmp_path / "a", response=EVIL)
    config = json.loads((folder / "config.json").read_text())
    config["note"] = EVIL
    (folder / "config.json").write_text(json.dumps(config))
    rows = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(
        rows + json.dumps({"step": 41, f"env/{EVIL}": 1.0}) + "\n"
    )
    run = read_run(folder)
    run.name = EVIL
    plain = Read(made([read_run(make_run(tmp_path / "b"))]))
    evil = Read(made([run], EVIL))
    kinds = [tag for tag, _ in evil.tags]
    assert kinds.count("script") == len(evil.scripts) == len(plain.scripts)
    assert "img" not in kinds
    assert not [attrs for _, attrs in evil.tags if any(name.startswith("on") for name in attrs)]
    assert not [script for script in evil.scripts if "alert(1)</" in script]


def test_the_page_can_be_written_as_utf8_and_names_nothing_elsewhere(tmp_path):
    page = made([read_run(make_run(tmp_path / "a", response=EVIL))], EVIL)
    page.encode("utf-8")
    assert "\0" not in page
    for _, attrs in Read(page).tags:
        assert not {"src", "srcset", "action"} & set(attrs)
        assert not (attrs.get("href") or "#").startswith("http")
    assert "default-src 'none'" in page


@pytest.mark.parametrize("value", ["</script>", "<!--", "]]>", "&lt;", {"<a>": ["&", 1.5, None]}])
def test_embedded_json_is_read_back(value):
    block = embed(value, "x")
    body = re.fullmatch(r'<script type="application/json" id="x">(.*)</script>', block)[1]
    assert json.loads(body) == value
    assert not set("<>&") & set(body)


def test_embedded_json_refuses_what_is_no_json():
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))


def test_nothing_at_all_is_a_page_too(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    page = made([read_run(tmp_path)])
    assert "There are no figures to judge" in page
    assert Read(page).headings == ["Overview", "Warnings"]


class Broken(Section):
    title, order = "Broken", 5

    def html(self, runs):
        raise KeyError(EVIL)


def test_a_section_that_raises_says_so_and_stops_no_other(tmp_path):
    run = read_run(make_run(tmp_path / "a"))
    page, faults = make_page("t", [run], [Broken(), *sections()], "")
    assert len(faults) == 1
    assert "section 'Broken': KeyError" in faults[0]
    assert Read(page).headings == ["Broken", *TITLES]


def test_runs_differ_in_these_options():
    one = {"a": {"b": 1, "c": [1, 2]}, "parts": [{"name": "x"}]}
    two = {"a": {"b": 2, "c": [1, 2]}, "parts": [{"name": "y"}], "new": None}
    assert differences([one, two]) == [
        ["a.b", "1", "2"],
        ["parts.0.name", "x", "y"],
        ["new", "-", "None"],
    ]


def test_runs_of_a_placement_of_another_shape(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "placement.json").write_text('{"pools": {"train": {}}}')
    page, faults = make_page("t", [read_run(folder)], sections(), "")
    assert [fault.split(":")[0] for fault in faults] == ["section 'Placement and resharding'"]
    assert "could not be drawn" in page


def test_the_command_writes_one_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlframe.cli.report.plotting_library", lambda: "var Plotly;")
    folder = make_run(tmp_path / "a")
    assert main(["report", str(folder), str(folder)]) == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert str(folder / "report.html") in capsys.readouterr().out
    out = tmp_path / "two.html"
    assert main(["report", str(folder), str(make_run(tmp_path / "b")), "--out", str(out)]) == 0
    assert "2 runs: a, b" in out.read_text()


def test_errors_of_the_command_are_one_line(tmp_path, capsys, monkeypatch):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    monkeypatch.setattr("rlframe.cli.report.plotting_library", lambda: "")
    missing = str(tmp_path / "nowhere" / "x.html")
    assert main(["report", str(make_run(tmp_path / "a")), "--out", missing]) == 2
    assert "Use --out FILE" in capsys.readouterr().err


def test_without_plotly_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(page_module, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"pip install 'rlframe\[report\]'"):
        plotting_library()


def test_a_record_knows_what_is_not_there():
    run = RunRecord(None, "x")
    assert run.option("algo", "name") == ""
    assert run.series("anything").values == []
