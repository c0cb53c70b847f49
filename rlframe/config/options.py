"""The options of a dataclass as a table: key, type, default, and the docstring line below it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from rlframe.config.build import describe_type, field_types

__all__ = ["OptionDoc", "describe_options", "field_docs", "shown"]


@dataclass(frozen=True)
class OptionDoc:
    """One option as ``--help`` shows it."""

    key: str
    type: str
    default: str
    meaning: str


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring line below each field, inherited ones too; empty where there is none."""
    docs: dict[str, str] = {}
    for one in reversed(inspect.getmro(cls)):
        if is_dataclass(one):
            docs.update(_own_docs(one))
    return docs


def describe_options(cls: type[Any], path: str) -> Iterator[OptionDoc]:
    """Every option of a dataclass under its dotted key; nested sections are opened."""
    hints, docs = field_types(cls), field_docs(cls)
    for one in fields(cls):
        if not one.init:
            continue
        hint = hints[one.name]
        key = f"{path}.{one.name}" if path else one.name
        if is_dataclass(hint) and isinstance(hint, type):
            yield from describe_options(hint, key)
        else:
            yield OptionDoc(key, describe_type(hint), _default(one), docs.get(one.name, ""))


def _default(one: Field[Any]) -> str:
    if one.default_factory is not MISSING:
        return shown(one.default_factory())
    return "required" if one.default is MISSING else shown(one.default)


def shown(value: Any) -> str:
    """A value as it would be written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(item) for item in value)}]"
    return "''" if value == "" else str(value)


def _own_docs(cls: type[Any]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, SyntaxError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field_node, below in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field_node, ast.AnnAssign) or not isinstance(field_node.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[field_node.target.id] = " ".join(str(below.value.value).split())
    return docs
