"""Apply a contract's schema changes to its table: metadata only, no row is rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from thermocline.contract import schema_changes as kinds
from thermocline.lake import schema as schemas

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema


def apply_changes(transaction: Transaction, changes: Iterable[kinds.SchemaChange]) -> None:
    """Add all changes to one transaction, which the caller commits."""
    for new_columns, group in groupby(changes, _is_new_column):
        if new_columns:
            with transaction.update_schema() as update:
                for change in group:
                    _update_schema(update, change)
            continue
        for change in group:
            _apply_change(transaction, change)


def _is_new_column(change: kinds.SchemaChange) -> bool:
    """Whether a change adds a top-level column; many of these may share one update."""
    return isinstance(change, kinds.AddColumn) and len(change.path) == 1


def _apply_change(transaction: Transaction, change: kinds.SchemaChange) -> None:
    match change:
        case kinds.ChangePartitioning():
            _repartition(transaction, change)
        case kinds.ChangeSortOrder():
            _resort(transaction, change)
        case _:
            # One update each: PyIceberg resolves names in the schema at the start of an update,
            # and a change may refer to a column that the previous one renamed.
            with transaction.update_schema() as update:
                _update_schema(update, change)


def _update_schema(update: UpdateSchema, change: kinds.SchemaChange) -> None:
    match change:
        case kinds.RenameColumn(path, to):
            update.rename_column(path, to)
        case kinds.ChangeKey(_, new):
            update.set_identifier_fields(*new)
        case kinds.MakeOptional(path):
            update.update_column(path, required=False)
        case kinds.PromoteType(path, _, new_type):
            update.update_column(path, field_type=schemas.iceberg_type(new_type))
        case kinds.SetDoc(path, doc):
            update.update_column(path, doc=doc or "")
        case kinds.AddColumn(path, type_, doc):
            update.add_column(path, schemas.iceberg_type(type_), doc=doc)
        case kinds.DropColumn(path):
            update.delete_column(path)
        case kinds.ReorderColumns(path, names):
            update.move_first((*path, names[0]))
            for before, name in pairwise(names):
                update.move_after((*path, name), (*path, before))


def _repartition(transaction: Transaction, change: kinds.ChangePartitioning) -> None:
    with transaction.update_spec() as update:
        for field in change.old:
            if field not in change.new:
                update.remove_field(
                    _partition_field_name(transaction, field.column, field.transform)
                )
        for field in change.new:
            if field not in change.old:
                update.add_field(field.column, schemas.iceberg_transform(field), field.name)


def _partition_field_name(transaction: Transaction, column: str, transform: str) -> str:
    """Return the name of a partition field in the table, which another tool may have chosen."""
    metadata = transaction.table_metadata
    source = metadata.schema().find_field(column).field_id
    for field in metadata.spec().fields:
        if field.source_id == source and str(field.transform).split("[")[0] == transform:
            return str(field.name)
    raise AssertionError(f"{transform} of {column} is not in the partition spec")


def _resort(transaction: Transaction, change: kinds.ChangeSortOrder) -> None:
    from pyiceberg.transforms import IdentityTransform

    with transaction.update_sort_order() as update:
        for field in change.new:
            add = update.desc if field.descending else update.asc
            add(field.column, IdentityTransform())
