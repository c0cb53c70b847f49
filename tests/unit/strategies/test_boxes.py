from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.errors import SnapshotError
from rlframe.weights.layout import Layout, ParamInfo
from rlframe_strategies.boxes import SavedBoxes, owned_pieces, write_boxes
from rlframe_strategies.fsdp import dim0_layout

PARAMS = {
    "a": ParamInfo((7, 3), "float32"),
    "b": ParamInfo((1,), "float32"),
    "c": ParamInfo((4, 2, 2), "float32"),
}
WHOLE = {
    n: torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) for n, p in PARAMS.items()
}


def layout_of(world: int) -> Layout:
    """World 0 stands for three ranks that hold everything."""
    return dim0_layout(PARAMS, world) if world else Layout.full(PARAMS, 3)


def buffers(layout: Layout, rank: int, fill: bool) -> dict[str, torch.Tensor]:
    out = {}
    for piece in layout.ranks[rank]:
        part = WHOLE[piece.name][piece.box.slices()].clone()
        out[piece.view.key] = part if fill else torch.full_like(part, float("nan"))
    return out


def write(directory: Path, layout: Layout) -> None:
    for rank in range(layout.world):
        tensors = {"weight": buffers(layout, rank, fill=True)}
        extra = {"rng": torch.tensor([rank], dtype=torch.uint8)}
        write_boxes(directory, rank, layout, tensors, {"steps": rank}, extra)


@settings(max_examples=30, deadline=None)
@given(saved=st.integers(0, 9), loaded=st.integers(0, 9))
def test_any_placement_reads_what_any_other_wrote(
    tmp_path_factory: pytest.TempPathFactory, saved: int, loaded: int
) -> None:
    directory = tmp_path_factory.mktemp("boxes")
    write(directory, layout_of(saved))
    layout = layout_of(loaded)
    boxes = SavedBoxes(directory)
    for rank in range(layout.world):
        got = buffers(layout, rank, fill=False)
        boxes.read_into("weight", layout.ranks[rank], layout, got)
        for name, tensor in buffers(layout, rank, fill=True).items():
            assert torch.equal(got[name], tensor)


def test_replicas_are_written_once() -> None:
    layout = Layout.full(PARAMS, 3)
    assert [len(owned_pieces(layout, rank)) for rank in range(3)] == [3, 0, 0]


def test_state_and_random_state_by_rank(tmp_path: Path) -> None:
    write(tmp_path, layout_of(2))
    boxes = SavedBoxes(tmp_path)
    assert boxes.world == 2
    assert boxes.state(1) == {"steps": 1}
    rng = boxes.extra("rng", 1)
    assert rng is not None
    assert rng.tolist() == [1]
    assert boxes.extra("rng_cuda", 1) is None


def read_all(
    directory: Path, params: dict[str, ParamInfo] = PARAMS, dtype: str = "float32"
) -> None:
    layout = dim0_layout(params, 1)
    kind = getattr(torch, dtype)
    target = {n: torch.zeros(p.shape, dtype=kind) for n, p in params.items()}
    SavedBoxes(directory).read_into("weight", layout.ranks[0], layout, target)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    write(tmp_path, layout_of(3))
    (tmp_path / "rank-00002.json").unlink()
    with pytest.raises(SnapshotError, match=r"rank-00002\.json"):
        read_all(tmp_path)


def test_a_missing_tensor_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, layout_of(2))
    (tmp_path / "rank-00001.safetensors").unlink()
    with pytest.raises(SnapshotError, match=r"rank-00001\.safetensors"):
        read_all(tmp_path)


@pytest.mark.parametrize("name", ["rank-00000.safetensors", "rank-00000.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, layout_of(1))
    (tmp_path / name).write_bytes(b"\x10\x00nonsense")
    with pytest.raises(SnapshotError, match=name):
        read_all(tmp_path)


def test_an_uncovered_box_is_named(tmp_path: Path) -> None:
    write(tmp_path, layout_of(2))
    file = tmp_path / "rank-00001.json"
    part = json.loads(file.read_text())
    part["boxes"] = [entry for entry in part["boxes"] if entry["name"] != "c"]
    file.write_text(json.dumps(part))
    with pytest.raises(SnapshotError, match="lacks weight of 'c'"):
        read_all(tmp_path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, layout_of(1))
    with pytest.raises(SnapshotError, match="another model"):
        read_all(tmp_path, {**PARAMS, "a": ParamInfo((8, 3), "float32")})


def test_another_type_is_refused(tmp_path: Path) -> None:
    write(tmp_path, layout_of(1))
    with pytest.raises(SnapshotError, match=r"model\.dtype"):
        read_all(tmp_path, dtype="bfloat16")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path, layout_of(1))
    file = tmp_path / "rank-00000.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(SnapshotError, match="format 99"):
        read_all(tmp_path)
