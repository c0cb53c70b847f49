"""One small component of every kind, and a plugin that offers them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlframe.algorithm import Algorithm, RoleSpec
from rlframe.config import SamplingConfig, check_range
from rlframe.errors import ConfigError, DataError
from rlframe.host.components import Component
from rlframe.host.hookspecs import hookimpl
from rlframe.host.host import PluginHost
from rlframe.interfaces.checkpoint import CheckpointEngine, Resharder
from rlframe.interfaces.cluster import Cluster, Mapper, Placement, ResourcePool
from rlframe.interfaces.data import Dataset, Environment, Reward
from rlframe.interfaces.loop import Callback, Logger, Scheduler, Tail
from rlframe.interfaces.model import ModelEngine
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.interfaces.strategy import Strategy
from rlframe.interfaces.transfer import TransferEngine


def whole(base: Any) -> Any:
    """A base class without abstract methods: these tests load components, they run none."""
    return type(f"Whole{base.__name__}", (base,), dict.fromkeys(base.__abstractmethods__, nothing))


def nothing(*_: Any) -> None:
    """Stands for a method that these tests never need."""


class Grpo(Algorithm):
    """A method with an option of its own."""

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Its options."""

        clip_ratio: float = 0.2
        """Half-width of the clip range, above 0."""
        style: Literal["plain", "dr"] = "plain"
        """plain or dr."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_range(self, "clip_ratio", above=0)

    def roles(self) -> tuple[RoleSpec, ...]:
        """A critic beside the policy."""
        return (*super().roles(), RoleSpec("critic", model="value", trained=True))


class Gspo(Algorithm):
    """A method whose option has the same name as another's."""

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Its options."""

        clip_ratio: float = 0.0003
        """Half-width of the clip range, above 0."""

    @staticmethod
    def validate(config: Any) -> None:
        """Refuse seed 13."""
        if config.seed == 13:
            raise ValueError("gspo is superstitious")


class Single(whole(Strategy)):
    """No options."""


class Sharded(whole(Strategy)):
    """A few options."""

    @dataclass(frozen=True)
    class Config:
        """Its options."""

        ranks: int = 2
        """Ranks, at least 1."""
        sizes: tuple[int, ...] = ()
        """Any sizes."""
        extra: dict[str, int] | None = None
        """Anything."""


class Engine(whole(RolloutEngine)):
    """An engine with an option of its own."""

    @dataclass(frozen=True)
    class Config(SamplingConfig):
        """Its options."""

        page: int = 16
        """Tokens a page."""


class Plain(whole(RolloutEngine)):
    """An engine without options of its own."""


class Exact(whole(Reward)):
    """A reward with an option."""

    @dataclass(frozen=True)
    class Config:
        """Its options."""

        answer_key: str = "answer"
        """Column with the answer."""


class Length(whole(Reward)):
    """A reward without options."""


Env = whole(Environment)
Model = whole(ModelEngine)
Sync = whole(Scheduler)
Inline = whole(Cluster)
Moves = whole(TransferEngine)
Hybrid = whole(CheckpointEngine)
Gather = whole(Resharder)
Terminal = whole(Logger)


class Jsonl(whole(Logger)):
    """A logger with an option."""

    @dataclass(frozen=True)
    class Config:
        """Its options."""

        file: str = "metrics.jsonl"
        """Name of the file."""


class Rows(Dataset):
    """Two rows; ``rows:none`` has no prompt."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question" if self.uri == "rows:none" else "prompt": f"row {index}"}

    @property
    def fingerprint(self) -> str:
        """Always the same."""
        return "rows"

    @classmethod
    def open(cls, uri: str) -> Rows:
        """Open anything but ``rows:gone``."""
        if uri == "rows:gone":
            raise DataError(f"data '{uri}' is not there")
        return cls(uri)


class Fixed(Mapper):
    """Everything in one pool, of which only ``train`` is there."""

    def place(self, roles: Sequence[str], config: Any, cluster: Any) -> Placement:
        """Refuse more than one device."""
        pools = {name: ResourcePool(name, p.nodes, p.devices) for name, p in config.pools.items()}
        if pools["train"].size > 1:
            raise ConfigError(f"pools.train asks for {pools['train'].size} devices, there is 1")
        return Placement(pools, dict.fromkeys(roles, "train"), {})


class Wait(Tail):
    """Every response is waited for."""


class Note(Callback):
    """A callback."""


DEFAULTS = """\
algo: grpo
strategy: single
rollout: {name: torch, page: 32, max_new_tokens: 24}
reward: exact
env: single-turn
scheduler: sync
tail: wait
cluster: inline
transfer: inline
checkpoint: hybrid
resharder: gather-all
mapper: fixed
logger: [terminal, jsonl]
model: {path: some/model, engine: causal-lm}
data: {train: "builtin:sums?split=train", validate: "builtin:sums?split=test"}
"""

COMPONENTS = (
    ("algorithm", "grpo", "Grpo"),
    ("algorithm", "gspo", "Gspo"),
    ("strategy", "single", "Single"),
    ("strategy", "sharded", "Sharded"),
    ("rollout", "torch", "Engine"),
    ("rollout", "plain", "Plain"),
    ("reward", "exact", "Exact"),
    ("reward", "length", "Length"),
    ("environment", "single-turn", "Env"),
    ("model", "causal-lm", "Model"),
    ("scheduler", "sync", "Sync"),
    ("tail", "wait", "Wait"),
    ("cluster", "inline", "Inline"),
    ("transfer", "inline", "Moves"),
    ("checkpoint", "hybrid", "Hybrid"),
    ("resharder", "gather-all", "Gather"),
    ("mapper", "fixed", "Fixed"),
    ("dataset", "rows", "Rows"),
    ("logger", "terminal", "Terminal"),
    ("logger", "jsonl", "Jsonl"),
    ("callback", "note", "Note"),
)


def make_host(folder: Path, defaults: str = DEFAULTS) -> PluginHost:
    """A host with one plugin that offers everything above."""
    path = folder / "defaults.yaml"
    path.write_text(defaults)
    plugin = types.ModuleType("fake_plugin")

    @hookimpl
    def rlframe_components() -> list[Component]:
        return [Component(kind, name, f"{__name__}:{cls}") for kind, name, cls in COMPONENTS]

    @hookimpl
    def rlframe_defaults() -> str:
        return str(path)

    plugin.rlframe_components = rlframe_components  # type: ignore[attr-defined]
    plugin.rlframe_defaults = rlframe_defaults  # type: ignore[attr-defined]
    host = PluginHost()
    info = host.register(plugin, "fake")
    assert info.error is None, info.error
    return host
