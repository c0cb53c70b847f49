"""``rlframe reshard``: who sends which weights to whom, without starting anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from rlframe.calling.protocol import Mesh
    from rlframe.weights.sharding import ExpertGrid
    from rlframe_plugins.resharders.report import Transition

__all__ = ["add_reshard_command", "parse_experts", "parse_sizes"]

_GIB = 2**30
_MOST_LINES = 24


def add_reshard_command(subcommands: Any) -> None:
    """Add ``rlframe reshard``; imports nothing heavy."""
    command = subcommands.add_parser("reshard", help="show weights going from training to rollout")
    add = command.add_argument
    add("--from", dest="source", metavar="P-T-D", required=True, help="training: 1-4-2")
    add("--to", dest="target", metavar="PG-TG-DG-D", required=True, help="generation: 1-2-2-2")
    add("--model", metavar="CONFIG", required=True, help="config.json, its folder, or a model")
    add("--from-experts", metavar="EP-TP", help="training: ranks that share experts, and cut each")
    add("--to-experts", metavar="EP-TP", help="the same in generation; default: as in training")
    add("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    add("--svg", metavar="FILE", help="draw the transition")
    add("--json", action="store_true", help="as JSON")
    command.set_defaults(run=run_reshard)


def run_reshard(arguments: argparse.Namespace) -> int:
    """Count and print. Raises ConfigError, ModelError."""
    from rlframe.models.paths import resolve_model
    from rlframe.weights.model_cuts import cuts_of_model, meta_model
    from rlframe_plugins.resharders.report import transitions, whole_bytes

    mesh = parse_sizes(arguments.source, arguments.target)
    experts = parse_experts(arguments.from_experts, arguments.to_experts)
    params, cuts = cuts_of_model(meta_model(str(resolve_model(arguments.model))), arguments.dtype)
    if experts is not None and not any(cut.experts for cut in cuts.values()):
        raise ConfigError(f"--from-experts, --to-experts: '{arguments.model}' has no experts")
    found = transitions(params, cuts, mesh, experts)
    total = whole_bytes(params)
    if arguments.svg:
        from rlframe_plugins.resharders.picture import transition_svg

        Path(arguments.svg).write_text(transition_svg(found[0], mesh), encoding="utf-8")
    if arguments.json:
        plans = [one.to_dict() for one in found]
        shown = {"mesh": vars(mesh), "experts": experts and vars(experts)}
        print(json.dumps({**shown, "model_bytes": total, "plans": plans}, indent=1))
        return 0
    print("\n".join(_lines(found, mesh, total)))
    return 0


def parse_sizes(source: str, target: str) -> Mesh:
    """A mesh from "p-t-d" and "pg-tg-dg-d". Raises ConfigError."""
    from rlframe.calling.protocol import Mesh

    p, t, d = _numbers("--from", source, ("p", "t", "d"))
    pg, tg, dg, dt = _numbers("--to", target, ("pg", "tg", "dg", "d"))
    mesh = Mesh(dp=d, pp=p, tp=t, pg=pg, tg=tg)
    if dt != d or dg != mesh.dg:
        raise ConfigError(
            f"--to {target} does not fit --from {source}: {p * t} ranks a replica in groups of "
            f"{pg * tg} are {pg}-{tg}-{mesh.dg}-{d}"
        )
    return mesh


def parse_experts(source: str | None, target: str | None) -> ExpertGrid | None:
    """An expert grid from "ep-tp" of training and of generation. Raises ConfigError."""
    from rlframe.weights.sharding import ExpertGrid

    if source is None and target is None:
        return None
    names = ("ep", "tp")
    ep, tp = _numbers("--from-experts", source, names) if source else (1, 0)
    eg, tg = _numbers("--to-experts", target, names) if target else (0, 0)
    return ExpertGrid(ep, tp, eg, tg)


def _numbers(flag: str, text: str, names: Sequence[str]) -> list[int]:
    parts = text.split("-")
    if len(parts) != len(names) or not all(part.isdigit() and int(part) for part in parts):
        raise ConfigError(f"{flag} {text}: give {'-'.join(names)}, whole numbers from 1")
    return [int(part) for part in parts]


def _lines(found: Sequence[Transition], mesh: Mesh, total: int) -> list[str]:
    lines = [
        f"{mesh.size} ranks, weights {_size(total)}: training {mesh.pp}-{mesh.tp}-{mesh.dp} (p-t-d)"
        f" to generation {mesh.pg}-{mesh.tg}-{mesh.dg}-{mesh.dp} (pg-tg-dg-d)",
        "",
        f"{'a rank, at most':<18}{'received':>12}{'paper':>12}{'peak':>12}{'paper':>12}"
        f"{'redundant':>12}{'paper':>12}",
    ]
    for one in found:
        figures = zip((one.received, one.peak, one.redundant), one.expected, strict=True)
        cells = "".join(f"{_size(max(seen)):>12}{_size(said):>12}" for seen, said in figures)
        lines.append(f"{one.name:<18}{cells}")
    pairs = list(found[0].sends().items())
    lines += ["", "zero-redundancy, who sends to whom:" if pairs else "nothing moves"]
    lines += [f"  {s:>4} -> {t:<4} {_size(n)}" for (s, t), n in pairs[:_MOST_LINES]]
    if len(pairs) > _MOST_LINES:
        lines.append(f"  and {len(pairs) - _MOST_LINES} more; --json has them all")
    return lines


def _size(count: float) -> str:
    if count >= _GIB:
        return f"{count / _GIB:.2f} GiB"
    return f"{count / 2**20:.2f} MiB" if count >= 2**20 else f"{count / 2**10:.2f} KiB"
