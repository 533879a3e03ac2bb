"""Detect whether the columns that a model reads have changed since its last run.

A name is not enough: a column may be renamed and another one added under its old name. Iceberg
identifies each column, and each field of a struct, by an id. A snapshot is read in the schema that
it was written with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thermocline.lake.metadata import TableState
from thermocline.transform.models import Model


def changed_columns(model: Model, state: TableState, since: int, now: int) -> list[str]:
    """Return a source's columns that were replaced, or changed type, since it was last read.

    Columns that the model does not read are ignored. A Python model may read any column.
    """
    before, after = _find_schema(state, since), _find_schema(state, now)
    if before is None or after is None:
        return ["its columns, which are not known,"]
    if before["schema-id"] == after["schema-id"]:
        return []
    old, new = dict(_walk_fields(before)), dict(_walk_fields(after))
    read = _find_columns_read(model, [*_column_names(before), *_column_names(after)])
    changed = [path for path, field in old.items() if new.get(path) != field]
    return [".".join(path) for path in changed if path[0] in read]


def _find_schema(state: TableState, snapshot: int) -> Mapping[str, Any] | None:
    found = state.snapshots.get(snapshot)
    if found is None:
        return None
    if found.schema_id is None:  # some writers omit it
        return state.schema if len(state.raw["schemas"]) == 1 else None
    return state.schema_of(found.schema_id)


def _column_names(schema: Mapping[str, Any]) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def _find_columns_read(model: Model, available: list[str]) -> set[str]:
    if not model.is_sql:
        return {name.lower() for name in available}
    from thermocline.transform import impact

    return {name.lower() for name in impact.find_columns_read(model.query(), available)}


_Path = tuple[str, ...]


def _walk_fields(kind: Mapping[str, Any], path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield every field of a type by its path, with its id and, for a primitive, its type."""
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                yield from _walk_field((*path, field["name"].lower()), field["id"], field["type"])
        case "list":
            yield from _walk_field((*path, "element"), kind["element-id"], kind["element"])
        case "map":
            yield from _walk_field((*path, "key"), kind["key-id"], kind["key"])
            yield from _walk_field((*path, "value"), kind["value-id"], kind["value"])


def _walk_field(path: _Path, number: int, kind: Any) -> Iterator[tuple[_Path, Any]]:
    nested = isinstance(kind, Mapping)
    yield path, (number, kind["type"] if nested else kind)
    if nested:
        yield from _walk_fields(kind, path)
