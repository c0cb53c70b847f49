"""``rlframe new KIND NAME``: writes a package that builds, installs, passes its kits and runs."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rlframe import API_VERSION, ConfigError, __version__
from rlframe.errors import unknown_name
from rlframe.host.host import current_host

__all__ = ["KINDS", "add_command", "new", "write_package"]

_SCAFFOLD = Path(__file__).with_name("scaffold")
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True)
class _Kind:
    component: str
    """Kind of the component that is offered."""
    module: str
    flags: str
    """What chooses it, with NAME for its name."""
    summary: str


KINDS = {
    "algorithm": _Kind(
        "algorithm",
        "algorithm",
        "--algo NAME",
        "policy gradient with the group's mean as baseline",
    ),
    "reward": _Kind("reward", "reward", "--reward NAME", "1 where the response holds the answer"),
    "environment": _Kind(
        "environment",
        "environment",
        "--env NAME",
        "asks again until the response holds the answer",
    ),
    "plugin": _Kind(
        "callback", "callback", "--callback NAME", "ends a run when its reward is high enough"
    ),
}
"""What can be written, by the word that a user types."""


def add_command(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``rlframe new``."""
    command = subcommands.add_parser(
        "new", help="write a package with an algorithm, reward, environment or plugin of your own"
    )
    command.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    command.add_argument("name", metavar="NAME", help="what it is called: letters, digits, dashes")
    command.add_argument(
        "--dir", metavar="FOLDER", help="new or empty folder to write (default: ./rlframe-NAME)"
    )
    command.set_defaults(run=new)


def new(arguments: argparse.Namespace) -> int:
    """Write the package and say what to do with it. Raises ConfigError."""
    if arguments.kind not in KINDS:
        raise ConfigError(unknown_name("kind", arguments.kind, KINDS))
    _check_name(arguments.kind, arguments.name)
    folder = Path(arguments.dir or f"rlframe-{arguments.name}").expanduser()
    written = write_package(arguments.kind, arguments.name, folder)
    flags = KINDS[arguments.kind].flags.replace("NAME", arguments.name)
    print(f"wrote {len(written)} files in {folder}. Next:")
    print(f"  cd {_quoted(folder)}")
    print("  pip install -e '.[dev]'")
    print("  pytest")
    print(f"  rlframe fit {flags}")
    return 0


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a kind; returns their paths. Raises ConfigError: the folder is in use."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty: name a new folder with --dir")
    chosen = KINDS[kind]
    words = {
        "name": name,
        "distribution": f"rlframe-{name}",
        "package": f"rlframe_{name.replace('-', '_')}",
        "cls": "".join(part[0].upper() + part[1:] for part in re.split("[-_]", name)),
        "kind": chosen.component,
        "module": chosen.module,
        "flags": chosen.flags.replace("NAME", name),
        "summary": chosen.summary,
        "version": __version__,
        "api_version": str(API_VERSION),
    }
    written = []
    try:
        for source, place in _files(kind, words):
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            text = Template(source.read_text(encoding="utf-8")).substitute(words)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return written


def _files(kind: str, words: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """Each template, and the place of its file in the package."""
    for part in ("common", kind):
        root = _SCAFFOLD / part
        for source in sorted(root.rglob("*.tmpl")):
            place = source.relative_to(root).as_posix().removesuffix(".tmpl")
            place = place.replace("PACKAGE", words["package"]).replace("MODULE", words["module"])
            yield source, ".gitignore" if place == "gitignore" else place


def _check_name(kind: str, name: str) -> None:
    if name.startswith("rlframe"):
        raise ConfigError(f"leave out 'rlframe': the package of 'acme' is rlframe-acme, not {name}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"'{name}' is no name for a package: small letters first, then letters, digits and "
            "single dashes, like 'my-method', and no word of Python itself"
        )
    component = KINDS[kind].component
    host = current_host()
    for info in host.plugins:
        for one in info.components:
            if (one.kind, one.name) == (component, name):
                raise ConfigError(
                    f"{one.word} '{name}' is there already, of plugin '{info.plugin}' "
                    f"({info.distribution}): choose another name"
                )


def _quoted(folder: Path) -> str:
    text = str(folder)
    return f"'{text}'" if re.search(r"[^\w./-]", text) else text
