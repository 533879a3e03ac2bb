"""Properties of comparing and applying, over random shapes and random declared changes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.contract import Column, Contract, Evolution, PartitionField, SortField, TableShape
from thermocline.contract.evolution import plan_evolution
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct, Type

NAMES = ("a", "b", "c", "d", "e", "f", "g")
docs = st.none() | st.sampled_from(["one", "two"])
plain = st.sampled_from(
    [Primitive("int"), Primitive("float"), Primitive("string"), Primitive("date"), Decimal(8, 2)]
)


def _members(kind, types, names=NAMES, smallest=1):
    return st.lists(st.sampled_from(names), min_size=smallest, max_size=5, unique=True).flatmap(
        lambda chosen: st.tuples(
            *(st.builds(kind, st.just(name), types, st.booleans(), docs) for name in chosen)
        )
    )


def _nested(inner):
    return st.one_of(
        _members(Field, inner).map(Struct),
        st.builds(List, inner, st.booleans()),
        st.builds(Map, plain, inner, st.booleans()),
    )


types = st.recursive(plain, _nested, max_leaves=6)


@st.composite
def shapes(draw) -> TableShape:
    columns = draw(_members(Column, types))
    flat = [c for c in columns if isinstance(c.type, Primitive | Decimal)]
    key = [c.name for c in flat if c.required and c.type != Primitive("float")]
    some = st.lists(st.sampled_from(flat), unique=True, max_size=2) if flat else st.just([])
    return TableShape(
        columns,
        tuple(draw(st.lists(st.sampled_from(key), unique=True)) if key else ()),
        tuple(PartitionField(c.name) for c in draw(some) if c.type != Primitive("float")),
        tuple(SortField(c.name, draw(st.booleans())) for c in draw(some)),
    )


def contract_of(shape: TableShape, **more) -> Contract:
    return Contract(
        "silver.t", shape.columns, key=shape.key, partition=shape.partition, sort=shape.sort, **more
    )


def seen(shape: TableShape) -> tuple:
    """What a table shows of a shape: no renames, no order in the key."""
    columns = tuple(Column(c.name, c.type, c.required, c.doc) for c in shape.columns)
    return columns, frozenset(shape.key), shape.partition, shape.sort


@settings(max_examples=60)
@given(shapes(), shapes())
def test_nothing_to_change_exactly_when_the_shapes_are_equal(one, other):
    assert plan_evolution(one, contract_of(one)) == Evolution()
    evolution = plan_evolution(one, contract_of(other))
    assert (evolution.changes == () and evolution.problems == ()) == (seen(one) == seen(other))


class _Editor:
    """Changes a shape the way an author may, and keeps what the author must declare."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.dropped: list[str] = []

    def members(self, members, path: str, held: set[str]):
        result = []
        for member in members:
            if member.name not in held and self.chance() and len(members) > 1 and len(result) > 0:
                self.dropped.append(path + member.name)
                continue
            type_ = member.type
            name = f"{member.name}_new" if self.chance() else member.name
            required = member.required and (member.name in held or not self.chance())
            doc = self.draw(docs) if self.chance() else member.doc
            type_ = self.type(type_, f"{path}{name}.")
            origin = member.name if name != member.name else None
            result.append(replace(member, name=name, type=type_, required=required, doc=doc,
                                  renamed_from=origin))  # fmt: skip
        if self.chance():
            kind = Field if path else Column
            result.append(kind("added", self.draw(types), doc=self.draw(docs)))
        if self.chance():
            result = self.draw(st.permutations(result))
        return tuple(result)

    def type(self, type_: Type, path: str) -> Type:
        match type_:
            case Struct(fields):
                return Struct(self.members(fields, path, set()))
            case List(element, required):
                element = self.type(element, f"{path}element.")
                return List(element, required and not self.chance())
            case Map(key, value, required):
                value = self.type(value, f"{path}value.")
                return Map(key, value, required and not self.chance())
            case Decimal(precision, scale) if self.chance():
                return Decimal(precision + 3, scale)
            case Primitive("int") if self.chance():
                return Primitive("long")
            case Primitive("float") if self.chance():
                return Primitive("double")
        return type_

    def chance(self) -> bool:
        return self.draw(st.integers(0, 3)) == 0


@st.composite
def declared_changes(draw) -> tuple[TableShape, Contract]:
    current, editor = draw(shapes()), _Editor(draw)
    held = {*current.key, *(p.column for p in current.partition)}
    columns = editor.members(current.columns, "", held)
    now = {c.renamed_from or c.name: c.name for c in columns}
    keep_key = editor.chance() or draw(st.booleans())
    wanted = TableShape(
        columns,
        tuple(now[name] for name in current.key) if keep_key else (),
        tuple(replace(p, column=now[p.column]) for p in current.partition),
        tuple(SortField(now[s.column], s.descending) for s in current.sort if s.column in now),
    )
    return current, contract_of(wanted, dropped=tuple(editor.dropped))


@settings(max_examples=60)
@given(declared_changes())
def test_applying_declared_changes_gives_the_wanted_shape(pair):
    current, wanted = pair
    evolution = plan_evolution(current, wanted)
    assert evolution.problems == ()
    assert seen(evolution.apply(current)) == seen(wanted.shape)


@settings(max_examples=60)
@given(declared_changes())
def test_applied_changes_are_not_asked_for_again(pair):
    current, wanted = pair
    after = plan_evolution(current, wanted).apply(current)
    again = plan_evolution(after, wanted)
    assert again.changes == ()
    assert again.problems == ()


@settings(max_examples=60)
@given(declared_changes())
def test_the_way_back_loses_nothing_silently(pair):
    """Whatever was added or widened, the old contract does not quietly take it away."""
    current, wanted = pair
    after = plan_evolution(current, wanted).apply(current)
    back = plan_evolution(after, contract_of(current))
    names = {c.name for c in current.columns}
    lost = [c.name for c in after.columns if c.name not in names]
    refused = {problem.where for problem in back.problems}
    assert all(name in refused for name in lost)
