from __future__ import annotations

import pytest

from rlframe.anchor import anchored
from rlframe.config.load import Asked, load_config
from rlframe.data import anchor_uri
from rlframe.host.host import PluginHost

HOST = PluginHost().load()


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "my data").mkdir()


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("x.jsonl", "jsonl:{here}/x.jsonl"),
        ("my data/x.jsonl", "jsonl:{here}/my data/x.jsonl"),
        ("jsonl:../x", "jsonl:{here}/../x"),
        ("jsonl:/a/x", "jsonl:/a/x"),
        ("x.csv?delimiter=;", "csv:{here}/x.csv?delimiter=;"),
        ("mine.py:Rows?n=1", "{here}/mine.py:Rows?n=1"),
        ("pkg.mod:Rows", "pkg.mod:Rows"),
        ("builtin:arithmetic?split=train", "builtin:arithmetic?split=train"),
        ("nope:x", "nope:x"),
        ("nope", "nope"),
    ],
)
def test_a_uri_means_the_same_from_everywhere(tmp_path, uri, found):
    assert anchor_uri(uri, HOST) == found.format(here=tmp_path)
    assert anchor_uri(anchor_uri(uri, HOST), HOST) == found.format(here=tmp_path)


def test_a_config_keeps_absolute_paths(tmp_path):
    flags = {"model": "model", "data": "x.jsonl"}
    asked = Asked(
        flags=flags,
        dotlist=[
            "data.validate=y.jsonl",
            "roles.reference.model.path=org/name",
            "algo.kl_coef=0.1",
        ],
    )
    config = anchored(load_config(HOST, asked).config, HOST)
    assert config.model.path == str(tmp_path / "model")
    assert config.default_role.model.path == str(tmp_path / "model")
    assert config.roles["reference"].model.path == "org/name"
    assert config.data.train == f"jsonl:{tmp_path}/x.jsonl"
    assert config.data.validate == f"jsonl:{tmp_path}/y.jsonl"
