"""What may import what, and what a light command must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "rlframe"
PACKAGES = {
    name: ROOT / name / f"rlframe_{name}"
    for name in ("algorithms", "strategies", "plugins", "templates")
}
HEAVY = ("torch", "transformers", "tensordict", "omegaconf", "numpy", "ray", "yaml", "rich")


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST) -> set[str]:
    """Every module that is imported anywhere in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def loaded_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` of a process that ran the code."""
    tail = "\nfinally:\n    print('@', *sorted({m.split('.')[0] for m in sys.modules}))\n"
    body = "".join(f"    {line}\n" for line in code.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\ntry:\n{body}except SystemExit:\n    pass{tail}"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("@")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import rlframe",
        "from rlframe import Component, hookimpl, ConfigError, Request, Sampling",
        "from rlframe.cli.main import main\nmain(['--help'])",
        "from rlframe.cli.main import main\nmain(['--version'])",
        "from rlframe.cli.main import main\nmain(['plugins'])",
        "from rlframe.cli.main import main\nmain(['plugins', '--json'])",
        "from rlframe.cli.main import main\nmain(['fitt'])",
    ],
)
def test_light_commands_load_nothing_heavy(code):
    loaded = loaded_after(code)
    assert "rlframe" in loaded
    assert loaded & set(HEAVY) == set()


def test_a_placement_that_cannot_fit_is_told_before_anything_large_is_loaded(tmp_path):
    """These libraries take as long as all else until then; no Ray is started for it."""
    if find_spec("ray") is None:
        pytest.skip("no Ray")
    words = ["fit", "--algo", "ppo", "--strategy", "fsdp", "--cluster", "ray", "run.name=run"]
    words += ["pools.train.devices=4000", f"run.dir={tmp_path}"]
    loaded = loaded_after(f"from rlframe.cli.main import main\nassert main({words}) == 2")
    assert {"rlframe", "ray"} <= loaded
    assert loaded & {"transformers", "tensordict", "datasets", "tokenizers"} == set()


def test_the_probe_sees_what_is_loaded():
    assert "numpy" in loaded_after("import numpy")


def test_defining_an_algorithm_needs_no_torch():
    code = "from rlframe import Algorithm, RoleSpec, Term\nclass Mine(Algorithm):\n    pass"
    assert loaded_after(code) & {"torch", "transformers", "tensordict"} == set()


@pytest.mark.parametrize("path", modules(CORE), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_no_plugin_and_no_backend(path):
    banned = {"ray", "vllm", "sglang", "deepspeed", "megatron", "lightning", "peft"}
    banned |= {f"rlframe_{name}" for name in PACKAGES}
    tree = parsed(path)
    assert {name.split(".")[0] for name in imports(tree)} & banned == set()
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    packages = [f"rlframe_{name}" for name in PACKAGES]
    assert [t for t in texts if isinstance(t, str) and any(p in t for p in packages)] == []


DESCRIPTIVE = ("reward", "dataset", "logger", "callback", "section")
"""Kinds whose names are plain words ("length", "format") that mean other things elsewhere."""


@cache
def component_names() -> frozenset[str]:
    """Names that the four packages register."""
    from rlframe.host.host import current_host

    found = (component for info in current_host().plugins for component in info.components)
    names = {one.name for one in found if one.kind not in DESCRIPTIVE}
    assert {"grpo", "fsdp", "torch"} <= names
    return frozenset(names)


def asks_for_capability(node: ast.Compare) -> bool:
    """``"name" in component.capabilities``: what a component can do, not what it is called."""
    return any(isinstance(s, ast.Attribute) and s.attr == "capabilities" for s in node.comparators)


@pytest.mark.parametrize("path", modules(CORE), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_compares_with_no_components_name(path):
    compared = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Compare) and not asks_for_capability(node):
            compared |= {
                leaf.value
                for side in (node.left, *node.comparators)
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
    # "torch" is also a package, "single" and "auto" are words; no name is read into them.
    assert compared & (component_names() - {"torch", "single", "auto"}) == set()


@cache
def public_names(module: str) -> frozenset[str]:
    """``__all__`` of a module, read from its source."""
    spec = find_spec(module)
    assert spec is not None, f"no module {module}"
    assert spec.origin is not None
    for node in parsed(Path(spec.origin)).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            assert isinstance(node, ast.Assign)
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def private_uses(tree: ast.AST, own: str) -> list[str]:
    """Imports of rlframe that are not of public names, and of other first-party packages."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
            wrong += [n for n in names if n.startswith("rlframe") and n.split(".")[0] != own]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            top = module.split(".")[0]
            if top.startswith("rlframe_") and top != own:
                wrong.append(module)
            elif top == "rlframe":
                wrong += [f"{module}.{a.name}" for a in node.names if not is_public(module, a.name)]
    return wrong


def is_public(module: str, name: str) -> bool:
    if any(part.startswith("_") for part in module.split(".")):
        return False
    if name in public_names(module):
        return True
    spec = find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return (
        is_package
        and find_spec(f"{module}.{name}") is not None
        and bool(public_names(f"{module}.{name}"))
    )


@pytest.mark.parametrize(
    ("own", "path"),
    [(f"rlframe_{name}", path) for name, folder in PACKAGES.items() for path in modules(folder)],
    ids=lambda value: value if isinstance(value, str) else str(value.relative_to(ROOT)),
)
def test_first_party_plugins_use_public_names_only(own, path):
    assert private_uses(parsed(path), own) == []


@pytest.mark.parametrize(
    "source",
    [
        "from rlframe.config.tree import YamlLoader, _typo",
        "from rlframe.cli.main import _run",
        "from rlframe_algorithms.grpo import GRPO",
        "import rlframe.config.tree",
        "def f():\n    from rlframe.host.host import _entries",
    ],
)
def test_the_check_finds_private_uses(source):
    assert private_uses(ast.parse(source), "rlframe_plugins") != []


def test_every_public_name_of_rlframe_is_there():
    import rlframe

    missing = [name for name in rlframe.__all__ if not hasattr(rlframe, name)]
    assert missing == []
    assert set(rlframe.__all__) <= set(dir(rlframe))
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        rlframe.nope  # noqa: B018
