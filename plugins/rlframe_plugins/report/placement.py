"""Pools and roles of a run, and how its weights go from training to generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlframe.calling.protocol import Mesh
from rlframe.errors import RlframeError
from rlframe.report import RunRecord, Section, text
from rlframe_plugins.mappers.picture import groups_svg

__all__ = ["Placement"]

_MOST_RANKS = 64


class Placement(Section):
    """Devices by pool, coloured by model-parallel group; transfers where roles share a pool."""

    title, order = "Placement and resharding", 60

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        seen: dict[str, str] = {}
        for run in runs:
            if run.placement:
                picture = _pools(run.placement) + _resharding(run)
                seen[picture] = f"{seen[picture]}, {run.name}" if picture in seen else run.name
        if len(seen) == 1:
            return next(iter(seen))
        return "".join(f"<h3>{text(names)}</h3>{picture}" for picture, names in seen.items())


def _pools(placement: Mapping[str, Any]) -> str:
    """As ``rlframe map --html`` draws them: d, p, t are data, pipeline and tensor ranks."""
    parts = []
    for name, pool in placement["pools"].items():
        size = f"{pool['nodes']} x {pool['devices']} {placement['device']}"
        parts.append(f"<h3>Pool {text(name)}: {text(size)}</h3>")
        for role, where in placement["pool_of"].items():
            if where != name:
                continue
            mesh = Mesh(**placement["mesh_of"][role])
            pg, tg = (mesh.pg, mesh.tg) if role == "rollout" else (mesh.pp, mesh.tp)
            sizes = f"tensor {tg} x pipeline {pg} x data {mesh.size // (pg * tg)}"
            picture = groups_svg(mesh, pool["nodes"], pool["devices"])
            parts.append(
                f"<p><b>{text(role)}</b>: {sizes}</p><div class='picture small'>{picture}</div>"
            )
    return "".join(parts)


def _resharding(run: RunRecord) -> str:
    """Who sends which weights to whom, as ``rlframe reshard --svg`` draws it."""
    placement = run.placement
    pool_of, mesh_of = placement["pool_of"], placement["mesh_of"]
    if "rollout" not in pool_of or "policy" not in pool_of:
        return ""
    head = "<h3>Weights from training to rollout</h3>"
    if pool_of["rollout"] != pool_of["policy"]:
        return (
            f'{head}<p class="note">The rollout has a pool of its own: weights are sent there.</p>'
        )
    mesh = Mesh(**mesh_of["rollout"])
    if mesh.size == 1:
        return f'{head}<p class="note">One rank: nothing moves.</p>'
    if mesh.size > _MOST_RANKS:
        return f'{head}<p class="note">Over {_MOST_RANKS} ranks: see rlframe reshard.</p>'
    try:
        picture = _transition(run.option("model", "path"), mesh)
    except RlframeError as error:
        return f'{head}<p class="note">Not drawn: {text(error)}</p>'
    return f'{head}<div class="picture">{picture}</div>'


def _transition(model: str, mesh: Mesh) -> str:
    from rlframe.models.paths import resolve_model
    from rlframe.weights.model_cuts import cuts_of_model, meta_model
    from rlframe_plugins.resharders.picture import transition_svg
    from rlframe_plugins.resharders.report import transitions

    params, cuts = cuts_of_model(meta_model(str(resolve_model(model))), "bfloat16")
    return transition_svg(transitions(params, cuts, mesh)[0], mesh)
