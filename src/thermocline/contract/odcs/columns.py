"""Parse the columns of a contract: names, types, key and partitioning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thermocline.contract.definition import INGEST_COLUMNS, SCD2_COLUMNS, Column, PartitionField
from thermocline.contract.identifiers import check_column_name
from thermocline.contract.odcs.custom_properties import CustomSetting, read_settings
from thermocline.contract.odcs.property_types import UNKNOWN, read_type
from thermocline.contract.problems import DocumentPath, ProblemReport, did_you_mean, quote

if TYPE_CHECKING:
    from open_data_contract_standard.model import SchemaObject, SchemaProperty

_SYSTEM_COLUMNS = {column.name: column for column in (*INGEST_COLUMNS, *SCD2_COLUMNS)}
_TRANSFORM = re.compile(r"([a-z]+)(?:[\[(]([0-9]{1,10})[\])])?")
TRANSFORMS = ("identity", "year", "month", "day", "hour", "bucket", "truncate")


@dataclass
class ColumnLayout:
    """Columns, key and partitioning of a schema. `places` has the position of each column."""

    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ()
    partition: tuple[PartitionField, ...] = ()
    places: dict[str, DocumentPath] = field(default_factory=dict)


def read_layout(schema: SchemaObject, at: DocumentPath, report: ProblemReport) -> ColumnLayout:
    """Return the columns, the key and the partitioning."""
    layout = ColumnLayout()
    keys: list[tuple[int, str]] = []
    partitions: list[tuple[int, PartitionField]] = []
    for index, entry in enumerate(schema.properties or ()):
        place = (*at, "properties", index)
        settings = read_settings(entry.customProperties, place, entry.name or "", "column", report)
        column = _read_column(entry, settings, place, layout, report)
        if column is None:
            continue
        partition = _read_partition(entry, settings.get("transform"), column, place, report)
        if partition is not None:
            position = _sort_position(entry.partitionKeyPosition, index)
            partitions.append((position, partition))
        if entry.primaryKey:
            keys.append((_sort_position(entry.primaryKeyPosition, index), column.name))
        elif (entry.primaryKeyPosition or 0) > 0:
            where = (*place, "primaryKeyPosition")
            report.add(where, column.name, "primaryKeyPosition without primaryKey: true")
    if not schema.properties:
        report.add_missing(
            at, schema.name or "schema", "has no columns", "list them under properties"
        )
    _refuse_same_position(keys, "primaryKeyPosition", layout, report)
    names = [(position, partition.column) for position, partition in partitions]
    _refuse_same_position(names, "partitionKeyPosition", layout, report)
    layout.key = tuple(name for _, name in sorted(keys, key=_position_of))
    layout.partition = tuple(partition for _, partition in sorted(partitions, key=_position_of))
    return layout


def _position_of(pair: tuple[int, object]) -> int:
    return pair[0]


def _sort_position(written: int | None, index: int) -> int:
    # Columns with a position come first, then the others in their order in the file.
    return written if written is not None and written > 0 else 1_000_000 + index


def _refuse_same_position(
    positions: Iterable[tuple[int, str]], key: str, layout: ColumnLayout, report: ProblemReport
) -> None:
    seen: dict[int, str] = {}
    for position, name in positions:
        if position in seen:
            place = (*layout.places[name], key)
            report.add(place, name, f"{key} {position} is also that of {seen[position]}")
        seen.setdefault(position, name)


def _read_column(
    entry: SchemaProperty,
    settings: Mapping[str, CustomSetting],
    at: DocumentPath,
    layout: ColumnLayout,
    report: ProblemReport,
) -> Column | None:
    name, renamed = entry.name, settings.get("renamedFrom")
    if name is None:
        report.add_missing(at, "schema", "the column has no name")
        return None
    flaw = check_column_name(name)
    if flaw:
        report.add_broken((*at, "name"), name, *flaw)
        return None
    twin = next((c.name for c in layout.columns if c.name.lower() == name.lower()), None)
    if twin is not None:
        report.add((*at, "name"), name, "the column is defined twice", f"the other is {twin}")
        return None
    _refuse_unsupported(entry, at, name, report)
    if renamed and not isinstance(renamed.value, str):
        report.add(renamed.at, name, "renamedFrom must be the column's old name")
    column = Column(
        name,
        read_type(entry, at, name, report),
        required=bool(entry.required),
        doc=(entry.description or "").strip() or None,
        classification=entry.classification,
        renamed_from=renamed.value if renamed and isinstance(renamed.value, str) else None,
        load_time=_read_load_time(settings.get("loadTime"), name, report),
        line=report.line_of(at),
    )
    _check_system_column(column, at, report)
    layout.columns.append(column)
    layout.places[name] = at
    return column


def _read_load_time(setting: CustomSetting | None, name: str, report: ProblemReport) -> bool:
    if setting is not None and not isinstance(setting.value, bool):
        report.add(setting.at, name, "loadTime must be true or false")
    return setting is not None and setting.value is True


def _refuse_unsupported(
    entry: SchemaProperty, at: DocumentPath, name: str, report: ProblemReport
) -> None:
    if entry.physicalName not in (None, name):
        hint = f"name the column {quote(entry.physicalName)} itself"
        report.add((*at, "physicalName"), name, "physicalName differs from name", hint)
    if entry.semanticType not in (None, "column", "dimension"):
        what = f"semanticType {quote(entry.semanticType)} is not a column of a table"
        report.add((*at, "semanticType"), name, what)


def _check_system_column(column: Column, at: DocumentPath, report: ProblemReport) -> None:
    system = _SYSTEM_COLUMNS.get(column.name)
    if system is None or column.type == UNKNOWN:
        return
    if column.type != system.type:
        hint = f"declare it as {system.type}, or leave it out"
        report.add(at, column.name, f"Thermocline fills this column as {system.type}", hint)
    elif system.required and not column.required:
        report.add(at, column.name, "Thermocline always fills this column", "add required: true")


def _read_partition(
    entry: SchemaProperty,
    setting: CustomSetting | None,
    column: Column,
    at: DocumentPath,
    report: ProblemReport,
) -> PartitionField | None:
    if not entry.partitioned:
        if setting:
            report.add(setting.at, column.name, "transform without partitioned: true")
        elif (entry.partitionKeyPosition or 0) > 0:
            what = "partitionKeyPosition without partitioned: true"
            report.add((*at, "partitionKeyPosition"), column.name, what)
        return None
    if setting is None:
        return PartitionField(column.name, line=column.line)
    match = _TRANSFORM.fullmatch(str(setting.value).strip().lower())
    name, param = (match[1], match[2]) if match else ("", None)
    if name not in TRANSFORMS:
        hint = did_you_mean(name, TRANSFORMS) or f"one of {', '.join(TRANSFORMS)}"
        report.add(setting.at, column.name, f"unknown transform {quote(setting.value)}", hint)
        return None
    if name in ("bucket", "truncate"):
        if param is None or not 1 <= int(param) < 2**31:
            what = f"{name} needs a number of at least 1"
            report.add(setting.at, column.name, what, f"write {name}[16]")
            return None
        return PartitionField(column.name, name, int(param), report.line_of(setting.at))
    if param is not None:
        report.add(setting.at, column.name, f"{name} takes no number")
        return None
    return PartitionField(column.name, name, line=report.line_of(setting.at))
