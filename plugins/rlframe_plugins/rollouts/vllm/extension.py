"""Inside vLLM's worker processes: taking weights, and showing those that are computed with.

vLLM adds the methods of :class:`WeightsExtension` to its worker, which has ``model_runner``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlframe import RolloutError
from rlframe_plugins.rollouts.hosted.parcel import Parcel, opened_parcel
from rlframe_plugins.rollouts.vllm.parts import Part, merged_parts, qkv_parts, renamed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["WeightsExtension"]

_COLUMNS = 256
"""Columns of a packed weight that are read at once."""


class WeightsExtension:
    """Called on every worker by ``collective_rpc``; arguments and answers are plain data."""

    model_runner: Any

    def rlframe_load(self, path: str, entries: list[Any]) -> None:
        """Take every weight of the model from a parcel. Raises RolloutError: one is missing."""
        model = self.model_runner.model
        load = model.load_weights
        taken: set[str] = set()

        def remembering(weights: Any) -> Any:
            found = load(weights)
            taken.update(found or ())
            return found

        wanted = {name for name, _ in model.named_parameters()}
        model.load_weights = remembering
        try:
            self.model_runner.reload_weights(weights_iterator=opened_parcel(path, entries))
        finally:
            del model.load_weights
        if taken and wanted - taken:
            raise RolloutError(f"no weights came for {sorted(wanted - taken)[:3]} of vLLM's model")
        _prepack_head(model)

    def rlframe_show(self) -> tuple[str, list[Any], dict[str, list[int]]]:
        """A parcel with this rank's weights by Hugging Face name, and where each begins there.

        Kept until :meth:`rlframe_hide`.
        """
        tensors, starts = {}, {}
        for name, start, tensor in _shown(self.model_runner.model):
            tensors[name], starts[name] = tensor, list(start)
        self._rlframe_parcel = Parcel(tensors)
        return self._rlframe_parcel.path, list(self._rlframe_parcel.entries), starts

    def rlframe_hide(self) -> None:
        """Give the memory of :meth:`rlframe_show` back."""
        self._rlframe_parcel.close()

    def rlframe_memory(self) -> int:
        """Bytes in use: of the device, or on a CPU of this process."""
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            return int(total - free)
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        import resource

        return pages * resource.getpagesize()


def _head(model: Any) -> Any:
    head = getattr(model, "lm_head", None)
    return head if hasattr(head, "weight") else None


def _prepack_head(model: Any) -> None:
    """Pack a head anew that a CPU computes with: a tied one shares its embedding's new weights.

    vLLM's own reload leaves the pack of a tied head as it was, silently.
    """
    head = _head(model)
    if head is None or not hasattr(head, "cpu_linear"):
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _shown(model: Any) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Name, where it begins there, and the tensor, of what each layer computes with."""
    head = _head(model)
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    for layer, module in model.named_modules():
        if module is head and tied:
            continue
        for kind, tensor in module.named_parameters(recurse=False):
            if kind == "weight" and hasattr(module, "cpu_linear"):
                tensor = _packed(module)  # noqa: PLW2901 - the parameter itself may be empty
            for part, column in _parts(model, module, layer, kind, tensor):
                name = f"{renamed(layer, part.name)}.{kind}".removeprefix(".")
                start = (part.target, *([column] if tensor.ndim > 1 else []))
                start += (0,) * (tensor.ndim - len(start))
                yield name, start, tensor[part.source : part.source + part.rows]
    if tied and head is not None and hasattr(head, "cpu_linear"):
        # What a tied head computes with may differ from what its embedding looks up.
        yield "lm_head.weight", (_first_row(head), 0), _packed(head)[: _rows(head)]


def _packed(module: Any) -> Tensor:
    """A weight out of the form that a CPU's matrix product keeps: its product with unit vectors."""
    import torch

    like = next((p for p in module.parameters(recurse=False) if p.numel()), None)
    columns = int(getattr(module, "input_size_per_partition", 0) or module.embedding_dim)
    dtype = module.weight.dtype
    units = torch.eye(columns, dtype=dtype, device=None if like is None else like.device)
    with torch.no_grad():
        found = [
            module.cpu_linear(units[at : at + _COLUMNS], module.weight, None)
            for at in range(0, columns, _COLUMNS)
        ]
    return torch.cat(found).T.contiguous()


def _parts(
    model: Any, module: Any, layer: str, kind: str, tensor: Tensor
) -> list[tuple[Part, int]]:
    """Which rows of ``tensor`` are which parameter's, and its first column there."""
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    fused = getattr(model, "packed_modules_mapping", {}).get(layer.rpartition(".")[2], ())
    rank = int(getattr(module, "tp_rank", 0))
    if isinstance(module, linear.QKVParallelLinear):
        sizes = (module.num_heads, module.num_kv_heads, module.head_size)
        parts = qkv_parts(fused, *sizes, rank, module.num_kv_head_replicas)
        return [(part, 0) for part in parts]
    if isinstance(module, linear.MergedColumnParallelLinear):
        return [(p, 0) for p in merged_parts(fused, module.output_partition_sizes, rank)]
    if isinstance(module, VocabParallelEmbedding):
        return [(Part("", 0, _rows(module), _first_row(module)), 0)]
    count = tensor.shape[0] if tensor.ndim else 0
    if isinstance(module, linear.ColumnParallelLinear):
        return [(Part("", 0, count, rank * count), 0)]
    if isinstance(module, linear.RowParallelLinear) and kind == "weight":
        return [(Part("", 0, count, 0), rank * module.input_size_per_partition)]
    return [(Part("", 0, count, 0), 0)]


def _rows(embedding: Any) -> int:
    """Words of this rank, without padding."""
    where = embedding.shard_indices
    return int(where.org_vocab_end_index - where.org_vocab_start_index)


def _first_row(embedding: Any) -> int:
    return int(embedding.shard_indices.org_vocab_start_index)
