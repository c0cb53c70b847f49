from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import rlframe
from rlframe.config import ModelConfig
from rlframe.errors import ModelError
from rlframe.models.gguf import dequantised, gguf_file
from rlframe.models.paths import find_model, resolve_model
from rlframe.snapshots.export import export
from rlframe.testing.models import tiny_model

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENS = ["<pad>", "<bos>", "<eos>", "<turn>", *CHARACTERS, "ab"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
EPSILON = 3e-6
SHAPE = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": EPSILON,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{NAMES[part]}.weight"
    return f"{NAMES[stem]}.weight"


def interleaved(name: str, weight: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as GGUF wants them: the halves of each head alternate."""
    heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2], 0)
    if not heads:
        return weight
    halves = weight.reshape(heads, 2, -1, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path, weights: dict[str, torch.Tensor], *, quantised: bool = False, **strings: str
) -> Path:
    """A Llama of :data:`SHAPE` with a tokenizer of one character a token."""
    gguf = pytest.importorskip("gguf", reason="reads GGUF: needs the package gguf")
    pytest.importorskip("accelerate", reason="reads GGUF: needs the package accelerate")
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in TOKENS])
    writer.add_token_merges(["a b"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_chat_template(TEMPLATE)
    for key, value in strings.items():
        writer.add_string(key, value)
    for name, tensor in weights.items():
        data = interleaved(name, tensor.float().numpy())
        if quantised and data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(data, kind)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def original(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model(folder, "llama", **SHAPE)).eval()


@pytest.fixture
def model(tmp_path: Path) -> torch.nn.Module:
    return original(tmp_path / "original")


def load(folder: str | Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


IDS = torch.tensor([[1, 5, 9, 30, 12, 4, 4, 17]])


def test_the_weights_config_and_tokenizer_of_a_file(tmp_path: Path, model: torch.nn.Module) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    folder = resolve_model(str(file))
    made = load(folder)
    for name, weight in model.state_dict().items():
        assert torch.equal(made.state_dict()[name], weight), name
    assert torch.equal(made(IDS).logits, model(IDS).logits)
    assert made.config.rms_norm_eps == EPSILON
    assert not made.config.tie_word_embeddings
    assert not hasattr(made.config, "quantization_config")
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [2, 3]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("cab7")["input_ids"] == [TOKENS.index(token) for token in ("c", "ab", "7")]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


def test_a_quantised_file_is_near_the_original(tmp_path: Path, model: torch.nn.Module) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict(), quantised=True)
    made = load(dequantised(file)).state_dict()
    for name, weight in model.state_dict().items():
        gap = float((made[name] - weight).abs().max())
        assert gap <= float(weight.abs().max()) / 127, name
        assert (gap > 0) == (weight.ndim == 2), name


def test_a_tied_head(tmp_path: Path, model: torch.nn.Module) -> None:
    weights = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    made = load(dequantised(write_gguf(tmp_path / "tiny.gguf", weights)))
    assert made.config.tie_word_embeddings
    assert made.lm_head.weight is made.model.embed_tokens.weight


def test_a_file_is_dequantised_once_and_again_when_it_changes(
    tmp_path: Path, model: torch.nn.Module, own_temporary_files: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    first = dequantised(file)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert dequantised(file) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    os.utime(file, ns=(1, 1))
    assert dequantised(file) != first
    left = {entry.name for entry in next(own_temporary_files.iterdir()).iterdir()}
    assert left == {first.name, dequantised(file).name}


def test_a_folder_with_one_file_and_with_two(tmp_path: Path, model: torch.nn.Module) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    file = write_gguf(folder / "tiny.gguf", model.state_dict())
    assert gguf_file(folder) == file
    assert "GGUF" in find_model("model.path", str(folder))
    (folder / "other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"several GGUF files \(other\.gguf, tiny\.gguf\)"):
        find_model("model.path", str(folder))


def test_safetensors_come_before_gguf(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert gguf_file(folder) is None
    assert resolve_model(str(folder)) == str(folder)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip"])
def test_what_is_no_gguf_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match="is no GGUF file"):
        find_model("model.path", str(file))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_truncated_file_leaves_nothing(
    tmp_path: Path, model: torch.nn.Module, own_temporary_files: Path, share: float
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be read"):
        resolve_model(str(file))
    assert list(next(own_temporary_files.iterdir()).iterdir()) == []


def test_a_file_that_lacks_a_weight(tmp_path: Path, model: torch.nn.Module) -> None:
    weights = dict(model.state_dict())
    del weights["model.layers.1.mlp.up_proj.weight"]
    file = write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(ModelError, match=r"lacks weights: model\.layers\.1\.mlp\.up_proj"):
        resolve_model(str(file))


def test_scaled_positions_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    key = {"llama.rope.scaling.type": "yarn"}
    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict(), **key)
    with pytest.raises(ModelError, match="scales its rotary positions"):
        resolve_model(str(file))


@pytest.mark.parametrize("absent", ["gguf", "accelerate"])
def test_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(
        "rlframe.models.gguf.find_spec", lambda name: None if name == absent else name
    )
    with pytest.raises(ModelError, match=rf"need {absent}: pip install 'rlframe\[gguf\]'"):
        find_model("model.path", str(file))


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, model: torch.nn.Module, own_temporary_files: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    cache = own_temporary_files / f"rlframe-gguf-{os.getuid()}"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(ModelError, match="not yours alone"):
        resolve_model(str(file))


def test_the_trainer_loads_it_and_a_run_exports_it(
    tmp_path: Path, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps from a relative path; the export is an ordinary folder."""
    from transformers import AutoTokenizer

    from rlframe_strategies.loading import load_model

    file = write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    loaded = load_model(str(file), ModelConfig(path=str(file)), torch.device("cpu"))
    assert torch.equal(loaded.model(IDS).logits, model(IDS).logits)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "ab1"}\n{"prompt": "cd2"}\n')
    done = rlframe.fit(
        "grpo",
        model="tiny.gguf",
        data=f"jsonl:{tmp_path / 'data.jsonl'}",
        reward=lambda response: float(len(response)) + response.count("a"),
        steps=2,
        strategy="single",
        optim={"lr": 1e-2},
        rollout={"name": "torch", "max_new_tokens": 4},
        run={"dir": str(tmp_path / "runs"), "name": "run", "save_every": 2},
        logger=["jsonl"],
        cluster={"name": "inline", "threads": 1},
        **{"data.prompts_per_step": 2, "algo.samples_per_prompt": 4},
    )
    exported = tmp_path / "exported"
    export(done.run_dir, exported)
    trained = load(exported)
    assert not torch.equal(trained(IDS).logits, model(IDS).logits)
    assert trained.config.rms_norm_eps == EPSILON
    assert AutoTokenizer.from_pretrained(exported).chat_template == TEMPLATE
