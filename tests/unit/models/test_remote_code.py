"""A model's folder may name code of its own: it is refused, and never run."""

from __future__ import annotations

import json

import pytest

from rlframe.errors import ModelError
from rlframe.models.paths import load_tokenizer
from rlframe.weights.model_cuts import meta_model


@pytest.fixture
def folder(tmp_path):
    """A folder whose config and tokenizer are Python files that leave a trace when imported."""
    trace = tmp_path / "it_ran"
    model = tmp_path / "model"
    model.mkdir()
    names = {"AutoConfig": "code.Config", "AutoTokenizer": ["code.Tokenizer", None]}
    config = {"model_type": "of_its_own", "auto_map": names}
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (model / "code.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    return model, trace


@pytest.mark.parametrize("load", [meta_model, load_tokenizer])
def test_code_in_a_models_folder_is_not_run(folder, load):
    model, trace = folder
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(str(model))
    assert not trace.exists()
