from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from transformers import LlamaConfig, MixtralConfig, Qwen2Config

from rlframe.calling.protocol import Mesh
from rlframe.cli.main import main
from rlframe.weights.layout import ParamInfo
from rlframe.weights.sharding import Cut
from rlframe_plugins.resharders.report import transitions

LLAMA = {
    "7B": (4096, 32, 32, 32, 11008),
    "13B": (5120, 40, 40, 40, 13824),
    "34B": (8192, 48, 64, 8, 22016),
    "70B": (8192, 80, 64, 8, 28672),
}


def config(path: Path, of=LlamaConfig, **options) -> str:
    path.mkdir(parents=True, exist_ok=True)
    of(**options).save_pretrained(path)
    return str(path)


def llama(path: Path, size: str) -> str:
    hidden, layers, heads, kv, wide = LLAMA[size]
    return config(
        path,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=wide,
        vocab_size=32000,
    )


def plans(capsys, *arguments: str) -> dict:
    assert main(["reshard", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("size", "source", "target"),
    [
        ("7B", "1-8-2", "1-2-4-2"),
        ("13B", "1-8-1", "1-4-2-1"),
        ("34B", "1-8-4", "1-2-4-4"),
        ("70B", "2-8-1", "1-4-4-1"),
    ],
)
def test_the_paper_s_table_from_configs_alone(tmp_path, capsys, size, source, target):
    found = plans(capsys, "--from", source, "--to", target, "--model", llama(tmp_path / "m", size))
    p, t, d = map(int, source.split("-"))
    pg, tg = map(int, target.split("-")[:2])
    whole, by_name = found["model_bytes"], {one["grouping"]: one for one in found["plans"]}
    expected = {
        "zero-redundancy": ((t * p - tg * pg) / (tg * pg * t * p), 1 / (tg * pg), 0),
        "vanilla": ((t * p - 1) / (t * p), 1, 1 / (t * p)),
        "gather-all": ((t * p * d - 1) / (t * p * d), 1, 1 / (t * p * d)),
    }
    for name, (received, peak, redundant) in expected.items():
        one = by_name[name]
        mean = sum(one["received"]) / len(one["received"])
        assert mean == pytest.approx(received * whole, rel=0.02)
        assert max(one["peak"]) == pytest.approx(peak * whole, rel=0.03)
        if name == "gather-all":  # each tensor is flattened alone, so row-cut ones overlap a little
            assert 0.8 * redundant * whole < max(one["redundant"]) <= 1.001 * redundant * whole
        else:
            assert max(one["redundant"]) == pytest.approx(redundant * whole, rel=0.03, abs=1)


def test_text_and_picture_name_every_rank(tmp_path, capsys):
    model = config(
        tmp_path / "m",
        Qwen2Config,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=128,
    )
    svg = tmp_path / "a.svg"
    flags = ["--from", "1-4-2", "--to", "1-2-2-2", "--model", model, "--svg", str(svg)]
    assert main(["reshard", *flags]) == 0
    out = capsys.readouterr().out
    assert "8 ranks" in out
    assert "0 -> 1" in out
    assert "zero-redundancy" in out
    words = "".join(ET.parse(svg).getroot().itertext())
    assert all(f"rank {r}" in words for r in range(8))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--from", "1-4", "--to", "1-2-2-1"], "give p-t-d"),
        (["--from", "1-4-1", "--to", "1-3-1-1"], "does not divide"),
        (["--from", "1-4-1", "--to", "1-2-1-1"], "are 1-2-2-1"),
        (["--from", "1-0-1", "--to", "1-2-1-1"], "whole numbers"),
    ],
)
def test_sizes_that_do_not_fit_are_one_clear_error(tmp_path, capsys, flags, message):
    assert main(["reshard", *flags, "--model", llama(tmp_path / "m", "7B")]) == 2
    assert message in capsys.readouterr().err


def test_counts_equal_the_formulas_for_every_shape():
    params = {"w": ParamInfo((16, 8), "float32"), "n": ParamInfo((8,), "float32")}
    cuts = {"w": Cut(axis=0, layer=0), "n": Cut(layer=0)}
    for tp, tg in [(4, 2), (8, 2), (8, 4), (4, 4), (2, 1)]:
        for one in transitions(params, cuts, Mesh(dp=2, tp=tp, tg=tg)):
            received, peak, redundant = one.expected
            assert max(one.received) == pytest.approx(received, rel=0.01, abs=40)
            assert max(one.peak) == pytest.approx(peak)
            if one.name != "gather-all":
                assert max(one.redundant) == pytest.approx(redundant)


def test_experts_have_sizes_of_their_own(tmp_path, capsys):
    model = config(
        tmp_path / "m",
        MixtralConfig,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        num_local_experts=4,
        vocab_size=128,
    )
    sizes = ["--from", "1-2-4", "--to", "1-2-1-4", "--model", model]
    found = plans(capsys, *sizes, "--from-experts", "4-2", "--to-experts", "2-1")
    assert found["experts"] == {"ep": 4, "tp": 2, "eg": 2, "tg": 1}
    experts = 2 * 2 * 4 * 3 * 64 * 96
    zero = found["plans"][0]
    assert zero["received"] == [experts // 2 - experts // 8] * 8
    for one in found["plans"][:2]:
        for figure in ("received", "peak", "redundant"):
            assert max(one[figure]) == pytest.approx(one["expected"][figure], rel=0.01)


def test_expert_sizes_of_a_model_without_experts_are_an_error(tmp_path, capsys):
    flags = ["--from", "1-2-4", "--to", "1-2-1-4", "--to-experts", "2-1"]
    assert main(["reshard", *flags, "--model", llama(tmp_path / "m", "7B")]) == 2
    assert "has no experts" in capsys.readouterr().err
