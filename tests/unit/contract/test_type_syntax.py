from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.contract import parse_type
from thermocline.contract.types import (
    PRIMITIVES,
    Decimal,
    Field,
    Fixed,
    List,
    Map,
    Primitive,
    Struct,
)
from thermocline.errors import BadInput

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
plain = st.one_of(
    st.sampled_from(sorted(PRIMITIVES)).map(Primitive),
    st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p))),
    st.builds(Fixed, st.integers(1, 2**31 - 1)),
)


def _nested(inner):
    fields = st.lists(
        st.builds(Field, names, inner, st.booleans()), min_size=1, max_size=4,
        unique_by=lambda field: field.name,
    )  # fmt: skip
    return st.one_of(
        st.builds(Struct, fields.map(tuple)),
        st.builds(List, inner, st.booleans()),
        st.builds(Map, plain, inner, st.booleans()),
    )


types = st.recursive(plain, _nested, max_leaves=12)


@given(types)
def test_the_text_of_a_type_reads_back_as_the_same_type(type_):
    assert parse_type(str(type_)) == type_


@given(types)
def test_case_and_blanks_make_no_difference_to_words(type_):
    if not isinstance(type_, Struct | List | Map):
        assert parse_type(f"  {str(type_).upper()} ") == type_


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("integer", Primitive("int")),
        ("BIGINT", Primitive("long")),
        ("real", Primitive("float")),
        ("double precision", Primitive("double")),
        ("varchar", Primitive("string")),
        ("text", Primitive("string")),
        ("numeric(10)", Decimal(10, 0)),
        ("decimal(38, 38)", Decimal(38, 38)),
        ("timestamp(6)", Primitive("timestamp")),
        ("timestamp with time zone", Primitive("timestamptz")),
        ("timestamp without time zone", Primitive("timestamp")),
        ("fixed(16)", Fixed(16)),
        ("array<bigint>", List(Primitive("long"))),
        ("struct<a int, b: text not null>",
         Struct((Field("a", Primitive("int")), Field("b", Primitive("string"), True)))),
        ("map<string, list<double not null>>",
         Map(Primitive("string"), List(Primitive("double"), True))),
    ],
)  # fmt: skip
def test_sql_spellings(text, type_):
    assert parse_type(text) == type_


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("decimal(50,2)", "precision must be at most 38"),
        ("decimal(0)", "precision must be at least 1"),
        ("decimal(4,5)", "scale must not exceed precision"),
        ("decimal", "add precision and scale, such as decimal(12,2)"),
        ("fixed", "add a length, such as fixed[16]"),
        ("fixed[0]", "length must be between 1 and 2,147,483,647"),
        ("strng", 'did you mean "string"?'),
        ("timestamp(9)", "times have microseconds; use 6 or no parameter"),
        ("timestamptz_ns", "timestamps have microseconds (Iceberg v2)"),
        ("varchar(20)", "use string, and set the length with logicalTypeOptions: {maxLength: 20}"),
        ("date(3)", "date takes no parameter"),
        ("list<int>>", 'unexpected ">" after list<int>'),
        ("list<int", 'expected ">" instead of the end'),
        ("map<list<int>, int>", "a map's key must not be a nested type"),
        ("struct<a: int, A: int>", 'field "A" is defined twice'),
        ("struct<_file: string>", "Iceberg reserves this name inside struct<…>"),
        ("", "a type is missing"),
        ("int; drop table x", 'unexpected ";"'),
        ("іnt", 'unexpected "і"'),  # a Cyrillic letter
        ("list<" * 40 + "int" + ">" * 40, "nested more than 30 levels deep"),
        ("list<" * 100_000, "longer than 20,000 characters"),
    ],
)
def test_what_is_wrong_with_a_type_is_said(text, hint):
    with pytest.raises(BadInput) as caught:
        parse_type(text)
    assert caught.value.next_step == hint
    assert caught.value.cause.startswith("unknown type ")
    assert len(caught.value.cause) < 100


@given(st.text(max_size=60))
def test_any_text_is_a_type_or_bad_input(text):
    try:
        assert parse_type(str(parse_type(text))) == parse_type(text)
    except BadInput as error:
        assert error.next_step
