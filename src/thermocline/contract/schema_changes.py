"""Schema changes that bring a table's shape to its contract, as values.

A path names a column or a part of it: ("items", "element", "price"). A path is valid when its
change is applied, after all changes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from thermocline.contract.definition import Column, PartitionField, SortField, TableShape
from thermocline.contract.types import Field, List, Map, Struct, Type

FieldPath = tuple[str, ...]
_Members = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class RenameColumn:
    """Rename a column; its values and its role in key and partitioning stay."""

    path: FieldPath
    to: str

    def __str__(self) -> str:
        return f"rename {_join_path(self.path)} to {self.to}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        *parent, old = self.path
        shape = _edit_member(shape, self.path, lambda member: replace(member, name=self.to))
        if parent:
            return shape

        def rename(name: str) -> str:
            return self.to if name == old else name

        return replace(
            shape,
            key=tuple(rename(name) for name in shape.key),
            partition=tuple(replace(p, column=rename(p.column)) for p in shape.partition),
            sort=tuple(replace(s, column=rename(s.column)) for s in shape.sort),
        )


@dataclass(frozen=True)
class MakeOptional:
    """Allow nulls in a required column."""

    path: FieldPath

    def __str__(self) -> str:
        return f"allow nulls in {_join_path(self.path)}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return _edit_member(shape, self.path, lambda member: replace(member, required=False))


@dataclass(frozen=True)
class PromoteType:
    """Widen a type without changing any value."""

    path: FieldPath
    old: Type
    new: Type

    def __str__(self) -> str:
        return f"widen {_join_path(self.path)}: {self.old} → {self.new}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return _edit_member(shape, self.path, lambda member: replace(member, type=self.new))


@dataclass(frozen=True)
class SetDoc:
    """Change or remove the description of a column."""

    path: FieldPath
    doc: str | None

    def __str__(self) -> str:
        return f"describe {_join_path(self.path)}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return _edit_member(shape, self.path, lambda member: replace(member, doc=self.doc))


@dataclass(frozen=True)
class AddColumn:
    """Add an optional column, at the end of its table or struct."""

    path: FieldPath
    type: Type
    doc: str | None = None

    def __str__(self) -> str:
        return f"add {_join_path(self.path)} {self.type}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        kind = Field if len(self.path) > 1 else Column
        member = kind(self.path[-1], self.type, doc=self.doc)
        return _edit_members(shape, self.path[:-1], lambda members: (*members, member))


@dataclass(frozen=True)
class DropColumn:
    """Remove a column. Earlier snapshots still have it."""

    path: FieldPath

    def __str__(self) -> str:
        return f"drop {_join_path(self.path)}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        name = self.path[-1]
        return _edit_members(
            shape, self.path[:-1], lambda members: tuple(m for m in members if m.name != name)
        )


@dataclass(frozen=True)
class ReorderColumns:
    """Reorder the columns of the table (path ()) or the fields of a struct."""

    path: FieldPath
    names: tuple[str, ...]

    def __str__(self) -> str:
        inside = f" inside {_join_path(self.path)}" if self.path else ""
        return f"reorder{inside}: {', '.join(self.names)}"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        place = {name: index for index, name in enumerate(self.names)}
        return _edit_members(
            shape, self.path, lambda members: tuple(sorted(members, key=lambda m: place[m.name]))
        )


@dataclass(frozen=True)
class ChangeKey:
    """Change the key columns."""

    old: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        return f"key ({', '.join(self.old)}) → ({', '.join(self.new)})"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return replace(shape, key=self.new)


@dataclass(frozen=True)
class ChangePartitioning:
    """Change the partitioning of new files; existing files are not rewritten."""

    old: tuple[PartitionField, ...]
    new: tuple[PartitionField, ...]

    def __str__(self) -> str:
        return f"partition by ({_join_values(self.old)}) → ({_join_values(self.new)})"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return replace(shape, partition=self.new)


@dataclass(frozen=True)
class ChangeSortOrder:
    """Change the sort order of new files."""

    old: tuple[SortField, ...]
    new: tuple[SortField, ...]

    def __str__(self) -> str:
        old, new = (
            ", ".join(f"{s.column} desc" if s.descending else s.column for s in order)
            for order in (self.old, self.new)
        )
        return f"sort by ({old}) → ({new})"

    def apply(self, shape: TableShape) -> TableShape:
        """Return the shape after the change."""
        return replace(shape, sort=self.new)


SchemaChange = (
    RenameColumn
    | ChangeKey
    | MakeOptional
    | PromoteType
    | SetDoc
    | AddColumn
    | ChangePartitioning
    | ChangeSortOrder
    | DropColumn
    | ReorderColumns
)
# Order of application: renames first, so that all other changes use the new names; the key before
# its former columns allow nulls; columns before partitioning and sort order that use them; and
# partitioning and sort order before the columns that they used are dropped.
APPLY_ORDER: tuple[type[SchemaChange], ...] = (
    RenameColumn,
    ChangeKey,
    MakeOptional,
    PromoteType,
    SetDoc,
    AddColumn,
    ChangePartitioning,
    ChangeSortOrder,
    DropColumn,
    ReorderColumns,
)


def apply_changes(changes: Iterable[SchemaChange], shape: TableShape) -> TableShape:
    """Return the shape after all changes, in order."""
    for change in changes:
        shape = change.apply(shape)
    return shape


def _join_path(path: FieldPath) -> str:
    return ".".join(path)


def _join_values(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


def _edit_members(shape: TableShape, path: FieldPath, edit: _Members) -> TableShape:
    """Return the shape with the columns, or the fields of the struct at a path, edited."""
    if not path:
        return replace(shape, columns=edit(shape.columns))

    def struct(type_: Type) -> Type:
        assert isinstance(type_, Struct), f"{_join_path(path)} is {type_}, not a struct"
        return Struct(edit(type_.fields))

    return _edit_column_type(shape, path, struct)


def _edit_column_type(
    shape: TableShape, path: FieldPath, edit: Callable[[Type], Type]
) -> TableShape:
    columns = tuple(
        replace(column, type=_edit_type(column.type, path[1:], edit))
        if column.name == path[0]
        else column
        for column in shape.columns
    )
    return replace(shape, columns=columns)


def _edit_type(type_: Type, path: FieldPath, edit: Callable[[Type], Type]) -> Type:
    if not path:
        return edit(type_)
    match type_:
        case Struct(fields):
            return Struct(
                tuple(
                    replace(f, type=_edit_type(f.type, path[1:], edit)) if f.name == path[0] else f
                    for f in fields
                )
            )
        case List():
            return replace(type_, element=_edit_type(type_.element, path[1:], edit))
        case Map():
            return replace(type_, value=_edit_type(type_.value, path[1:], edit))
    raise AssertionError(f"{type_} has nothing inside at {_join_path(path)}")


def _edit_member(shape: TableShape, path: FieldPath, edit: Callable[[Any], Any]) -> TableShape:
    """Return the shape with one member edited: a column, field, list element or map value."""
    parent, name = path[:-1], path[-1]

    def members(all_: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(edit(member) if member.name == name else member for member in all_)

    def inside(type_: Type) -> Type:
        match type_:
            case Struct(fields):
                return Struct(members(fields))
            case List(element, required):
                member = edit(Field("element", element, required))
                return List(member.type, member.required)
            case Map(key, value, required):
                member = edit(Field("value", value, required))
                return Map(key, member.type, member.required)
        raise AssertionError(f"{type_} has nothing inside at {_join_path(path)}")

    return _edit_column_type(shape, parent, inside) if parent else _edit_members(shape, (), members)
