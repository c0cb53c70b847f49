"""From normalised layers to a Config: first what is chosen with which values, then built.

``Assembly.tree`` holds every value of the run with its source; ``slots`` are the places in it where
a component stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlframe.config.build import build, convert, default_tree, first_source
from rlframe.config.interpolate import interpolate
from rlframe.config.layers import COMPONENTS, LISTS, Chosen, choose, is_default
from rlframe.config.schema import Config, RewardConfig, RewardPart, RoleConfig
from rlframe.config.sections import DataConfig, ModelConfig, OptimConfig, PoolConfig, RunConfig
from rlframe.config.select import Selector, finish
from rlframe.config.selected import Selected
from rlframe.config.tree import Leaf, Tree, leaves, merge, tree_of
from rlframe.errors import ConfigError, unknown_name
from rlframe.host.host import PluginHost
from rlframe.host.resolve import Resolved

__all__ = ["Assembly"]

_SECTIONS: dict[str, type[Any]] = {
    "run": RunConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "optim": OptimConfig,
}
_KEYS = tuple(k for k in Config.__dataclass_fields__ if k != "default_role")
_PART_KEYS = ("label", "weight", "when", "into")
_ROLE_KEYS = ("model", "optim", "strategy", "pool")

_WHOLE_REWARD = tuple(k for k in RewardConfig.__dataclass_fields__ if k != "parts")
"""Options of all parts of the reward together."""


class Assembly:
    """One load of a config."""

    def __init__(
        self,
        host: PluginHost,
        layers: Sequence[Tree],
        objects: Mapping[str, Any],
        *,
        from_snapshot: bool = False,
        user_code: bool = True,
    ) -> None:
        self._layers = layers
        self._selector = Selector(host, dict(objects), user_code=user_code)
        self.slots: dict[str, Resolved] = {}
        self._one_reward = False
        self._from_snapshot = from_snapshot
        self.tree: Tree = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Options that were given for a component that is not chosen: one line each."""
        return tuple(dict.fromkeys(self._selector.notes))

    def build(self) -> Config:
        """The config. Raises ConfigError."""
        self.prepare()
        return self._finish()

    def prepare(self) -> None:
        """Resolve what is chosen and fill ``tree``; options are not checked yet."""
        self._merge()
        self._pair_data()
        for key, kind in COMPONENTS.items():
            self._choose(key, kind)
        for key, kind in LISTS.items():
            self.tree[key] = dict(self._items(key, kind, self.tree[key]))
        self._choose_reward()
        self._choose_roles()
        self.tree = {key: self.tree[key] for key in _KEYS}
        if not self._from_snapshot:
            interpolate(self.tree)

    # --- what is chosen, with which values ----------------------------------------------------

    def _merge(self) -> None:
        """Every section but those of components, whose layers are merged by :func:`choose`."""
        tree: Tree = {"seed": Leaf(0, "default"), "steps": Leaf(100, "default"), "roles": {}}
        tree |= {name: default_tree(cls, "default") for name, cls in _SECTIONS.items()}
        tree["pools"] = {"train": default_tree(PoolConfig, "default")}
        tree |= {key: Leaf([], "default") for key in LISTS}
        for layer in self._layers:
            for key, node in layer.items():
                if key not in _KEYS:
                    raise ConfigError(_unknown_section(key, node))
                if isinstance(tree.get(key), dict) and isinstance(node, Leaf):
                    if node.value is not None:
                        raise ConfigError(
                            f"{key} = {node.value!r} ({node.source}): expected keys below it"
                        )
                elif key not in COMPONENTS and key != "reward":
                    tree = merge(tree, {key: node})
        self.tree = tree

    def _pair_data(self) -> None:
        """The default's validation questions belong to the default's training questions only."""
        data = self.tree["data"]
        assert isinstance(data, dict)
        train, held_out = data["train"], data["validate"]
        own_data = isinstance(train, Leaf) and not is_default(train)
        if own_data and isinstance(held_out, Leaf) and is_default(held_out):
            data["validate"] = Leaf(None, "none: data.train is not the default's")

    def _choose(self, key: str, kind: str) -> None:
        self.tree[key] = self._slot(kind, choose(key, self._layers), key)

    def _slot(self, kind: str, chosen: Chosen, path: str) -> Tree:
        """Resolve one component and return its section, name first, with all defaults."""
        option = self._selector.option(kind, chosen, path)
        self.slots[path] = option.resolved
        return option.tree

    def _items(self, path: str, kind: str, node: Tree | Leaf) -> Iterator[tuple[str, Tree]]:
        if not isinstance(node, Leaf) or not isinstance(node.value, list):
            raise ConfigError(f"{path} ({first_source(node)}): expected a list of components")
        for index, item in enumerate(node.value):
            where = f"{path}.{index}"
            tree: Tree | Leaf = {}
            if isinstance(item, str | Mapping):
                tree = tree_of({"name": item} if isinstance(item, str) else item, node.source)
            elif callable(item) or hasattr(item, "config"):
                self._selector.objects[where] = item
            else:
                raise ConfigError(f"{where} = {item!r} ({node.source}): expected a name")
            assert isinstance(tree, dict)
            yield str(index), self._slot(kind, Chosen(tree), where)

    def _choose_reward(self) -> None:
        """One reward beside its name, or a list of parts: both become ``parts``."""
        chosen = choose("reward", self._layers)
        own = {k: v for k, v in chosen.tree.items() if k in _WHOLE_REWARD}
        rest = {k: v for k, v in chosen.tree.items() if k not in own}
        if "reward" in self._selector.objects:
            rest.pop("parts", None)
        kept = {k: v for k, v in chosen.left.items() if k in _WHOLE_REWARD}
        left = {k: v for k, v in chosen.left.items() if k not in kept}
        tree = merge(default_tree(RewardConfig, "default"), merge(kept, own))
        if "parts" in rest and len(rest) > 1:
            key = next(k for k in rest if k != "parts")
            raise ConfigError(
                f"reward.{key} ({first_source(rest[key])}) stands beside reward.parts: "
                "put it into one of the parts"
            )
        others = "reward" in self._roles() or self.slots["env"].offered.gives_rewards
        if "parts" not in rest and others and _defaulted(rest):
            tree["parts"] = {}  # the default makes way for a reward model, or the environment's own
        elif "parts" in rest:
            tree["parts"] = dict(self._items("reward.parts", "reward", rest["parts"]))
        else:
            slot = self._slot("reward", Chosen(rest, left, chosen.left_name), "reward")
            self._one_reward = True
            self.slots["reward.parts.0"] = self.slots.pop("reward")
            tree["parts"] = {"0": slot}
        self.tree["reward"] = tree

    def _roles(self) -> Tree:
        roles = self.tree["roles"]
        assert isinstance(roles, dict)
        return roles

    def _choose_roles(self) -> None:
        """Each role inherits model, optim and strategy from the top level, key by key."""
        roles = self._roles()
        for name, role in roles.items():
            path = f"roles.{name}"
            if not isinstance(role, dict):
                raise ConfigError(f"{path} ({first_source(role)}): expected keys below it")
            for key in role:
                if key not in _ROLE_KEYS:
                    text = unknown_name("key", f"{path}.{key}", [f"{path}.{k}" for k in _ROLE_KEYS])
                    raise ConfigError(f"{text} ({first_source(role[key])})")
            full: Tree = {}
            for key in ("model", "optim"):
                full[key] = merge({key: self.tree[key]}, {key: role.get(key, {})})[key]
            layers = [*self._layers, {"strategy": role.get("strategy", {})}]
            full["strategy"] = self._slot(
                "strategy", choose("strategy", layers), f"{path}.strategy"
            )
            full["pool"] = role.get("pool", Leaf("train", "default"))
            roles[name] = full

    # --- built --------------------------------------------------------------------------------

    def _finish(self) -> Config:
        sections = {name: build(cls, self._tree(name), name) for name, cls in _SECTIONS.items()}
        components = {key: self._selected(key) for key in COMPONENTS}
        lists = {key: tuple(self._selected(f"{key}.{i}") for i in self._tree(key)) for key in LISTS}
        pools = {k: convert(PoolConfig, v, f"pools.{k}") for k, v in self._tree("pools").items()}
        default_role = RoleConfig(
            sections["model"],
            sections["optim"],
            components["strategy"],
            self._engine(sections["model"], "model"),
        )
        given = {
            **sections,
            **components,
            **lists,
            "pools": pools,
            "reward": self._reward(),
            "roles": {name: self._role(name) for name in self._tree("roles")},
            "default_role": default_role,
        }
        top = {key: self.tree[key] for key in ("seed", "steps")}
        config = build(Config, top, "", **given)
        assert isinstance(config, Config)
        return config

    def _tree(self, path: str) -> Tree:
        node: Tree | Leaf = self.tree
        for part in path.split("."):
            assert isinstance(node, dict)
            node = node[part]
        assert isinstance(node, dict), path
        return node

    def _selected(self, path: str) -> Selected:
        return finish(self.slots[path], self._tree(path), path)

    def _engine(self, model: ModelConfig, path: str) -> Selected:
        name = Leaf(model.engine, first_source(self._tree(path)["engine"]))
        tree: Tree = {"name": name} if model.engine else {}
        option = self._selector.option("model", Chosen(tree), f"{path}.engine")
        return finish(option.resolved, option.tree, f"{path}.engine")

    def _role(self, name: str) -> RoleConfig:
        path = f"roles.{name}"
        tree = self._tree(path)
        model = build(ModelConfig, self._tree(f"{path}.model"), f"{path}.model")
        return RoleConfig(
            model,
            build(OptimConfig, self._tree(f"{path}.optim"), f"{path}.optim"),
            self._selected(f"{path}.strategy"),
            self._engine(model, f"{path}.model"),
            convert(str, tree["pool"], f"{path}.pool"),
        )

    def _reward(self) -> RewardConfig:
        tree = self._tree("reward")
        parts = []
        for index, part in self._tree("reward.parts").items():
            slot = f"reward.parts.{index}"
            path = "reward" if self._one_reward else slot
            assert isinstance(part, dict)
            own = {k: v for k, v in part.items() if k not in _PART_KEYS}
            reward = finish(self.slots[slot], own, path)
            label = convert(str, part["label"], f"{path}.label")
            weight = convert(float, part["weight"], f"{path}.weight")
            when = convert(dict[str, Any], part["when"], f"{path}.when")
            short = reward.name.rpartition(":")[2]
            into = convert(str, part["into"], f"{path}.into")
            parts.append(RewardPart(label or short, reward, weight, when, into))
        rest = {k: v for k, v in tree.items() if k != "parts"}
        config = build(RewardConfig, rest, "reward", parts=tuple(parts))
        assert isinstance(config, RewardConfig)
        return config


def _unknown_section(key: str, node: Tree | Leaf) -> str:
    hint = " A dot in a YAML key makes no section: nest it." if "." in key else ""
    return f"{unknown_name('key', key, _KEYS)} ({first_source(node)}){hint}"


def _defaulted(tree: Tree) -> bool:
    """Whether nobody but the defaults file said anything of it."""
    return all(is_default(leaf) for _, leaf in leaves(tree))
