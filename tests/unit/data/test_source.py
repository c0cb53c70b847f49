from __future__ import annotations

import json
import types

import pytest

from rlframe.data import open_dataset
from rlframe.errors import ConfigError, DataError, PluginError
from rlframe.host.components import Component
from rlframe.host.hookspecs import hookimpl
from rlframe.host.host import PluginHost
from rlframe.interfaces.data import Dataset


class Fixed(Dataset):
    """As many rows as its URI says."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __len__(self) -> int:
        return 0 if self.uri.endswith("empty") else 1

    def __getitem__(self, index: int) -> dict:
        return {"uri": self.uri}

    @property
    def fingerprint(self) -> str:
        return self.uri

    @classmethod
    def open(cls, uri: str) -> Fixed:
        return cls(uri)


def plugin(**hooks) -> types.ModuleType:
    module = types.ModuleType("a_plugin")
    for name, function in hooks.items():
        function.__module__ = "a_plugin"
        setattr(module, name, hookimpl(function))
    return module


@pytest.fixture
def host():
    made = PluginHost()
    parts = (
        Component("dataset", "jsonl", f"{__name__}:Fixed"),
        Component("dataset", "table", f"{__name__}:Fixed", requires=("no_such_package_at_all",)),
    )
    opened = {"sheet": Fixed, "odd": lambda uri: "no dataset"}

    def claim(uri, config):
        scheme = uri.partition(":")[0]
        return opened[scheme](uri) if scheme in opened else None

    hooks = {"rlframe_components": lambda: parts, "rlframe_open_dataset": claim}
    assert made.register(plugin(**hooks), "a").error is None
    return made


@pytest.mark.parametrize(
    ("uri", "opened"),
    [
        ("jsonl:a/b.txt", "jsonl:a/b.txt"),
        ("a/b.jsonl", "jsonl:a/b.jsonl"),
        ("/a:b/c.jsonl", "jsonl:/a:b/c.jsonl"),
        ("sheet:x?y=1", "sheet:x?y=1"),
        ("x.sheet", "sheet:x.sheet"),
    ],
)
def test_the_scheme_says_who_opens_it(host, uri, opened):
    assert open_dataset(uri, host)[0] == {"uri": opened}


def test_a_users_own_class_opens_its_own(host, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rlframe.interfaces.data import Dataset\n"
        "class Rows(Dataset):\n"
        "    fingerprint = 'f'\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, i): return {'prompt': self.uri}\n"
        "    @classmethod\n"
        "    def open(cls, uri):\n"
        "        made = cls(); made.uri = uri; return made\n"
    )
    assert open_dataset(f"{path}:Rows?n=3", host)[0]["prompt"].endswith("mine.py:Rows?n=3")


@pytest.mark.parametrize(
    ("uri", "kind", "message"),
    [
        (
            "jsnl:x",
            ConfigError,
            "unknown scheme 'jsnl'. Did you mean 'jsonl'.*jsonl, mix, table",
        ),
        ("x.jsnl", ConfigError, "Did you mean 'jsonl'"),
        ("arithmetic", ConfigError, "names no kind of dataset.*jsonl:"),
        ("", ConfigError, "data.train is empty"),
        ("table:x", PluginError, "dataset 'table' needs the package 'no_such_package_at_all'"),
        ("odd:x", ConfigError, "was opened as str"),
        ("jsonl:empty", DataError, "has no rows"),
        ("sheet:empty", DataError, "has no rows"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(host, uri, kind, message):
    with pytest.raises(kind, match=message) as caught:
        open_dataset(uri, host)
    assert "\n" not in str(caught.value)


def test_the_real_jsonl_opens_by_its_bare_path(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"prompt": "hi"}) + "\n")
    rows = open_dataset(str(path), PluginHost().load())
    assert rows[0] == {"prompt": "hi"}
    assert rows.where(0) == f"{path}:1"
