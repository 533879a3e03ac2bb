"""Whether the columns that a model reads are still the ones that it read before.

A name says little: a column may be renamed and another one added under its old name. Iceberg knows
each column, and each field of a struct, by an id; a snapshot is read in the schema that it was
written with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thermocline.lake.metadata import TableState
from thermocline.transform.models import Model


def other_columns(model: Model, state: TableState, since: int, now: int) -> list[str]:
    """The columns of a source that are others, or of another type, than when it was last read.

    Columns that the model cannot read are left out; of a Python model any may be read.
    """
    before, after = _schema(state, since), _schema(state, now)
    if before is None or after is None:
        return ["its columns, which are not known,"]
    if before["schema-id"] == after["schema-id"]:
        return []
    was, is_now = dict(_fields(before)), dict(_fields(after))
    read = _read(model, [*_names(before), *_names(after)])
    gone = [path for path, field in was.items() if is_now.get(path) != field]
    return [".".join(path) for path in gone if path[0] in read]


def _schema(state: TableState, snapshot: int) -> Mapping[str, Any] | None:
    found = state.snapshots.get(snapshot)
    if found is None:
        return None
    if found.schema_id is None:  # of a writer that leaves it out
        return state.schema if len(state.raw["schemas"]) == 1 else None
    return state.schema_of(found.schema_id)


def _names(schema: Mapping[str, Any]) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def _read(model: Model, available: list[str]) -> set[str]:
    if not model.is_sql:
        return {name.lower() for name in available}
    from thermocline.transform import impact

    return {name.lower() for name in impact.columns_read(model.query(), available)}


_Path = tuple[str, ...]


def _fields(kind: Mapping[str, Any], path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Every field in a type by its path, with its id and, where it is a value, its type."""
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                yield from _field((*path, field["name"].lower()), field["id"], field["type"])
        case "list":
            yield from _field((*path, "element"), kind["element-id"], kind["element"])
        case "map":
            yield from _field((*path, "key"), kind["key-id"], kind["key"])
            yield from _field((*path, "value"), kind["value-id"], kind["value"])


def _field(path: _Path, number: int, kind: Any) -> Iterator[tuple[_Path, Any]]:
    nested = isinstance(kind, Mapping)
    yield path, (number, kind["type"] if nested else kind)
    if nested:
        yield from _fields(kind, path)
