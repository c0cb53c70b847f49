"""A strategy's snapshot: safetensors of boxes and JSON, nothing that is unpickled.

Each rank writes ``rank-00001.safetensors`` and ``rank-00001.json``. The JSON lists, for every saved
tensor, its kind ("weight", "exp_avg", ...), the parameter, and the box of the canonical tensor that
it is. Any other number of ranks, or any other placement, reads it by intersecting boxes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlframe.errors import SnapshotError
from rlframe.weights.layout import Box, Layout, Piece
from rlframe.weights.storage import local_view

__all__ = [
    "SavedBoxes",
    "held_parts",
    "owned_pieces",
    "staged_parts",
    "write_boxes",
    "write_parts",
]

_FORMAT = 1
_EXTRA = "extra"


@dataclass(frozen=True)
class _Saved:
    file: Path
    key: str
    box: Box
    shape: tuple[int, ...]


def owned_pieces(layout: Layout, rank: int) -> list[Piece]:
    """The pieces that a rank writes: of equal boxes on several ranks the first one's."""
    earlier = {(p.name, p.box) for pieces in layout.ranks[:rank] for p in pieces}
    return [p for p in layout.ranks[rank] if (p.name, p.box) not in earlier and p.box.size]


def write_boxes(
    directory: Path,
    rank: int,
    layout: Layout,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    extra: Mapping[str, Tensor],
) -> None:
    """Write one rank's part.

    ``tensors`` are local buffers by kind and layout key, all placed like the weights; ``state`` is
    JSON; ``extra`` are tensors that belong to this rank alone (RNG).
    """
    write_parts(directory, rank, layout, held_parts(layout, rank, tensors), state, extra)


def held_parts(
    layout: Layout, rank: int, tensors: Mapping[str, Mapping[str, Tensor]]
) -> list[tuple[str, Piece, Tensor]]:
    """What a rank writes of local buffers by kind and layout key: (kind, piece, buffer)."""
    return [
        (kind, piece, buffers[piece.view.key])
        for piece in owned_pieces(layout, rank)
        for kind, buffers in tensors.items()
        if piece.view.key in buffers
    ]


def write_parts(
    directory: Path,
    rank: int,
    layout: Layout,
    parts: Iterable[tuple[str, Piece, Tensor]],
    state: Mapping[str, Any],
    extra: Mapping[str, Tensor],
) -> None:
    """Write what a rank has of each kind: (kind, piece, buffer that holds it).

    For state that is placed otherwise than the weights; of equal boxes one rank writes one.
    """
    staged_parts(directory, rank, layout, parts, state, extra, copy=False)()


def staged_parts(
    directory: Path,
    rank: int,
    layout: Layout,
    parts: Iterable[tuple[str, Piece, Tensor]],
    state: Mapping[str, Any],
    extra: Mapping[str, Tensor],
    *,
    copy: bool = True,
) -> Callable[[], None]:
    """As :func:`write_parts`, but what is returned writes; with ``copy`` nothing is shared then.

    It raises ``SnapshotError`` when the disk refuses.
    """
    whole = torch.contiguous_format

    def held(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=copy, memory_format=whole).contiguous()

    blobs: dict[str, Tensor] = {f"{_EXTRA}/{n}": held(t) for n, t in extra.items()}
    entries = []
    for number, (kind, piece, buffer) in enumerate(parts):
        key = f"{kind}/{number}"
        blobs[key] = held(local_view(piece, buffer))
        entries.append(
            {
                "key": key,
                "kind": kind,
                "name": piece.name,
                "offset": piece.box.offset,
                "box": piece.box.shape,
                "shape": layout.params[piece.name].shape,
            }
        )
    stem = f"rank-{rank:05d}"
    head = {"format": _FORMAT, "rank": rank, "world": layout.world}
    text = json.dumps({**head, "state": dict(state), "boxes": entries})

    def write() -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            directory.mkdir(parents=True, exist_ok=True)
            save_file(blobs, str(directory / f"{stem}.safetensors"))
            (directory / f"{stem}.json").write_text(text)
        except (OSError, SafetensorError) as error:
            raise SnapshotError(f"rank {rank}: {error}") from error

    return write


class SavedBoxes:
    """What all ranks wrote into a directory. Raises ``SnapshotError`` where a part is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._parts = [self._part(0)]
        self.world = int(self._parts[0]["world"])
        self._parts += [self._part(rank) for rank in range(1, self.world)]
        self._index: dict[tuple[str, str], list[_Saved]] = {}
        for rank, part in enumerate(self._parts):
            file = directory / f"rank-{rank:05d}.safetensors"
            for entry in part["boxes"]:
                box = Box(tuple(entry["offset"]), tuple(entry["box"]))
                saved = _Saved(file, entry["key"], box, tuple(entry["shape"]))
                self._index.setdefault((entry["kind"], entry["name"]), []).append(saved)

    def _part(self, rank: int) -> dict[str, Any]:
        file = self.directory / f"rank-{rank:05d}.json"
        try:
            part: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise SnapshotError(f"snapshot file {file} cannot be read: {error}") from error
        if part.get("format") != _FORMAT:
            raise SnapshotError(f"snapshot file {file} has format {part.get('format')}")
        return part

    @property
    def kinds(self) -> set[str]:
        """Which kinds of tensors there are."""
        return {kind for kind, _ in self._index}

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Canonical shapes of the tensors of one kind, by name."""
        return {name: found[0].shape for (one, name), found in self._index.items() if one == kind}

    def state(self, rank: int = 0) -> dict[str, Any]:
        """The JSON state that a rank wrote."""
        state: dict[str, Any] = self._parts[rank]["state"]
        return state

    def extra(self, name: str, rank: int) -> Tensor | None:
        """A tensor of a rank's own, or None."""
        key = f"{_EXTRA}/{name}"
        file = self.directory / f"rank-{rank:05d}.safetensors"
        with _open(file) as tensors:
            return tensors.get_tensor(key) if key in tensors.keys() else None  # noqa: SIM118

    @torch.no_grad()
    def read_into(
        self, kind: str, pieces: Iterable[Piece], layout: Layout, buffers: Mapping[str, Tensor]
    ) -> None:
        """Fill this rank's buffers of one kind, in place."""
        jobs: dict[Path, list[tuple[_Saved, Box, Piece]]] = {}
        for piece in pieces:
            if not piece.box.size:
                continue
            for saved, common in self._sources(kind, piece, layout.params[piece.name].shape):
                jobs.setdefault(saved.file, []).append((saved, common, piece))
        for file, copies in jobs.items():
            with _open(file) as tensors:
                for saved, common, piece in copies:
                    source = tensors.get_slice(saved.key)[common.slices(saved.box)]
                    target = local_view(piece, buffers[piece.view.key])[common.slices(piece.box)]
                    if source.dtype != target.dtype:
                        raise SnapshotError(
                            f"snapshot {self.directory}: {kind} of '{piece.name}' is "
                            f"{source.dtype}, the model's {target.dtype}; set model.dtype"
                        )
                    target.copy_(source)

    def _sources(
        self, kind: str, piece: Piece, shape: tuple[int, ...]
    ) -> Iterator[tuple[_Saved, Box]]:
        missing = piece.box.size
        for saved in self._index.get((kind, piece.name), ()):
            if saved.shape != shape:
                raise SnapshotError(
                    f"snapshot {self.directory}: '{piece.name}' has shape {saved.shape}, "
                    f"the model's {shape}: it belongs to another model"
                )
            common = saved.box.intersect(piece.box)
            if common is not None:
                missing -= common.size
                yield saved, common
        if missing > 0:
            raise SnapshotError(f"snapshot {self.directory} lacks {kind} of '{piece.name}'")


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(file), framework="pt")
    except (OSError, SafetensorError) as error:
        raise SnapshotError(f"snapshot file {file} cannot be read: {error}") from error
