"""A package that is older than what a component was written for is told before it is imported."""

from __future__ import annotations

import pytest

from rlframe.errors import PluginError
from rlframe.host import packages
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve


@pytest.mark.parametrize(
    ("kind", "name", "old"),
    [
        ("environment", "verifiers", "0.3.1"),
        ("dataset", "verifiers", "0.1.14"),
        ("rollout", "sglang-engine", "0.4.6.post1"),
    ],
)
def test_an_old_package_is_told_with_the_command(kind, name, old, monkeypatch):
    package = name.partition("-")[0]
    plain = packages.version
    monkeypatch.setattr(packages, "_is_there", lambda module: True)
    monkeypatch.setattr(packages, "version", lambda one: old if one == package else plain(one))
    command = rf"pip install --upgrade 'rlframe\[{package}\]'"
    told = rf"needs {package}.*, and {old} is installed: {command}"
    with pytest.raises(PluginError, match=told):
        resolve(current_host(), kind, name)
