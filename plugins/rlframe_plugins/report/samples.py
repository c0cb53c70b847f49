"""Responses over time: text, reward and its parts, and tokens coloured by what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from rlframe.report import RunRecord, Section, table, text

__all__ = ["Samples"]

_MOST_SAMPLES = 150
"""Samples of a run on the page; of more, steps are taken evenly, the first and last among them."""
_MOST_TOKENS = 60_000
"""Tokens of a run that are coloured."""
_SHORT = 90
_COLUMNS = {"l": "rollout_logprobs", "a": "advantages", "m": "response_mask"}
_OWN = ("step", "prompt", "response", "reward", "tokens", "finish_reason", "group_id")


class Samples(Section):
    """A fold a sample, by run and step, with the tokens in colours where they were recorded."""

    title, order = "Samples", 40
    script = files("rlframe_plugins.report").joinpath("samples.js").read_text(encoding="utf-8")
    style = """
#sample-list{max-height:75vh;overflow-y:auto}
.sample{border-top:1px solid var(--line);padding:.35rem 0}
.sample summary{display:flex;gap:.8rem;align-items:baseline}
.sample summary>span{white-space:nowrap;color:var(--faint);font-size:.9em;min-width:4.2em}
.sample summary>b{min-width:3.6em;text-align:right;font-variant-numeric:tabular-nums}
.sample summary>code{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;min-width:0}
.sample[hidden]{display:none}
.tokens{white-space:pre-wrap;overflow-wrap:anywhere}
.tokens span{border-radius:3px;padding:1px 0}
.tokens span:hover{outline:1px solid var(--mark)}
.scale{font-size:.9em;color:var(--faint)}
"""

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        shown = [run for run in runs if run.samples]
        if not shown:
            return ""
        body, notes = [], []
        for place, run in enumerate(shown):
            kept, left = _chosen(run.samples), _MOST_TOKENS
            if len(kept) < len(run.samples):
                notes.append(f"{run.name}: {len(kept)} of {len(run.samples)} samples are here")
            for row in kept:
                tokens = run.tokens.get((row["step"], row.get("group_id", -1)), [])
                count = sum(len(one["tokens"]) for one in tokens)
                body.append(_sample(place, row, tokens if count <= left else []))
                left -= count
            if left < 0:
                notes.append(f"{run.name}: the tokens of later samples are not coloured")
        told = "".join(f'<p class="note">{text(note)}</p>' for note in notes)
        return _controls(shown) + told + f'<div id="sample-list">{"".join(body)}</div>'


def _chosen(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole steps, evenly spread."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row)
    steps = sorted(by_step)
    most = max(_MOST_SAMPLES // max(len(one) for one in by_step.values()), 2)
    if len(steps) > most:
        steps = [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]
    return [row for step in steps for row in by_step[step]]


def _controls(runs: Sequence[RunRecord]) -> str:
    steps = sorted({row["step"] for run in runs for row in run.samples})
    names = "".join(f'<option value="{i}">{text(run.name)}</option>' for i, run in enumerate(runs))
    times = "".join(f'<option value="{step}">step {step}</option>' for step in steps)
    return (
        f'<div class="controls"><label>run <select id="sample-run"><option value="">all</option>'
        f'{names}</select></label><label>step <select id="sample-step"><option value="">all'
        f'</option>{times}</select></label><label>order <select id="sample-order">'
        '<option value="step">by step</option><option value="low">worst reward first</option>'
        '<option value="high">best reward first</option></select></label>'
        '<label>colour tokens by <select id="sample-colour">'
        '<option value="a">advantage</option><option value="l">log-probability</option>'
        '<option value="m">mask</option><option value="">nothing</option></select></label>'
        '<span class="scale" id="sample-scale"></span></div>'
    )


def _sample(run: int, row: Mapping[str, Any], tokens: Sequence[Mapping[str, Any]]) -> str:
    reward = row.get("reward")
    is_number = isinstance(reward, int | float)
    value = f"{reward:.3g}" if is_number else "-"
    prompt, response = str(row.get("prompt", "")), str(row.get("response", ""))
    head = (
        f"<summary><span>step {row['step']}</span><b>{value}</b><code>{text(_cut(prompt))} \u2192 "
        f"{text(_cut(response))}</code></summary>"
    )
    parts = [(k, _plain(v)) for k, v in row.items() if k not in _OWN]
    facts = [("reward", value), *parts, ("tokens", row.get("tokens", "-"))]
    facts += [("ended by", row.get("finish_reason", "-")), ("group", row.get("group_id", "-"))]
    coloured = "".join(map(_tokens, tokens))
    below = (
        f"<h3>Prompt</h3><pre>{text(prompt)}</pre><h3>Response</h3>"
        f"{coloured or f'<pre>{text(response)}</pre>'}"
        f"{table([k for k, _ in facts], [[v for _, v in facts]])}"
    )
    order = f"{reward}" if is_number else ""
    return (
        f'<details class="sample" data-run="{run}" data-step="{row["step"]}" data-reward="{order}">'
        f"{head}{below}</details>"
    )


def _tokens(row: Mapping[str, Any]) -> str:
    """Each token a span with what is known of it."""
    known = {key: row.get(name) for key, name in _COLUMNS.items()}
    spans = []
    for place, piece in enumerate(row["tokens"]):
        data = ""
        for key, values in known.items():
            value = values[place] if isinstance(values, list) and place < len(values) else None
            if isinstance(value, int | float):
                data += f' data-{key}="{float(value):.4g}"'
        spans.append(f"<span{data}>{text(piece)}</span>")
    return f'<pre class="tokens">{"".join(spans)}</pre>'


def _cut(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _SHORT else line[:_SHORT] + "\u2026"


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
