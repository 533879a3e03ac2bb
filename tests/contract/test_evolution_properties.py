"""Over random histories: every snapshot stays what it was, and evolution never loses a value.

A table is appended to, deleted from and evolved in a random order. Beside it a model in plain
Python keeps each row as values by field, whatever the field is called at the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import SETTINGS, clean_environment

from thermocline.config import load_settings
from thermocline.contract import Column, Contract
from thermocline.contract.types import Decimal, Primitive, Type
from thermocline.errors import ContractError
from thermocline.lake import Lake
from thermocline.lake.changes import read_rows

TABLE = "silver.things"
PROMOTED: dict[Type, Type] = {
    Primitive("int"): Primitive("long"),
    Primitive("float"): Primitive("double"),
    Decimal(9, 2): Decimal(18, 2),
    Decimal(18, 2): Decimal(38, 2),
}
KINDS: tuple[Type, ...] = (
    Primitive("int"), Primitive("float"), Decimal(9, 2), Primitive("string"), Primitive("date"),
)  # fmt: skip
FIRST = (
    Column("id", Primitive("long"), True),
    Column("c0", Primitive("int")),
    Column("c1", Primitive("string"), True),
    Column("c2", Decimal(9, 2)),
)

Row = dict[int, Any]
"""A row's values by field number; a field that was added later is not in it, which means null."""


def values_of(kind: Type) -> st.SearchStrategy[Any]:
    """Values that the type holds exactly, so that a promoted one compares equal."""
    if isinstance(kind, Decimal):
        bound = 10 ** (min(kind.precision, 28) - 2) - 1
        return st.decimals(-bound, bound, places=2)
    return {
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        "date": st.dates(),
    }[str(kind)]


@dataclass
class Model:
    """What the table should be: its columns with their field numbers, and the rows by id."""

    columns: list[Column] = field(default_factory=lambda: list(FIRST))
    numbers: list[int] = field(default_factory=lambda: list(range(len(FIRST))))
    rows: dict[int, Row] = field(default_factory=dict)
    fields: int = len(FIRST)
    names: int = len(FIRST)

    def shown(self) -> list[dict[str, Any]]:
        """The rows as a reader sees them now."""
        names = [column.name for column in self.columns]
        return [
            {name: row.get(number) for name, number in zip(names, self.numbers, strict=True)}
            for _, row in sorted(self.rows.items())
        ]

    def new_name(self) -> str:
        self.names += 1
        return f"c{self.names}"


@dataclass
class Story:
    """A lake, the model beside it, and what was seen at each snapshot."""

    lake: Lake
    data: st.DataObject
    model: Model = field(default_factory=Model)
    seen: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    next_id: int = 0

    def any_column(self, wanted: Callable[[Column], bool]) -> int | None:
        """The place of a column of the author's choice, never the key's."""
        places = [i for i, c in enumerate(self.model.columns) if i and wanted(c)]
        return self.data.draw(st.sampled_from(places)) if places else None

    def append(self) -> None:
        rows = []
        for _ in range(self.data.draw(st.integers(1, 3))):
            row: Row = {}
            for column, number in zip(self.model.columns, self.model.numbers, strict=True):
                kind = values_of(column.type)
                row[number] = self.data.draw(kind if column.required else st.none() | kind)
            row[0] = self.next_id
            self.model.rows[self.next_id] = row
            rows.append(self.next_id)
            self.next_id += 1
        table = self.lake.iceberg(TABLE)
        names = [column.name for column in self.model.columns]
        shown = [
            {n: self.model.rows[i].get(f) for n, f in zip(names, self.model.numbers, strict=True)}
            for i in rows
        ]
        table.append(pa.Table.from_pylist(shown, table.schema().as_arrow()))

    def delete(self) -> None:
        if self.model.rows:
            gone = self.data.draw(st.sampled_from(sorted(self.model.rows)))
            del self.model.rows[gone]
            self.lake.iceberg(TABLE).delete(f"id = {gone}")

    def add(self) -> None:
        place = self.data.draw(st.integers(1, len(self.model.columns)))
        kind = self.data.draw(st.sampled_from(KINDS))
        self.model.columns.insert(place, Column(self.model.new_name(), kind))
        self.model.numbers.insert(place, self.model.fields)
        self.model.fields += 1
        self.evolve()

    def rename(self) -> None:
        place = self.any_column(lambda column: True)
        if place is not None:
            old = self.model.columns[place]
            new = replace(old, name=self.model.new_name(), renamed_from=old.name)
            self.model.columns[place] = new
            self.evolve()
            self.model.columns[place] = replace(new, renamed_from=None)

    def drop(self) -> None:
        place = self.any_column(lambda column: True)
        if place is not None:
            gone = self.model.columns.pop(place)
            del self.model.numbers[place]
            self.refuse_undeclared(gone)
            self.evolve(dropped=(gone.name,))

    def promote(self) -> None:
        place = self.any_column(lambda column: column.type in PROMOTED)
        if place is not None:
            old = self.model.columns[place]
            self.model.columns[place] = replace(old, type=PROMOTED[old.type])
            self.evolve()

    def relax(self) -> None:
        place = self.any_column(lambda column: column.required)
        if place is not None:
            self.model.columns[place] = replace(self.model.columns[place], required=False)
            self.evolve()

    def reorder(self) -> None:
        order = self.data.draw(st.permutations(range(1, len(self.model.columns))))
        self.model.columns = [self.model.columns[i] for i in (0, *order)]
        self.model.numbers = [self.model.numbers[i] for i in (0, *order)]
        self.evolve()

    def evolve(self, dropped: tuple[str, ...] = ()) -> None:
        self.lake.ensure(self.contract(dropped))

    def refuse_undeclared(self, gone: Column) -> None:
        """A drop that the contract does not declare is refused, and the column stays."""
        before = self.lake.state(TABLE).metadata_location
        try:
            self.evolve()
        except ContractError as error:
            assert f"{gone.name}: is in the table but not in the contract" in error.cause
        else:
            raise AssertionError(f"{gone.name} was dropped without being declared")
        assert self.lake.state(TABLE).metadata_location == before

    def contract(self, dropped: tuple[str, ...] = ()) -> Contract:
        return Contract(TABLE, tuple(self.model.columns), key=("id",), dropped=dropped)

    def verify(self) -> None:
        """Now is as the model says, and every earlier snapshot is as it was when it was new."""
        table = self.lake.iceberg(TABLE)
        state = self.lake.state(TABLE)
        now = table.scan().to_arrow()
        assert now.column_names == [column.name for column in self.model.columns]
        assert now.sort_by("id").to_pylist() == self.model.shown()
        for snapshot, shown in self.seen.items():
            assert read_rows(table, snapshot).sort_by("id").to_pylist() == shown
        for snapshot in state.ancestry(state.head()):
            if snapshot.id not in self.seen:
                self.seen[snapshot.id] = read_rows(table, snapshot.id).sort_by("id").to_pylist()
        newest = state.snapshot(state.head() or 0)
        if newest.schema_id == state.raw["current-schema-id"]:
            assert self.seen[newest.id] == self.model.shown()


ACTS = ("append", "delete", "add", "rename", "drop", "promote", "relax", "reorder")


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(acts=st.lists(st.sampled_from(("append", *ACTS)), min_size=4, max_size=12), data=st.data())
def test_history_stays_true_and_evolution_loses_nothing(
    acts: list[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "thermocline.toml").write_text(SETTINGS)
        story = Story(Lake(load_settings(project, environ=clean_environment())), data)
        story.evolve()
        story.append()
        story.verify()
        for act in acts:
            getattr(story, act)()
            story.verify()
        story.append()
        story.verify()
