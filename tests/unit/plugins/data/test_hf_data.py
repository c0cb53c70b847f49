from __future__ import annotations

import pytest

from rlframe.errors import ConfigError, DataError
from rlframe_plugins.data.hf import HuggingFaceDataset

datasets = pytest.importorskip("datasets", reason="needs the extra 'datasets'")

ROWS = [{"prompt": f"{i}", "reward_model": {"ground_truth": str(i)}} for i in range(3)]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    both = datasets.DatasetDict({"train": rows, "test": rows.select([1])})
    both.save_to_disk(tmp_path / "both")
    rows.to_json(tmp_path / "x.jsonl")
    return tmp_path


@pytest.mark.parametrize("place", ["one", "both", "both?split=train"])
def test_saved_folders_are_loaded(saved, place):
    dataset = HuggingFaceDataset.open(f"hf:{saved}/{place}")
    assert [dataset[i] for i in range(3)] == ROWS
    assert dataset.where(1) == f"hf:{saved}/{place}: row 2"
    for index in (-1, 3):
        with pytest.raises(IndexError):
            dataset[index]


def test_splits_are_chosen_by_name(saved):
    assert len(HuggingFaceDataset.open("hf:both?split=test")) == 1
    with pytest.raises(DataError, match="unknown split 'tst'. Did you mean 'test'"):
        HuggingFaceDataset.open("hf:both?split=tst")


def test_the_fingerprint_is_that_of_the_rows(saved):
    first = HuggingFaceDataset.open("hf:one").fingerprint
    assert HuggingFaceDataset.open("hf:both").fingerprint == first
    assert HuggingFaceDataset.open("hf:both?split=test").fingerprint != first


def test_files_are_loaded_through_the_cache(saved, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", saved / "cache")
    assert HuggingFaceDataset.open("hf:x.jsonl")[2] == ROWS[2]
    (saved / "x.abc").write_text("x")
    with pytest.raises(ConfigError, match=r"kind '\.abc'; known are \.json"):
        HuggingFaceDataset.open("hf:x.abc")


def test_a_hub_that_is_not_reached_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        HuggingFaceDataset.open("hf:nobody/nothing?split=train&name=main")
    assert "the Hugging Face hub cannot be reached" in str(caught.value)
    assert "no folder 'nobody/nothing' here" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="unknown option 'splt'. Did you mean 'split'"):
        HuggingFaceDataset.open("hf:nobody/nothing?splt=train")


def test_paths_are_anchored_and_names_are_not(saved):
    assert HuggingFaceDataset.anchor("hf:both?split=test") == f"hf:{saved}/both?split=test"
    assert HuggingFaceDataset.anchor("hf:org/name?split=x") == "hf:org/name?split=x"


def test_the_hub_is_asked_once_before_the_library_asks_for_long(monkeypatch, tmp_path):
    import huggingface_hub

    def unreached(self, name, timeout):
        assert timeout <= 10
        raise ConnectionResetError("gone")

    def loads(*_, **__):
        raise AssertionError("the library was asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreached)
    monkeypatch.setattr(datasets, "load_dataset", loads)
    with pytest.raises(DataError, match=r"cannot be reached \(ConnectionResetError: gone\)"):
        HuggingFaceDataset.open("hf:nobody/nothing")
