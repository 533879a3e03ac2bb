"""Measures of a table that add up over its rows, carried from one snapshot to the next.

How many rows break a rule about single rows is a sum over the rows. So the measure of a snapshot is
that of an earlier one, less that of the rows that are gone, plus that of those that came; and these
are found by the files that differ. What was measured of a snapshot never changes, so it is kept in
a file of the project, by the table's uuid; without that file the table is measured as a whole.

Which rules add up is an allow-list. Duplicates, references, ages and custom queries do not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.check.rules import rules
from thermocline.config import private_files
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.types import Decimal, Primitive
from thermocline.errors import Permanent

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake
    from thermocline.lake.filediff import FileDiff
    from thermocline.lake.metadata import TableState

_ADDING = frozenset({"missing", "accepted", "range", "length", "pattern", "row_count"})
_PLAIN = frozenset(
    {"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"}
)
"""Types that rows out of single files have as the engine has them."""
_MOST_ROWS = 2_000_000
"""So many changed rows are held in memory; of more the whole table is measured."""
_SHARE = 0.5
"""A change of more than this share of the table's bytes is no less work than the table."""


@dataclass(frozen=True)
class Measures:
    """What was measured of a snapshot: its rows, and a value for each rule that adds up."""

    snapshot: int
    rows: int
    values: tuple[int | None, ...]
    """One for each of the contract's rules, in their order; None where it does not add up."""
    meaning: str
    """What the values were measured by: rules, columns, and the version that measured."""


def adds_up(contract: Contract, rule: Rule) -> bool:
    """Whether a rule's measure of a table is the sum of its measures of the table's parts."""
    if rule.kind not in _ADDING:
        return False
    kinds = [column.type for name in rule.columns if (column := contract.column(name))]
    return len(kinds) == len(rule.columns) and all(
        isinstance(kind, Decimal) or (isinstance(kind, Primitive) and kind.name in _PLAIN)
        for kind in kinds
    )


def meaning(contract: Contract, schema: int | None) -> str:
    """What a contract's rules measure in tables of a schema, in a few characters."""
    columns = [(column.name, str(column.type)) for column in contract.table_columns]
    asked = [(rule.kind, rule.columns, rule.arguments) for rule in rules(contract)]
    text = repr((version("thermocline"), version("duckdb"), schema, columns, asked))
    return sha256(text.encode()).hexdigest()[:24]


def carried(lake: Lake, contract: Contract, state: TableState, snapshot: int) -> Measures | None:
    """The measures of a snapshot, from those that were kept of another one and the rows between.

    None where nothing was kept that still counts, or where measuring the table is less work.
    """
    kept = _read(_path(lake, state))
    means = meaning(contract, state.snapshot(snapshot).schema_id)
    if kept is None or kept.meaning != means or kept.snapshot not in state.snapshots:
        return None
    if kept.snapshot == snapshot:
        return kept
    return _moved(lake, contract, state, kept, snapshot)


def keep(
    lake: Lake,
    contract: Contract,
    state: TableState,
    snapshot: int,
    rows: int,
    values: Sequence[int | None],
) -> None:
    """Keep what was measured of a snapshot, in the place of what was kept before."""
    if all(value is None for value in values):
        return
    means = meaning(contract, state.snapshot(snapshot).schema_id)
    path = _path(lake, state)
    with suppress(OSError):  # in a project that cannot be written to all is measured each time
        private_files.ensure_folder(lake.settings.project)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_json(path, asdict(Measures(snapshot, rows, tuple(values), means)))


def _path(lake: Lake, state: TableState) -> Path:
    return lake.settings.project / private_files.FOLDER / "measures" / f"{state.uuid}.json"


def _read(path: Path) -> Measures | None:
    try:
        found = json.loads(path.read_text())
        values = tuple(found.pop("values"))
        if not all(value is None or isinstance(value, int) for value in values):
            return None
        return Measures(values=values, **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _moved(
    lake: Lake, contract: Contract, state: TableState, kept: Measures, snapshot: int
) -> Measures | None:
    """Measures at another snapshot, by the rows that differ."""
    from thermocline.lake import filediff, read_schema
    from thermocline.lake.changes import MAX_GROUP_ROWS
    from thermocline.lake.data_file_reader import DataFileReader

    if state.snapshot(kept.snapshot).schema_id != state.snapshot(snapshot).schema_id:
        return None
    table = lake.iceberg(contract.table)
    try:
        diff = filediff.compare(table, kept.snapshot, snapshot)
        if not _is_small(diff, state.snapshot(snapshot).count("total-files-size")):
            return None
        schema = read_schema.comparison_schema(read_schema.schema_at(table, snapshot))
        reader = DataFileReader(table, schema)
        rows, sums = kept.rows, list(kept.values)
        for group in diff.groups(MAX_GROUP_ROWS):
            for sign, part in zip((-1, 1), reader.difference(group), strict=True):
                count, values = _measured(lake, contract, part)
                rows += sign * count
                sums = [
                    None if old is None or new is None else old + sign * new
                    for old, new in zip(sums, values, strict=True)
                ]
    except (Permanent, OSError):
        return None  # files that cannot be compared; the engine may read them all the same
    if rows < 0 or any(value is not None and not 0 <= value <= rows for value in sums):
        return None
    return Measures(snapshot, rows, tuple(sums), kept.meaning)


def _is_small(diff: FileDiff, table_bytes: int) -> bool:
    rows = sum(change.rows for change in diff.files)
    return rows <= _MOST_ROWS and diff.bytes <= _SHARE * table_bytes


def _measured(lake: Lake, contract: Contract, rows: pa.Table) -> tuple[int, list[int | None]]:
    """What the rules that add up measure of some rows."""
    from datetime import UTC, datetime

    from thermocline.check.compiler import compile
    from thermocline.check.sql_builder import ROWS
    from thermocline.engine.view_rewrite import private_view_name as name_of

    every = rules(contract)
    adding = [rule for rule in every if adds_up(contract, rule)]
    name, connection = name_of("measured"), lake.duck.connection
    compiled = compile(contract, name, {}, lake.duck.dialect, datetime.now(UTC), only=adding)
    connection.register(name, rows)
    try:
        (row,) = lake.duck.query(compiled.sql).to_pylist()
    finally:
        connection.unregister(name)
    measured: dict[int, Any] = {
        id(rule): row[alias] for rule, alias in zip(compiled.rules, compiled.aliases, strict=True)
    }
    return int(row[ROWS]), [
        int(measured[id(rule)]) if id(rule) in measured else None for rule in every
    ]
