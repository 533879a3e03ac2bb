from __future__ import annotations

import re
from typing import ClassVar

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from thermocline.contract.odcs.yaml_lines import MAX_BYTES, YamlProblem, read_document

PYTHON_TAG = "tag:yaml.org,2002:python/"


def problems(text: str | bytes) -> list[YamlProblem]:
    return read_document(text.encode() if isinstance(text, str) else text).problems


def test_every_place_has_its_line():
    document = read_document(b"a: 1\nb:\n  - x: 1\n    y: [1,\n        2]\n  - {z: 3}\n")
    assert document.problems == []
    assert document.data == {"a": 1, "b": [{"x": 1, "y": [1, 2]}, {"z": 3}]}
    assert document.line(("a",)) == 1
    assert document.line(("b", 0)) == 3
    assert document.line(("b", 0, "y", 1)) == 5
    assert document.line(("b", 1, "z")) == 6
    assert document.line(("b", 0, "not there", "below")) == 3
    assert document.line(("nowhere",)) == 1


def test_scalars_follow_yaml_1_2():
    text = (
        "[NO, yes, on, 2026-01-01, 12:30, 007, 1e3, .5, -3, ~, null, true, '1', 1.2.0, 0x1F, 1_000]"
    )
    assert read_document(text.encode()).data == [
        "NO", "yes", "on", "2026-01-01", "12:30", 7, 1000.0, 0.5, -3, None, None, True, "1",
        "1.2.0", "0x1F", "1_000",
    ]  # fmt: skip


def test_aliases_are_written_out():
    document = read_document(b"a: &x {k: [1]}\nb: *x\n")
    assert document.data == {"a": {"k": [1]}, "b": {"k": [1]}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: !!python/object/apply:os.system ['true']",
            YamlProblem(1, f'YAML tag "{PYTHON_TAG}object/apply:os.system" is not allowed'),
        ),
        ("\na: !custom 1", YamlProblem(2, 'YAML tag "!custom" is not allowed')),
        ("a: 1\nb: 2\na: 3", YamlProblem(3, 'key "a" is repeated', "first on line 1")),
        ("a: 1\n---\nb: 2", YamlProblem(2, "a second document", "write one contract per file")),
        ("", YamlProblem(1, "the file is empty")),
        ("# only a comment\n", YamlProblem(1, "the file is empty")),
        ("a: &x [*x]", YamlProblem(1, "alias *x refers to no complete value before it")),
        ("a: *y", YamlProblem(1, "alias *y refers to no complete value before it")),
        ("? [a]\n: 1", YamlProblem(1, "a key that is not text")),
        ("\n" + "[" * 100 + "]" * 100, YamlProblem(2, "nested more than 60 levels deep")),
        (b"a: 1\nb: \xff\n", YamlProblem(2, "not UTF-8", "save it as UTF-8")),
        (b"a: 1\nb: x\x00y\n", YamlProblem(2, "a control character", "remove it")),
        (
            b"#" * (MAX_BYTES + 1),
            YamlProblem(1, "the file is larger than 1,000,000 bytes", "split it"),
        ),
    ],
)
def test_what_is_not_allowed_is_named_with_its_line(text, expected):
    found = problems(text)
    assert found[0].line == expected.line
    assert (found[0].what, found[0].hint) == (expected.what, expected.hint)


@pytest.mark.parametrize("text", ["a: 1\n\tb: 2", "a: [1, 2\nb: 3\n", 'a: 1\nb: "never ends'])
def test_broken_yaml_is_named_with_its_line(text):
    (flaw,) = problems(text)
    assert flaw.line == 2
    assert flaw.what.startswith("not YAML: ")


def test_anchors_that_explode_are_refused_in_no_time():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
    (flaw,) = problems("\n".join(lines))
    assert flaw.what == "more than 100,000 values after alias expansion"


def test_a_very_deep_text_does_not_exhaust_the_stack():
    assert problems("[" * 400_000)
    assert problems("- " * 400_000)
    assert problems("{a: " * 200_000)


scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner,
                                                                max_size=4),
    max_leaves=15,
)  # fmt: skip


class Yaml12(yaml.SafeDumper):
    """Writes YAML 1.2: a text stays unquoted unless its core schema reads something else."""

    yaml_implicit_resolvers: ClassVar = {}


for tag, pattern, first in (
    ("null", r"null|Null|NULL|~|", "nN~"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    Yaml12.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), [*first, ""]
    )


@given(values, st.booleans())
@example("0E0", False)  # a text in YAML 1.1, a number in 1.2
@example(["1e3", "0x1F", "0o17", "no", "1_000", "12:30", "2026-01-01", ".inf", ""], True)
def test_what_a_writer_of_yaml_1_2_writes_is_read_as_the_same_data(value, flow):
    text = yaml.dump(value, Dumper=Yaml12, default_flow_style=flow)
    document = read_document(text.encode())
    assert not [flaw for flaw in document.problems if "tag" not in flaw.what]
    assert document.data == value


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw):
    document = read_document(raw)
    assert document.root is not None or document.problems
