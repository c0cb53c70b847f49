from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlframe.errors import ModelError
from rlframe.models.paths import check_models, find_model, resolve_model


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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that nobody reaches, and the names that it was asked for."""
    asked: list[str] = []

    def model_info(self: object, name: str, *, timeout: float) -> None:
        asked.append(name)
        assert 0 < timeout <= 10
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: None)
    return asked


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder in the working folder."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("path", ["lama", "./lama", "./here/../lama"])
def test_a_mistyped_folder_is_never_asked_of_the_hub(
    llama: Path, hub: list[str], path: str
) -> None:
    with pytest.raises(ModelError, match=rf"^model.path: there is no folder '{path}'") as caught:
        find_model("model.path", path)
    assert ("Did you mean 'llama'?" in str(caught.value)) == ("here" not in path)
    assert hub == []


def test_a_hub_that_is_not_reached_is_asked_once(llama: Path, hub: list[str]) -> None:
    role = SimpleNamespace(model=SimpleNamespace(path="org/llama"))
    config = SimpleNamespace(model=role.model, roles={"reference": role})
    with pytest.raises(ModelError, match="'org/llama' is neither a folder nor reachable on the"):
        check_models(config)  # type: ignore[arg-type]
    assert hub == ["org/llama"]


def test_a_model_in_the_cache_is_not_asked_for(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: "/c/file")
    assert "cache" in find_model("model.path", "org/llama")
    assert hub == []


def test_what_is_no_models_folder(llama: Path, hub: list[str]) -> None:
    (llama / "config.json").rename(llama / "other.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        find_model("model.path", "llama")
    with pytest.raises(ModelError, match="is a file"):
        find_model("model.path", "llama/other.json")
    assert hub == []


def test_a_word_that_the_hub_cannot_have() -> None:
    with pytest.raises(ModelError, match="'a b' is neither a folder nor a name on"):
        find_model("model.path", "a b")
