"""``rlframe fit --algo NAME --help``: flags, then every option of what is chosen."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from rlframe.cli.parser import CliParser, add_config_flags
from rlframe.config.layers import COMPONENTS, LISTS
from rlframe.config.load import WITH_DEFAULT_MODEL, Asked
from rlframe.config.options import OptionDoc, describe_options
from rlframe.config.outline import Outline, outline
from rlframe.config.schema import Config, RewardConfig
from rlframe.config.sections import DataConfig, ModelConfig, OptimConfig, PoolConfig, RunConfig
from rlframe.host.host import PluginHost

__all__ = ["print_options"]

_SECTIONS: dict[str, type[Any]] = {
    "run": RunConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "optim": OptimConfig,
    "pools.NAME": PoolConfig,
}
_COLUMN = 42


def print_options(host: PluginHost, asked: Asked, command: str) -> int:
    """Print the flags and the options of what the flags choose. Raises ConfigError."""
    found = outline(host, asked)
    parser = CliParser(prog=f"rlframe {command}", usage=_USAGE.format(command), add_help=False)
    add_config_flags(parser)
    if command == "fit":
        parser.add_argument("--resume", metavar="auto|PATH", help="go on from a snapshot")
    print(parser.format_help())
    for line in _sections(found):
        print(line)
    return 0


_USAGE = "rlframe {} [flags] [key=value ...]"


def _sections(found: Outline) -> Iterator[str]:
    yield "options, as key=value on the command line or nested in a YAML file:"
    top = [o for o in describe_options(Config, "") if o.key in ("seed", "steps")]
    yield from _table(top, found)
    for path, cls in _SECTIONS.items():
        yield from _section(path, _first_line(cls), describe_options(cls, path), found)
    for key in (*COMPONENTS, *LISTS, "reward"):
        if key == "reward":
            docs = [o for o in describe_options(RewardConfig, "reward") if o.key != "reward.parts"]
            yield from _section("reward", _first_line(RewardConfig), docs, found)
        yield from _component(key, found)
    yield ""
    yield "roles.ROLE.{model,optim,strategy,pool}: as above, for one role of the method."


def _component(key: str, found: Outline) -> Iterator[str]:
    for path, chosen in found.components.items():
        if path != key and not path.startswith(f"{key}."):
            continue
        shown = "reward" if path == "reward.parts.0" else path
        docs = list(describe_options(chosen.config, shown)) if chosen.config else []
        title = f"{chosen.summary} {'' if docs else '(no options)'}".strip()
        yield from _section(f"{shown} = {chosen.name}", title, docs, found)


def _section(
    title: str, meaning: str, docs: Iterator[OptionDoc] | list[OptionDoc], found: Outline
) -> Iterator[str]:
    yield ""
    yield f"{title}: {meaning}" if meaning else f"{title}:"
    yield from _table(list(docs), found)


def _table(docs: list[OptionDoc], found: Outline) -> Iterator[str]:
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    for doc in docs:
        left = f"  {doc.key}={found.value(doc.key, doc.default)}"
        kind = doc.type
        if found.is_tuned(doc.key):
            kind += f"; this is {WITH_DEFAULT_MODEL}, else {doc.default}"
        right = textwrap.wrap(f"{doc.meaning} ({kind})".strip(), width - _COLUMN - 1)
        if len(left) >= _COLUMN:
            yield left
            left = ""
        for text in right:
            yield f"{left:<{_COLUMN}} {text}"
            left = ""


def _first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]
