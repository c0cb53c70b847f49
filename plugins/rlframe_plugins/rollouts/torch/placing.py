"""Which ranks make a generation replica, and which part of the model each of them holds. Pure."""

from __future__ import annotations

from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError, ModelError
from rlframe.weights.layout import Layout
from rlframe.weights.model_cuts import cuts_of_model, meta_model
from rlframe.weights.sharding import Grouping, grid_layout

__all__ = ["generation_mesh", "sharded_layout"]


def generation_mesh(tensor: int, world: int, trained: Mesh | None) -> Mesh:
    """Replicas of ``tensor`` ranks over a pool of ``world``.

    On the policy's ranks a training shard lies inside the generation shard, whether training cuts
    by tensor parallelism or deals shards of whole tensors to data-parallel ranks. Raises
    ConfigError for sizes that do not divide.
    """
    if trained is not None and trained.tp % tensor == 0:
        return Mesh(trained.dp, trained.pp, trained.tp, pg=1, tg=tensor)
    if world % tensor:
        raise ConfigError(
            f"rollout.tensor_parallel={tensor} does not divide the {world} rank(s) of its pool"
        )
    if trained is None:
        return Mesh(dp=world // tensor, tp=tensor)
    if trained.tp == trained.pp == 1:
        return Mesh(tp=world, tg=tensor)
    raise ConfigError(
        f"rollout.tensor_parallel={tensor} does not divide the policy's tensor-parallel size "
        f"{trained.tp} in the pool that both share"
    )


def sharded_layout(params: Layout, path: str, mesh: Mesh, grouping: Grouping) -> Layout:
    """Each rank's shards, cut as the model's tensor-parallel plan says. Raises ModelError."""
    if mesh.pg > 1:
        raise ConfigError(
            f"rollout 'torch' has no pipeline stages, but the mesh asks for pg={mesh.pg}: use "
            "rollout.tensor_parallel alone"
        )
    known, cuts = cuts_of_model(meta_model(path))
    strange = sorted(set(params.params) - set(cuts))
    if strange:
        raise ModelError(f"rollout 'torch': the model in '{path}' has no parameter '{strange[0]}'")
    used = {name: cuts[name] for name in params.params}
    return grid_layout({n: params.params[n] for n in known if n in used}, used, mesh, grouping)
