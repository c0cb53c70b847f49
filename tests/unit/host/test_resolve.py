"""From what was typed to a class, and every way in which that fails, in one clear line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlframe.errors import PluginError
from rlframe.host.components import Component
from rlframe.host.host import PluginHost
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import load_target, resolve, resolve_object
from tests.unit.host.distributions import install

MINE = """
from rlframe import Algorithm
import neighbour

class Mine(Algorithm):
    '''Mine.'''

class Other:
    '''No algorithm.'''

def score(answer): return 1.0
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "neighbour.py").write_text("x = 1\n")
    path = tmp_path / "my-methods.py"
    path.write_text(MINE)
    yield path
    sys.path[:] = [p for p in sys.path if p != str(tmp_path)]
    sys.modules.pop("neighbour", None)


def test_a_class_in_a_file_with_its_hash(mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    found = resolve(PluginHost(), "algorithm", "my-methods.py:Mine")
    assert found.target == f"{mine}:Mine"
    assert len(found.sha256) == 64
    assert load_target(found.target, found.sha256) is found.value


def test_a_changed_file_is_refused(mine):
    found = resolve(PluginHost(), "algorithm", f"{mine}:Mine")
    mine.write_text(MINE + "\n# changed\n")
    with pytest.raises(PluginError, match="is not the file that the run was started with"):
        load_target(found.target, found.sha256)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Mime", "has no 'Mime'. Did you mean 'Mine'"),
        ("Other", "is no rlframe.algorithm.Algorithm: derive it"),
        ("score", "is a function, not a class"),
        ("", "write 'file.py:Class'"),
    ],
)
def test_a_wrong_name_in_a_file(mine, name, expected):
    with pytest.raises(PluginError, match=expected):
        resolve(PluginHost(), "algorithm", f"{mine}:{name}")


def test_a_reward_may_be_a_function(mine):
    assert resolve(PluginHost(), "reward", f"{mine}:score").value("x") == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x = (", "was never closed"), ("\n\n1 / 0", r"ZeroDivisionError.*bad\.py:3")],
)
def test_a_broken_file_says_the_line(tmp_path, text, expected):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(PluginError, match=expected):
        resolve(PluginHost(), "algorithm", f"{path}:X")


def test_no_such_file_or_module(tmp_path):
    with pytest.raises(PluginError, match="no file .*none.py"):
        resolve(PluginHost(), "algorithm", f"{tmp_path / 'none.py'}:X")
    with pytest.raises(PluginError, match="No module named 'no_such_module_here'"):
        resolve(PluginHost(), "algorithm", "no_such_module_here:X")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("algorithm", "name the class in it too: my-methods.py:Mine or my-methods.py:Other$"),
        ("reward", "name the class or function in it too: .* or my-methods.py:score$"),
    ],
)
def test_a_file_without_a_class(mine, monkeypatch, kind, expected):
    monkeypatch.chdir(mine.parent)
    with pytest.raises(PluginError, match=expected):
        resolve(PluginHost(), kind, "my-methods.py")
    assert "neighbour" not in sys.modules
    mine.write_text("class Mine(")
    with pytest.raises(PluginError, match="my-methods.py:NAME"):
        resolve(PluginHost(), kind, "my-methods.py")


@pytest.mark.parametrize("name", ["my_method.py", "my_method.py:Mine"])
def test_a_mistyped_file(mine, monkeypatch, name):
    monkeypatch.chdir(mine.parent)
    with pytest.raises(PluginError, match=r"no file .*Did you mean '.*my-methods\.py'\?"):
        resolve(PluginHost(), "algorithm", name)


def test_a_module_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "local_methods_xyz.py").write_text(
        "from rlframe import Algorithm\nclass Mine(Algorithm):\n    '''Mine.'''\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = resolve(PluginHost(), "algorithm", "local_methods_xyz:Mine")
    assert found.value.__name__ == "Mine"
    del sys.modules["local_methods_xyz"]


def test_an_abstract_class_says_what_it_lacks(tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text(
        "from rlframe.interfaces.loop import Scheduler\nclass Lazy(Scheduler):\n    '''Lazy.'''\n"
    )
    with pytest.raises(PluginError, match="lacks the methods run"):
        resolve(PluginHost(), "scheduler", f"{path}:Lazy")


def test_resolving_imports_nothing_else():
    """A component that is not chosen is never imported."""
    code = (
        "import sys\n"
        "from rlframe.host.host import PluginHost\n"
        "from rlframe.host.resolve import resolve\n"
        "resolve(PluginHost().load(), 'algorithm', 'grpo')\n"
        "assert 'rlframe_algorithms.grpo' in sys.modules\n"
        "assert 'rlframe_algorithms.sft' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- packages that are not there ------------------------------------------------------------------


def hint(**fields):
    return missing_hint(Component("rollout", "vllm", "a:B", **fields))


def test_the_hint_is_that_of_the_design():
    text = hint(requires=("vllm_not_here",), extra="vllm", distribution="rlframe")
    assert text == ("rollout 'vllm' needs the package 'vllm_not_here': pip install 'rlframe[vllm]'")


def test_the_hint_names_the_plugins_own_distribution():
    text = hint(requires=("vllm_not_here",), extra="fast", distribution="rlframe-acme")
    assert text is not None
    assert text.endswith("pip install 'rlframe-acme[fast]'")


def test_without_an_extra_the_packages_are_named():
    text = hint(requires=("a_not_here", "b_not_here.c", "json"))
    assert text is not None
    assert text.endswith("needs the packages 'a_not_here', 'b_not_here.c': "
                         "pip install a_not_here b_not_here.c")  # fmt: skip


def test_nothing_missing_gives_no_hint():
    assert hint(requires=("json", "importlib.metadata")) is None


@pytest.mark.parametrize(("marker", "excluded"), [("< '3'", True), (">= '3'", False)])
def test_a_python_that_the_extras_marker_excludes(tmp_path, monkeypatch, marker, excluded):
    metadata = (
        "Provides-Extra: big\n"
        f"Requires-Dist: big-core>=1; (python_version {marker}) and extra == 'big'\n"
    )
    install(tmp_path / "site", "rlframe-big", {}, {}, metadata=metadata)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    text = hint(requires=("big_not_here",), extra="big", distribution="rlframe-big")
    assert text is not None
    assert ('python_version < "3"' in text) == excluded
    assert ("pip install" in text) != excluded


@pytest.mark.parametrize(("asked", "told"), [(">=1.2", False), (">=1.4", True), ("<1", True)])
def test_a_package_that_the_extra_is_too_new_for(tmp_path, monkeypatch, asked, told):
    """Its module is there, which is not enough."""
    site = tmp_path / "site"
    install(site, "big-core", {}, {"big_core_here": ""}, version="1.3.dev1")
    metadata = f"Provides-Extra: big\nRequires-Dist: big-core{asked}; extra == 'big'\n"
    install(site, "rlframe-big", {}, {}, metadata=metadata)
    monkeypatch.syspath_prepend(str(site))
    text = hint(requires=("big_core_here",), extra="big", distribution="rlframe-big")
    wanted = f"needs big-core{asked}, and 1.3.dev1 is installed: pip install --upgrade "
    assert (text is not None) == told
    assert text is None or f"{wanted}'rlframe-big[big]'" in text


def test_the_missing_package_is_an_error_before_any_import():
    host = PluginHost()
    host.plugins = PluginHost().load().plugins
    component = Component("rollout", "ghost", "ghost_mod:X", ("ghost_mod",), "ghost")
    host.plugins[0].components.append(component)
    with pytest.raises(PluginError, match="^rollout 'ghost' needs the package 'ghost_mod'"):
        resolve(host, "rollout", "ghost")


# --- from Python ----------------------------------------------------------------------------------


def test_an_instance_gives_its_class():
    from rlframe_algorithms.grpo import GRPO

    found = resolve_object("algorithm", GRPO())
    assert (found.value, found.importable) == (GRPO, True)
    assert found.target == "rlframe_algorithms.grpo:GRPO"


def test_a_local_class_travels_by_value():
    from rlframe import Algorithm

    class Local(Algorithm):
        """Local."""

    assert not resolve_object("algorithm", Local).importable


def test_an_instance_with_state_outside_its_config_is_refused():
    from rlframe import Algorithm

    class Local(Algorithm):
        """Local."""

        def __init__(self, config=None, scale=1.0):
            super().__init__(config)
            self.scale = scale

    assert resolve_object("algorithm", Local())
    with pytest.raises(PluginError, match="its attribute 'scale' would be lost"):
        resolve_object("algorithm", Local(scale=2.0))


def test_something_of_another_kind_is_refused():
    with pytest.raises(PluginError, match="is no rlframe.algorithm.Algorithm"):
        resolve_object("algorithm", 3)
