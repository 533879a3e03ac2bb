"""Change several tables in one catalog transaction: all of them, or none.

A SQL catalog has one row for each table. A commit writes each table's new metadata file
(`metadata_updates`) and then swaps all rows by compare-and-set in one SQL transaction. A REST
catalog has an endpoint for it.

A transaction has three outcomes. Landed: return. Not landed: CommitConflict, and the staged files
are removed. Unknown (the connection broke during the commit): the pointers are read again, and the
staged files stay where they are. If the pointers did not move, raise CatalogUnavailable; if they
cannot be read, raise CommitUnknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    Permanent,
    ThermoclineError,
)
from thermocline.lake import metadata_cleanup, metadata_updates, ref_guard
from thermocline.lake.catalog import catalog_errors, no_such_table_error
from thermocline.lake.crash_points import crash_point
from thermocline.lake.metadata_files import (
    RawMetadata,
    cache_json,
    read_metadata,
    read_raw_metadata,
)
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from sqlalchemy.orm import Session

SessionWriter: TypeAlias = "Callable[[Session], None]"
"""Writes rows to the catalog's database in the transaction that moves the pointers."""


@dataclass(frozen=True)
class TableChange:
    """The updates of one table, and the requirements that must hold when they are committed."""

    table: str
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class PointerMoved(CommitConflict):
    """Another process committed to one of the tables meanwhile; our requirements may still hold."""


def commit_all(
    catalog: Catalog, changes: Sequence[TableChange], write_rows: SessionWriter | None = None
) -> None:
    """Apply all changes at once, or raise an error and apply none.

    On a SQL catalog the rows of `write_rows` are in the same transaction: both land, or neither.
    """
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog

    if not isinstance(catalog, SqlCatalog | RestCatalog):
        raise Permanent(
            f"A {type(catalog).__name__} cannot change several tables at once.",
            "Use a SQLite, PostgreSQL or REST catalog.",
        )
    for attempt in retry_on(PointerMoved):
        with attempt:
            if isinstance(catalog, SqlCatalog):
                _commit_swaps(catalog, _stage_all(catalog, changes), write_rows)
            else:
                assert write_rows is None, "a REST catalog gives us no database"
                _require_and_post(catalog, changes)


def commit_once_sql(
    catalog: SqlCatalog, table: Table, change: TableChange, write_rows: SessionWriter
) -> None:
    """Change a table of a SQL catalog in one attempt, if it has not changed since loading.

    The rows of `write_rows` are in the same SQL transaction: both land, or neither. It may abort
    the commit by raising CommitConflict.
    """
    _commit_swaps(catalog, [_stage(catalog, change, table.metadata_location)], write_rows)


def commit_unchanged_sql(
    catalog: SqlCatalog,
    changes: Sequence[TableChange],
    pointers: Mapping[str, str],
    write_rows: SessionWriter | None,
) -> None:
    """Change tables of a SQL catalog in one attempt, if none has changed since its pointer.

    `pointers` are metadata files by table: any commit meanwhile, also one that only made a tag,
    raises PointerMoved. There is one change for each table.
    """
    swaps: list[_Swap] = []
    try:
        for change in changes:
            swaps.append(_stage(catalog, change, pointers[change.table]))
    except ThermoclineError:
        _unstage(swaps)
        raise
    _commit_swaps(catalog, swaps, write_rows)


def commit_once_rest(catalog: RestCatalog, change: TableChange) -> None:
    """Change a table of a REST catalog in one attempt, provided that the requirements hold."""
    _post(catalog, [change])


def replace_metadata(catalog: Catalog, table: Table, raw: dict[str, Any]) -> None:
    """Replace a table's whole metadata in a SQL catalog, in one attempt.

    Raise PointerMoved when another process committed meanwhile.
    """
    from pyiceberg.catalog.sql import SqlCatalog

    if not isinstance(catalog, SqlCatalog):
        raise Permanent(
            f"A {type(catalog).__name__} keeps the metadata of its tables itself.",
            "Repair the table with the tools of that catalog.",
        )
    name, pointer = ".".join(table.name()), table.metadata_location
    _commit_swaps(catalog, [_write_metadata(catalog, name, pointer, table.io, raw, raw)])


def load(catalog: Catalog, table: str) -> Table:
    """Load a table's current state. Its snapshots are parsed on access."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Table

    from thermocline.lake.pyiceberg_internals import load_table_io

    try:
        with catalog_errors(_catalog_type(catalog)):
            if not isinstance(catalog, SqlCatalog):
                return catalog.load_table(table)
            pointer = _read_pointer(catalog, table)
            metadata = read_metadata(load_table_io(catalog, pointer), pointer)
            io = load_table_io(catalog, pointer, metadata.properties)
            return Table(tuple(table.split(".", 1)), metadata, pointer, io, catalog)
    except NoSuchTableError as error:
        raise no_such_table_error(table) from error


def _catalog_type(catalog: Catalog) -> str:
    """Return the catalog's type by its name in the settings."""
    engine = getattr(catalog, "engine", None)
    if engine is None:
        return "rest"
    return "sqlite" if engine.dialect.name == "sqlite" else "postgres"


@dataclass(frozen=True)
class _Swap:
    """A table's old and new pointer, and the metadata of both."""

    table: str
    old: str
    new: str
    io: FileIO
    before: RawMetadata
    after: RawMetadata


def _commit_swaps(
    catalog: SqlCatalog, swaps: Sequence[_Swap], write_rows: SessionWriter | None = None
) -> None:
    crash_point("publish.staged")
    try:
        with catalog_errors(_catalog_type(catalog)):
            _update_rows(catalog, swaps, write_rows)
    except CommitConflict:
        _unstage(swaps)
        raise
    except CatalogUnavailable as error:
        _resolve_unknown(catalog, swaps, error)
    crash_point("publish.swapped")
    for swap in swaps:
        metadata_cleanup.delete_unreferenced(swap.io, swap.before, swap.after)


def _stage_all(catalog: SqlCatalog, changes: Sequence[TableChange]) -> list[_Swap]:
    """Write all new metadata files, or remove the written ones on an error."""
    swaps: list[_Swap] = []
    try:
        for change in changes:
            with catalog_errors(_catalog_type(catalog)):
                pointer = _read_pointer(catalog, change.table)
            swaps.append(_stage(catalog, change, pointer))
            crash_point("publish.staging")
    except ThermoclineError:
        _unstage(swaps)
        raise
    return swaps


def _stage(catalog: SqlCatalog, change: TableChange, pointer: str) -> _Swap:
    """Write the metadata file that follows the one at a table's pointer."""
    from thermocline.lake.pyiceberg_internals import load_table_io

    with catalog_errors(_catalog_type(catalog)):
        io = load_table_io(catalog, pointer)
        raw = read_raw_metadata(io, pointer)
        _check_requirements(read_metadata(io, pointer), change)
        new = metadata_updates.apply_updates(change.table, raw, pointer, change.updates)
        return _write_metadata(catalog, change.table, pointer, io, raw, new)


def _write_metadata(
    catalog: SqlCatalog,
    table: str,
    pointer: str,
    io: FileIO,
    before: RawMetadata,
    after: dict[str, Any],
) -> _Swap:
    from pyiceberg.table.locations import load_location_provider

    from thermocline.lake.pyiceberg_internals import next_metadata_number

    provider = load_location_provider(after["location"], after.get("properties") or {})
    number = next_metadata_number(catalog, pointer)
    location = provider.new_table_metadata_file_location(number)
    content = metadata_updates.dump(after)
    with io.new_output(location).create() as stream:
        stream.write(content)
    cache_json(location, after, len(content))
    return _Swap(table, pointer, location, io, before, after)


def _read_pointer(catalog: SqlCatalog, table: str) -> str:
    """Return the location of a table's current metadata file."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    with Session(catalog.engine) as session:
        found = session.scalar(
            select(IcebergTables.metadata_location).where(*_row_filter(catalog, table))
        )
    if found is None:
        raise no_such_table_error(table)
    return str(found)


def _row_filter(catalog: SqlCatalog, table: str) -> tuple[Any, ...]:
    from pyiceberg.catalog.sql import IcebergTables

    namespace, name = table.split(".", 1)
    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == name,
    )


def _check_requirements(current: TableMetadata, change: TableChange) -> None:
    from pyiceberg.exceptions import CommitFailedException

    try:
        for requirement in change.requirements:
            requirement.validate(current)
        for update in change.updates:
            if update.action == "add-snapshot":
                metadata_updates.require_next_sequence(change.table, update.snapshot, current)
    except CommitFailedException as error:
        raise CommitConflict(
            f"{change.table} was changed by another process: {error}",
            "Nothing was published. Run again to work from the new state.",
            table=change.table,
        ) from error


def _update_rows(
    catalog: SqlCatalog, swaps: Sequence[_Swap], write_rows: SessionWriter | None
) -> None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import update
    from sqlalchemy.orm import Session

    with Session(catalog.engine) as session:
        if write_rows is not None:
            write_rows(session)
        # One order for all processes, so that transactions cannot deadlock.
        for swap in sorted(swaps, key=lambda swap: swap.table):
            result: Any = session.execute(
                update(IcebergTables)
                .where(
                    *_row_filter(catalog, swap.table), IcebergTables.metadata_location == swap.old
                )
                .values(metadata_location=swap.new, previous_metadata_location=swap.old)
            )
            if result.rowcount != 1:
                raise PointerMoved(
                    f"{swap.table} was changed while committing.",
                    "Other processes commit to it continuously; run again when they are done.",
                    table=swap.table,
                )
        crash_point("publish.swapping")
        session.commit()


def _unstage(swaps: Sequence[_Swap]) -> None:
    for swap in swaps:
        swap.io.delete(swap.new)


def _resolve_unknown(
    catalog: SqlCatalog, swaps: Sequence[_Swap], error: CatalogUnavailable
) -> None:
    """Read the pointers after a broken commit, to decide whether it landed."""
    try:
        with catalog_errors(_catalog_type(catalog)):
            landed = [_has_landed_sql(_read_pointer(catalog, swap.table), swap) for swap in swaps]
    except CatalogUnavailable:
        raise CommitUnknown(
            f"It is not known whether the commit landed. {error.cause}",
            "Nothing was deleted. When the catalog is back, run again: it checks before it writes.",
            tables=[swap.table for swap in swaps],
        ) from error
    if not any(landed):
        # The staged files stay: a server that lost the connection may still finish the commit.
        raise error


def _has_landed_sql(pointer: str, swap: _Swap) -> bool:
    """Whether our metadata file is in a table's history; later commits may be on top of it."""
    log = read_raw_metadata(swap.io, pointer).get("metadata-log") or ()
    return swap.new in {pointer, *(entry["metadata-file"] for entry in log)}


def _require_and_post(catalog: RestCatalog, changes: Sequence[TableChange]) -> None:
    guarded = []
    for change in changes:
        current = load(catalog, change.table).metadata
        _check_requirements(current, change)
        expired = set(ref_guard.referenced_snapshots(change).values())
        expired.difference_update(each.snapshot_id for each in current.snapshots)
        if expired:
            raise CommitConflict(
                f"{change.table} has no snapshot {min(expired)} any more: it expired.",
                "Run again.",
                table=change.table,
            )
        guarded.append(ref_guard.guard_refs(change, current))
    _post(catalog, guarded)


def _post(catalog: RestCatalog, changes: Sequence[TableChange]) -> None:
    from pyiceberg.table import CommitTableRequest, Namespace, TableIdentifier
    from requests import RequestException

    from thermocline.lake import pyiceberg_internals

    requests = [
        CommitTableRequest(
            identifier=TableIdentifier(
                namespace=Namespace([change.table.split(".", 1)[0]]),
                name=change.table.split(".", 1)[1],
            ),
            requirements=change.requirements,
            updates=change.updates,
        ).model_dump_json()
        for change in changes
    ]
    if len(requests) == 1:
        # Every REST catalog has this endpoint; the endpoint for several tables is optional.
        namespace, name = changes[0].table.split(".", 1)
        path, body = f"namespaces/{namespace}/tables/{name}", requests[0]
    else:
        path, body = "transactions/commit", f'{{"table-changes": [{", ".join(requests)}]}}'
    crash_point("publish.swapping")
    try:
        response = pyiceberg_internals.post(catalog, path, body.encode())
    except RequestException as error:
        _resolve_unknown_rest(catalog, changes, str(error))
        return
    if response.status_code == 409:
        raise PointerMoved("A table was changed while committing.", "Run again.")
    if response.status_code >= 500:
        _resolve_unknown_rest(catalog, changes, f"the catalog answered {response.status_code}")
        return
    if not response.ok:
        raise Permanent(
            f"The REST catalog refused {path} with {response.status_code}.",
            "Publishing several tables at once needs its endpoint transactions/commit.",
        )
    crash_point("publish.swapped")


def _resolve_unknown_rest(catalog: Catalog, changes: Sequence[TableChange], reason: str) -> None:
    try:
        missing = [change for change in changes if not _has_landed_rest(catalog, change)]
    except CatalogUnavailable:
        raise CommitUnknown(
            f"It is not known whether the commit landed: {reason}",
            "Nothing was deleted. When the catalog is back, run again: it checks before it writes.",
            tables=[change.table for change in changes],
        ) from None
    if missing:
        raise CatalogUnavailable(
            f"The commit did not land: {reason}", "Check the catalog server and run again."
        )


def _has_landed_rest(catalog: Catalog, change: TableChange) -> bool:
    """Whether the table's refs already have the values of a change."""
    refs = load(catalog, change.table).metadata.refs
    for update in change.updates:
        if update.action == "set-snapshot-ref":
            found = refs.get(update.ref_name)
            if found is None or found.snapshot_id != update.snapshot_id:
                return False
        if update.action == "remove-snapshot-ref" and update.ref_name in refs:
            return False
    return True
