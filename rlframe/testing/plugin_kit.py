"""What every installed plugin package must do. Subclass :class:`PluginKit` and name yours.

Example::

    class TestPackage(PluginKit):
        distribution = "rlframe-acme"
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import ClassVar

import pytest

from rlframe.config.options import field_docs
from rlframe.config.select import config_class
from rlframe.host.components import Component
from rlframe.host.hookspecs import API_VERSION
from rlframe.host.host import GROUP, PluginHost, PluginInfo
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import resolve

__all__ = ["PluginKit"]

_HEAVY = ("torch", "transformers", "tensordict", "ray", "vllm", "sglang", "deepspeed", "lightning")


class PluginKit:
    """Tests of one distribution, as it is installed in this environment."""

    distribution: ClassVar[str] = ""
    """Name in the package's metadata."""

    # --- what is checked ----------------------------------------------------------------------

    def test_it_is_found_and_loads(self) -> None:
        """Its entry points are in group ``rlframe``, each loads, and no hook is misspelt."""
        for info in self._plugins():
            assert info.error is None, f"plugin '{info.plugin}': {info.error}"

    def test_it_states_the_api_version(self) -> None:
        """``RLFRAME_API_VERSION`` is written down, and is the one of this rlframe."""
        for module in self._modules():
            stated = vars(module).get("RLFRAME_API_VERSION")
            assert stated == API_VERSION, f"{module.__name__}.RLFRAME_API_VERSION is {stated!r}"

    def test_components_resolve(self) -> None:
        """Every component whose packages are here is a class (or reward function) of its kind."""
        host = PluginHost().load()
        absent = []
        for component in self._components():
            if missing_hint(component):
                absent.append(f"{component.kind} '{component.name}'")
                continue
            resolve(host, component.kind, component.name)
        if absent and len(absent) == len(self._components()):
            pytest.skip(f"the packages of all components are missing: {', '.join(absent)}")

    def test_components_say_what_they_are(self) -> None:
        """One line of summary each, which ``rlframe plugins`` shows."""
        for component in self._components():
            assert component.summary.strip(), f"{component.kind} '{component.name}': no summary"
            assert "\n" not in component.summary

    def test_options_are_frozen_and_explained(self) -> None:
        """Each ``Config`` is a frozen dataclass with a line below each field."""
        host = PluginHost().load()
        for component in self._components():
            if missing_hint(component):
                continue
            config = config_class(resolve(host, component.kind, component.name))
            if config is None:
                continue
            where = f"{component.target}.Config"
            assert vars(config)["__dataclass_params__"].frozen, f"{where} is not frozen"
            docs = field_docs(config)
            for one in dataclasses.fields(config):
                assert docs.get(one.name), f"{where}.{one.name} has no line of help below it"

    def test_names_are_its_own(self) -> None:
        """No other installed plugin offers the same kind and name."""
        mine = {(c.kind, c.name) for c in self._components()}
        host = PluginHost().load()
        for info in host.plugins:
            if info.distribution.lower() == self.distribution.lower():
                continue
            both = mine & {(c.kind, c.name) for c in info.components}
            assert not both, f"plugin '{info.plugin}' offers {sorted(both)} too"
        assert len(mine) == len(self._components()), "the package offers a name twice"

    def test_it_costs_nothing_before_it_is_chosen(self) -> None:
        """Importing the plugin's module imports no heavy library: ``rlframe --help`` does so."""
        names = [module.__name__ for module in self._modules()]
        code = f"import sys, {', '.join(names)}; print('@', *sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        loaded = set(done.stdout.rpartition("@")[2].split())
        assert loaded & set(_HEAVY) == set()

    def test_it_can_be_blocked(self) -> None:
        """``--no-plugin DISTRIBUTION`` takes all of it away."""
        name = self._plugins()[0].distribution
        host = PluginHost([name]).load()
        assert all(not p.components for p in host.plugins if p.distribution == name)

    # --- inside -------------------------------------------------------------------------------

    def _plugins(self) -> list[PluginInfo]:
        assert self.distribution, "set PluginKit.distribution to the name of your package"
        host = PluginHost().load()
        found = [p for p in host.plugins if p.distribution.lower() == self.distribution.lower()]
        assert found, (
            f"no plugin of '{self.distribution}' is installed: pip install it, and name its module "
            f"in [project.entry-points.{GROUP}]"
        )
        return found

    def _components(self) -> list[Component]:
        return [component for info in self._plugins() for component in info.components]

    def _modules(self) -> list[ModuleType]:
        found = [
            entry.load()
            for entry in entry_points(group=GROUP)
            if entry.dist is not None and entry.dist.name.lower() == self.distribution.lower()
        ]
        assert found, f"no entry point of '{self.distribution}' in group {GROUP}"
        return found
