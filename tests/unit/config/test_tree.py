"""YAML and key=value as data: what scalars mean, and one clear error for everything else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlframe.config.tree import Leaf, merge, parse_dotlist, parse_yaml, plain, read_yaml, tree_of
from rlframe.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1e3),
        (".5", 0.5),
        ("12_000", 12000),
        ("0x10", 16),
        ("-3", -3),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("~", None),
        ("null", None),
        ("'1'", "1"),
        ("[1, a, 2e3]", [1, "a", 2000.0]),
        ("jsonl:a/b.jsonl", "jsonl:a/b.jsonl"),
    ],
)
def test_scalars(text, value):
    leaf = parse_yaml(f"key: {text}", "f.yaml")["key"]
    assert isinstance(leaf, Leaf)
    assert leaf.value == value
    assert type(leaf.value) is type(value)
    said = parse_dotlist([f"key={text}"])["key"]
    assert isinstance(said, Leaf)
    assert said.value == value


def test_infinities_and_nan():
    tree = parse_yaml("a: .inf\nb: -.inf\nc: .nan", "f.yaml")
    values = plain(tree)
    assert (values["a"], values["b"]) == (math.inf, -math.inf)
    assert math.isnan(values["c"])


def test_sources_are_lines():
    tree = parse_yaml("a:\n  b: 1\n\n  c: [1]\n", "f.yaml")
    section = tree["a"]
    assert isinstance(section, dict)
    assert [node.source for node in section.values()] == ["f.yaml:2", "f.yaml:4"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", r"f.yaml:3: key 'a' is written twice \(first in line 1\)"),
        ("a:\n  b: 1\n  b: 2", "f.yaml:3: key 'b' is written twice"),
        ("a: [1", "f.yaml:.*YAML error"),
        ("a:\n\tb: 1", "f.yaml:2: YAML error"),
        ("a: 'x", "YAML error"),
        ("- 1", "f.yaml must hold 'key: value' lines"),
        ("3", "f.yaml must hold"),
        ("a: !!python/object/apply:os.system [ls]", "f.yaml:1: YAML error"),
        ("a: &x {b: *x}", "contains itself"),
        ("a: &x [*x]", "YAML error"),
        ("? [a]\n: 1", "a key must be a word"),
        ("a: 1\n---\nb: 2", "YAML error"),
    ],
)
def test_bad_yaml_names_file_and_line(text, expected):
    with pytest.raises(ConfigError, match=expected):
        parse_yaml(text, "f.yaml")


def test_anchors_and_merge_keys():
    tree = parse_yaml("base: &b {x: 1, y: 2}\nover: {<<: *b, y: 3}", "f.yaml")
    assert plain(tree)["over"] == {"x": 1, "y": 3}


def test_files(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml does not exist: check --config"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_yaml(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(binary)
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n")
    assert read_yaml(empty) == {}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("optim.lr", "'optim.lr' is neither a flag nor key=value"),
        ("=1", "neither"),
        ("optim.lr=", "has no value"),
        ("optim.lr= ", "has no value"),
        ("--lr=1", "neither"),
    ],
)
def test_bad_arguments(argument, expected):
    with pytest.raises(ConfigError, match=expected):
        parse_dotlist([argument])


def test_an_argument_twice():
    with pytest.raises(ConfigError, match=r"optim.lr is given twice"):
        parse_dotlist(["optim.lr=1", "optim.lr=2"])


def test_a_value_in_the_way_of_a_section():
    with pytest.raises(ConfigError, match=r"a.b cannot be set: a is 1"):
        parse_dotlist(["a=1", "a.b=2"])


def test_templates_are_text_and_mappings_are_sections():
    tree = plain(parse_dotlist(["t=Q: {prompt}", "u={prompt}", "m={a: 1, b: {c: 2}}", "e=''"]))
    assert tree == {"t": "Q: {prompt}", "u": "{prompt}", "m": {"a": 1, "b": {"c": 2}}, "e": ""}


def test_a_name_and_its_options_in_either_order():
    wanted = {"algo": {"name": "grpo", "x": 3}}
    assert plain(parse_dotlist(["algo=grpo", "algo.x=3"])) == wanted
    assert plain(parse_dotlist(["algo.x=3", "algo=grpo"])) == wanted


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("abc", max_size=3),
    lambda child: st.dictionaries(st.text("xyz", min_size=1, max_size=2), child, max_size=3),
    max_leaves=8,
)
trees = st.dictionaries(st.text("xyz", min_size=1, max_size=2), values, max_size=3)


def overlay(base, over):
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {k: overlay(base[k], over[k]) if k in base and k in over else {**base, **over}[k]
            for k in {**base, **over}}  # fmt: skip


@given(trees, trees)
def test_merge_is_key_by_key_and_changes_neither(base, over):
    left, right = tree_of(base, "a"), tree_of(over, "b")
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    assert plain(merge(left, right)) == overlay(base, over)
    assert (plain(left), plain(right)) == (base, over)


def test_numbers_as_keys_change_items_of_a_list():
    base = tree_of({"l": ["a", {"name": "b", "x": 1}]}, "f")
    over = tree_of({"l": {"0": {"y": 2}, "1": {"x": 3}}}, "g")
    assert isinstance(base, dict)
    assert isinstance(over, dict)
    assert plain(merge(base, over)) == {"l": [{"name": "a", "y": 2}, {"name": "b", "x": 3}]}
    wrong = tree_of({"l": {"2": 1}}, "g")
    assert isinstance(wrong, dict)
    with pytest.raises(ConfigError, match=r"l.2 is not there: l has 2 items"):
        merge(base, wrong)
