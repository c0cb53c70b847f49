from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlframe.errors import ModelError
from rlframe.paths import resolve_model


def test_folders_and_hub_names_stay_as_they_are(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_model("org/name") == "org/name"


def test_home_is_expanded() -> None:
    assert resolve_model("~/model") == str(Path.home() / "model")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "rlframe_paths_example"
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "plugin.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sys.modules.pop("rlframe_paths_example", None)


def test_a_folder_inside_a_package(package: Path) -> None:
    found = resolve_model("pkg:rlframe_paths_example/models/tiny")
    assert Path(found) == package / "models" / "tiny"


@pytest.mark.parametrize("path", ["pkg:no_such_package/models", "pkg:", "pkg:../etc/x"])
def test_a_package_that_is_not_there(path: str) -> None:
    with pytest.raises(ModelError, match="no package"):
        resolve_model(path)


def test_a_folder_that_is_not_there(package: Path) -> None:
    with pytest.raises(ModelError, match="no folder 'models/big'"):
        resolve_model("pkg:rlframe_paths_example/models/big")
