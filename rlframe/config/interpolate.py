"""``${section.key}`` in values: resolved by OmegaConf over the whole config, before types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlframe.config.tree import Leaf, Tree, leaves, plain
from rlframe.errors import ConfigError

__all__ = ["interpolate"]


def interpolate(tree: Tree) -> None:
    """Replace every interpolation in place. Raises ConfigError naming key and source."""
    found = [(path, leaf) for path, leaf in leaves(tree) if _has(leaf.value)]
    if not found:
        return
    config = OmegaConf.create(plain(tree))
    for path, leaf in found:
        try:
            value = OmegaConf.select(config, path, throw_on_missing=True)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{path} = {leaf.value!r} ({leaf.source}): {reason}") from error
        _replace(tree, path, Leaf(value, leaf.source, value if isinstance(value, str) else None))


def _has(value: Any) -> bool:
    return any("${" in text for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _replace(tree: Tree, path: str, leaf: Leaf) -> None:
    *parents, last = path.split(".")
    for part in parents:
        child = tree[part]
        assert isinstance(child, dict)
        tree = child
    tree[last] = leaf
