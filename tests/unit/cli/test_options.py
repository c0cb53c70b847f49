"""Options are documented by the line below each field, and every option has one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rlframe.config import sections
from rlframe.config.options import describe_options, field_docs
from rlframe.config.schema import Config, RewardConfig
from rlframe.host.host import PluginHost
from rlframe.host.resolve import load_target
from tests.unit.config.fakes import Grpo


@dataclass(frozen=True)
class Inner:
    """Inner."""

    x: int = 1
    """An x."""


@dataclass(frozen=True)
class Outer:
    """Outer."""

    needed: str
    """It is
    needed."""
    inner: Inner = field(default_factory=Inner)
    """Opened."""
    bare: bool | None = None


def test_documented_inherited_nested_and_bare_fields():
    rows = [(o.key, o.type, o.default, o.meaning) for o in describe_options(Outer, "s")]
    assert rows == [
        ("s.needed", "text", "required", "It is needed."),
        ("s.inner.x", "a whole number", "1", "An x."),
        ("s.bare", "true or false or null", "null", ""),
    ]
    assert field_docs(Grpo.Config)["epochs"].startswith("Passes over")
    assert field_docs(Grpo.Config)["clip_ratio"].startswith("Half-width")


@pytest.mark.parametrize("name", sections.__all__)
def test_every_option_of_the_core_has_a_meaning(name):
    undocumented = [o.key for o in describe_options(getattr(sections, name), "") if not o.meaning]
    assert undocumented == []


def test_the_top_level_has_a_meaning_for_every_key():
    docs = field_docs(Config) | field_docs(RewardConfig)
    names = {*Config.__dataclass_fields__, *RewardConfig.__dataclass_fields__}
    assert names - docs.keys() == set()


COMPONENTS = [c for p in PluginHost().load().plugins for c in p.components if c.plugin]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: f"{c.kind}-{c.name}")
def test_every_option_of_a_registered_component_has_a_meaning(component):
    """Also where the packages that it needs are missing: those are imported when it starts."""
    config = getattr(load_target(component.target), "Config", None)
    if config is not None:
        options = describe_options(config, component.name)
        assert [o.key for o in options if not o.meaning] == []
        assert config.__dataclass_params__.frozen
