"""A plan as one self-contained HTML page: pools, roles, parallel groups, the timeline of a step."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlframe.calling.protocol import Mesh
from rlframe_plugins.mappers.dataflow import ROLLOUT, STAGES
from rlframe_plugins.mappers.planner import Plan, Planned, PoolPlan, UnitPlan
from rlframe_plugins.mappers.report import memory_text, planned_text, summary, used_text
from rlframe_plugins.mappers.schedule import Bar, PoolLoad, timeline

__all__ = ["groups_svg", "loads_of", "page"]

_COLOURS = {"collect": "#4c78a8", "prepare": "#72b7b2", "learn": "#e45756", "publish": "#b279a2"}
_GROUPS = ("#dbe8f5", "#f5e6d3", "#ddf0dd", "#f3dbe6", "#ece4f7", "#f7f3d4", "#d9f0ef", "#eee")
_WIDTH = 960
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.3em} h2{font-size:1.05em;margin-top:1.6em} svg{max-width:100%;height:auto}
pre{background:#f6f6f6;padding:1em;overflow-x:auto} .key{margin-right:1em}
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.3em;vertical-align:-.1em}
text{font:11px system-ui,sans-serif;fill:#222}
"""


def loads_of(plan: Plan) -> list[PoolLoad]:
    """What each pool of a plan does in a step."""
    loads = []
    for pool in plan.pools:
        mine = [u for u in plan.units if u.name in pool.members]
        by_stage = {
            stage: {u.name: u.seconds[stage] for u in mine if stage in u.seconds}
            for stage in STAGES[:3]
        }
        loads.append(PoolLoad(pool.pool.name, **by_stage, publish=pool.seconds["publish"]))
    return loads


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _rect(x: float, y: float, w: float, h: float, fill: str, title: str = "") -> str:
    hover = f"<title>{escape(title)}</title>" if title else ""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
    return f'<rect {size} fill="{fill}" stroke="#999" stroke-width=".5">{hover}</rect>'


def _timeline_svg(bars: Sequence[Bar], pools: Sequence[str]) -> str:
    left, row = 110, 34
    end = max((bar.end for bar in bars), default=1.0) or 1.0
    scale = (_WIDTH - left - 10) / end
    parts = []
    for index, pool in enumerate(pools):
        parts.append(_text(0, index * row + 20, pool))
    for bar in bars:
        x, y = left + bar.start * scale, pools.index(bar.pool) * row + 4
        width = (bar.end - bar.start) * scale
        words = f"step {bar.step}: {bar.unit} {bar.stage}, {bar.end - bar.start:.2f} s"
        parts.append(_rect(x, y, width, row - 10, _COLOURS[bar.stage], words))
        if width > 7 * len(bar.unit):
            parts.append(_text(x + width / 2, y + 16, bar.unit, "middle"))
    height = len(pools) * row + 22
    parts.append(_text(left, height - 4, "0 s"))
    parts.append(_text(_WIDTH - 10, height - 4, f"{end:.1f} s", "end"))
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _device_colour(mesh: Mesh, device: int) -> str:
    replica, stage = mesh.dp_rank(device), mesh.pp_rank(device)
    return _GROUPS[(replica + stage * 3) % len(_GROUPS)]


def groups_svg(mesh: Mesh, all_nodes: int, per_node: int) -> str:
    """Devices of a pool, a row a node; devices of a model-parallel group and stage look alike."""
    cell, nodes = 44, min(all_nodes, 8)
    parts = []
    for node in range(nodes):
        for slot in range(per_node):
            rank = node * per_node + slot
            where = f"d{mesh.dp_rank(rank)} p{mesh.pp_rank(rank)} t{mesh.tp_rank(rank)}"
            x, y = slot * cell, node * 18
            parts.append(_rect(x, y, cell - 2, 16, _device_colour(mesh, rank), where))
            parts.append(_text(x + 2, y + 12, where[:9]))
    height = nodes * 18 + (14 if nodes < all_nodes else 0)
    if nodes < all_nodes:
        parts.append(_text(0, height - 2, f"and {all_nodes - nodes} nodes more"))
    width = max(per_node * cell, 160)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img">{"".join(parts)}</svg>'


def _unit_html(unit: UnitPlan, pool: PoolPlan) -> str:
    way = unit.way
    sizes = f"tensor {way.t} x pipeline {way.p} x data {way.d}"
    memory = f"GB a device: {memory_text(unit)}"
    what = "" if unit.name == ROLLOUT else f", {unit.strategy}"
    head = f"<p><b>{escape(unit.name)}</b>: {sizes}{escape(what)}<br>{escape(memory)}</p>"
    return head + groups_svg(unit.mesh, pool.pool.nodes, pool.pool.devices)


def _pool_html(pool: PoolPlan, plan: Plan) -> str:
    size = f"{pool.pool.nodes} x {pool.pool.devices} {plan.hardware.name}"
    used = used_text(pool, plan)
    units = "".join(_unit_html(u, pool) for u in plan.units if u.name in pool.members)
    return f"<h2>Pool {escape(pool.pool.name)}: {escape(size)}, {used}</h2>{units}"


def page(planned: Planned) -> str:
    """The page of the best plan, with the others as text."""
    plan = planned.plans[0]
    steps = 1 if plan.staleness is None else 2 * plan.staleness + 3
    bars = timeline(loads_of(plan), steps, plan.staleness)
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{stage}</span>'
        for stage, colour in _COLOURS.items()
    )
    svg = _timeline_svg(bars, [p.pool.name for p in plan.pools])
    pools = "".join(_pool_html(p, plan) for p in plan.pools)
    title = f"{plan.seconds:.2f} s a step: {summary(plan)}"
    span = "One step" if steps == 1 else f"{steps} steps"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{keys}</p><h2>{span}</h2>{svg}{pools}"
        f"<h2>Why</h2><pre>{escape(planned_text(planned))}</pre></html>\n"
    )
