"""Additive measures of a table, carried forward from one snapshot to the next.

The number of rows that violate a row-level rule is a sum over the rows. So the measure of a
snapshot is that of an earlier one, minus that of the removed rows, plus that of the added rows; the
files that differ contain these. Measures of a snapshot never change, so they are stored in a file
of the project, by the table's uuid; without that file the whole table is measured.

An allow-list names the additive rules. Duplicates, references, ages and custom queries are not.
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

from thermocline.check.rules import list_rules
from thermocline.config import private_files
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.types import Decimal, Primitive
from thermocline.errors import Permanent

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.lake import Lake
    from thermocline.lake.filediff import FileDiff
    from thermocline.lake.metadata import TableState

_ADDITIVE = frozenset({"missing", "accepted", "range", "length", "pattern", "row_count"})
_COMPARABLE_TYPES = frozenset(
    {"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string"}
)
"""Types whose values in data files equal the engine's values."""
_MAX_ROWS = 2_000_000
"""Most changed rows to hold in memory; with more, the whole table is measured."""
_MAX_SHARE = 0.5
"""A change of a larger share of the table's bytes costs as much as the whole table."""


@dataclass(frozen=True)
class Measures:
    """The measures of a snapshot: its number of rows, and a value for each additive rule."""

    snapshot: int
    rows: int
    values: tuple[int | None, ...]
    """One value for each of the contract's rules, in order; None if it is not additive."""
    meaning: str
    """A hash of what the values mean: rules, columns, and versions."""


def is_additive(contract: Contract, rule: Rule) -> bool:
    """Return whether a rule's measure of a table is the sum of its measures of the parts."""
    if rule.kind not in _ADDITIVE:
        return False
    kinds = [column.type for name in rule.columns if (column := contract.column(name))]
    return len(kinds) == len(rule.columns) and all(
        isinstance(kind, Decimal)
        or (isinstance(kind, Primitive) and kind.name in _COMPARABLE_TYPES)
        for kind in kinds
    )


def compute_meaning(contract: Contract, schema: int | None) -> str:
    """Hash the meaning of a contract's measures for tables of a schema."""
    columns = [(column.name, str(column.type)) for column in contract.table_columns]
    parts = [(rule.kind, rule.columns, rule.arguments) for rule in list_rules(contract)]
    text = repr((version("thermocline"), version("duckdb"), schema, columns, parts))
    return sha256(text.encode()).hexdigest()[:24]


def carry_forward(
    lake: Lake, contract: Contract, state: TableState, snapshot: int
) -> Measures | None:
    """Derive a snapshot's measures from stored ones of another snapshot and the changed rows.

    None if no stored measures are valid, or if measuring the table is less work.
    """
    kept = _load(_path(lake, state))
    means = compute_meaning(contract, state.snapshot(snapshot).schema_id)
    if kept is None or kept.meaning != means or kept.snapshot not in state.snapshots:
        return None
    if kept.snapshot == snapshot:
        return kept
    return _update_measures(lake, contract, state, kept, snapshot)


def store(
    lake: Lake,
    contract: Contract,
    state: TableState,
    snapshot: int,
    rows: int,
    values: Sequence[int | None],
) -> None:
    """Store the measures of a snapshot; they replace the stored ones."""
    if all(value is None for value in values):
        return
    means = compute_meaning(contract, state.snapshot(snapshot).schema_id)
    path = _path(lake, state)
    with suppress(OSError):  # a read-only project measures everything every time
        private_files.ensure_folder(lake.settings.project)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_json(path, asdict(Measures(snapshot, rows, tuple(values), means)))


def _path(lake: Lake, state: TableState) -> Path:
    return lake.settings.project / private_files.FOLDER / "measures" / f"{state.uuid}.json"


def _load(path: Path) -> Measures | None:
    try:
        found = json.loads(path.read_text())
        values = tuple(found.pop("values"))
        if not all(value is None or isinstance(value, int) for value in values):
            return None
        return Measures(values=values, **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _update_measures(
    lake: Lake, contract: Contract, state: TableState, kept: Measures, snapshot: int
) -> Measures | None:
    """Update stored measures to another snapshot, by the rows that differ."""
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
                count, values = _measure_rows(lake, contract, part)
                rows += sign * count
                sums = [
                    None if old is None or new is None else old + sign * new
                    for old, new in zip(sums, values, strict=True)
                ]
    except (Permanent, OSError):
        return None  # the files cannot be compared; the engine may still read them
    if rows < 0 or any(value is not None and not 0 <= value <= rows for value in sums):
        return None
    return Measures(snapshot, rows, tuple(sums), kept.meaning)


def _is_small(diff: FileDiff, table_bytes: int) -> bool:
    rows = sum(change.rows for change in diff.files)
    return rows <= _MAX_ROWS and diff.bytes <= _MAX_SHARE * table_bytes


def _measure_rows(lake: Lake, contract: Contract, rows: pa.Table) -> tuple[int, list[int | None]]:
    """Measure the additive rules of some rows."""
    from datetime import UTC, datetime

    from thermocline.check.compiler import compile_checks
    from thermocline.check.sql_builder import ROWS
    from thermocline.engine.view_rewrite import private_view_name as name_of

    every = list_rules(contract)
    additive = [rule for rule in every if is_additive(contract, rule)]
    name, connection = name_of("measured"), lake.duck.connection
    compiled = compile_checks(
        contract, name, {}, lake.duck.dialect, datetime.now(UTC), only=additive
    )
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
