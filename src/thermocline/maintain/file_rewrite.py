"""Rewrite the data files of one partition into fewer, and publish them only if no row changed.

The rows of the input files are read once: position deletes and equality deletes are applied, and
each row is added to a checksum as it is read. In a table with a sort order or a z-order all rows
are sorted together. The output is read back and must have the same checksum.

Writers continue meanwhile. Rows that they delete from an input file by position are deleted from
the output in the same commit, because it is known where each row went. Equality deletes need
nothing: the output gets the sequence number of the snapshot that was read, so later ones still
apply to it. If an input file was replaced, a delete was undone or the table's layout changed, the
rewrite is discarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thermocline.errors import CommitConflict
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.crash_points import crash_point
from thermocline.lake.data_file_reader import (
    NO_POSITIONS,
    DataFileReader,
    Positions,
    deleted_positions,
)
from thermocline.lake.data_file_writer import DataFileWriter, layout_ids
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.lake.metadata import MAIN
from thermocline.lake.overwrite import write_delete_file
from thermocline.lake.row_hash import RowHasher, RowSum
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain.equality_deletes import EqualityDeletes
from thermocline.maintain.rewrite_order import open_sort
from thermocline.maintain.task import Discarded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

    from thermocline.lake import Lake

OPERATION = "compact"
MAX_COMMIT_ATTEMPTS = 20
_POSITION_BITS = 40
"""An origin is the number of the input file and, in this many bits, the position in it."""
_BLOCK_BYTES = 32 << 20
"""Bytes of rows that are hashed at once."""


@dataclass(frozen=True)
class Rewrite:
    """The data files of one partition that are to be joined.

    `target_bytes` is the size of the new files, by default the one that the table is written with.
    """

    table: str
    partition: tuple[int, Record]
    paths: frozenset[str]
    target_bytes: int | None = None


@dataclass(frozen=True)
class RewriteResult:
    """What a rewrite did. `snapshot` is the commit that published it."""

    snapshot: int
    rows: int
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    delete_files_removed: int
    carried_deletes: int


@dataclass(frozen=True)
class _Output:
    """The new files of a rewrite, their rows, and where each row comes from."""

    started_at: int
    sequence: int
    inputs: Sequence[LiveFile]
    deleted: Mapping[str, Positions]
    """The position deletes of the inputs that have been applied, by path."""
    rows: RowSum
    files: Sequence[DataFile]
    origins: Sequence[Positions]

    def moves_rows(self, rewrite: Rewrite) -> bool:
        """Whether rows are now in another partition, because the files were of an older spec."""
        partitions = {(file.spec_id or 0, file.partition) for file in self.files}
        return not partitions <= {rewrite.partition}

    def translate(self, newly: Mapping[str, Positions]) -> dict[str, Positions]:
        """Translate positions in input files to positions in output files, both by path."""
        numbers = {live.path: number for number, live in enumerate(self.inputs)}
        parts = [(numbers[path] << _POSITION_BITS) + at for path, at in newly.items() if len(at)]
        if not parts:
            return {}
        sought, found = np.concatenate(parts), {}
        for file, origins in zip(self.files, self.origins, strict=True):
            positions = np.flatnonzero(np.isin(origins, sought)).astype(np.int64)
            if len(positions):
                found[str(file.file_path)] = positions
        return found


@dataclass(frozen=True)
class _Deletes:
    """What happens to delete files in the commit of a rewrite."""

    carried: Sequence[DataFile]
    removed: Sequence[DataFile]


def rewrite_files(lake: Lake, rewrite: Rewrite) -> RewriteResult:
    """Join files of a partition of main. Raises Discarded when they changed meanwhile."""
    table = lake.iceberg(rewrite.table)
    head = _main(table)
    inputs = _find_inputs(table, head, rewrite)
    with open_sort(lake, table, inputs) as sorting:
        writer = DataFileWriter(table, sorting, rewrite.target_bytes)
        try:
            output = _write_output(table, head, inputs, writer)
            crash_point("maintain.files-written")
            _verify(table, output)
        except BaseException:
            writer.abandon()
            raise
    try:
        return _commit(lake, table, rewrite, output)
    except (Discarded, CommitConflict):
        writer.abandon()
        raise
    # After any other error, an interrupt among them, the commit may have landed: then its files
    # belong to the table, and otherwise they are removed as unreferenced.


def _write_output(
    table: Table, head: int, inputs: Sequence[LiveFile], writer: DataFileWriter
) -> _Output:
    hasher, rows = RowHasher(), RowSum()
    deleted = _deleted_positions(table, inputs)
    for block, origins in _join_parts(_read_inputs(table, inputs, deleted)):
        rows += hasher.sum_of(block)
        writer.add(block, origins=origins)
    writer.close()
    snapshot = table.snapshot_by_id(head)
    assert snapshot is not None
    sequence = snapshot.sequence_number or 0
    return _Output(head, sequence, inputs, deleted, rows, writer.data_files, writer.origins)


def _read_inputs(
    table: Table, inputs: Sequence[LiveFile], deleted: Mapping[str, Positions]
) -> Iterator[tuple[pa.Table, Positions]]:
    """Yield the live rows of the input files in parts, with their origins."""
    reader, equality_deletes = DataFileReader(table, table.schema()), EqualityDeletes(table)
    for number, live in enumerate(inputs):
        gone = deleted.get(live.path, NO_POSITIONS)
        if live.equalities:
            gone = np.union1d(gone, equality_deletes.find_positions(live))
        for positions, part in reader.live_parts(live.file, gone):
            yield part, (number << _POSITION_BITS) + positions


def _join_parts(
    parts: Iterable[tuple[pa.Table, Positions]],
) -> Iterator[tuple[pa.Table, Positions]]:
    """Join small parts: hashing a block costs more than the rows of a small file."""
    import pyarrow as pa

    rows, origins, size = list[pa.Table](), list[Positions](), 0
    for part, positions in parts:
        rows.append(part)
        origins.append(positions)
        size += part.nbytes
        if size >= _BLOCK_BYTES:
            yield pa.concat_tables(rows), np.concatenate(origins)
            rows, origins, size = [], [], 0
    if rows:
        yield pa.concat_tables(rows), np.concatenate(origins)


def _main(table: Table) -> int:
    ref = table.metadata.refs.get(MAIN)
    if ref is None:
        raise Discarded("the table has no main branch")
    return int(ref.snapshot_id)


def _find_inputs(table: Table, head: int, rewrite: Rewrite) -> list[LiveFile]:
    spec, partition = rewrite.partition
    live = live_files(table, head, {spec: {partition}})
    inputs = [each for each in live if each.path in rewrite.paths]
    if len(inputs) != len(rewrite.paths):
        raise Discarded("some of its files are not in the table any more")
    return sorted(inputs, key=lambda each: (each.sequence, each.path))


def _deleted_positions(table: Table, files: Sequence[LiveFile]) -> dict[str, Positions]:
    found = deleted_positions(table.io, (frozenset(live.positions) for live in files))
    return {live.path: found[live.path] for live in files if live.path in found}


def _verify(table: Table, output: _Output) -> None:
    """Read the new files back. They must hold the rows of the old ones."""
    hasher, reader, found = RowHasher(), DataFileReader(table, table.schema()), RowSum()
    for file in output.files:
        for _, part in reader.live_parts(file, NO_POSITIONS):
            found += hasher.sum_of(part)
    if found != output.rows:
        raise Discarded(
            f"verification failed: {output.rows.rows:,} rows were read, and the new files hold"
            f" {found.rows:,}, or rows with other values"
        )


def _commit(lake: Lake, start: Table, rewrite: Rewrite, output: _Output) -> RewriteResult:
    """Publish on top of the current main, with the deletes that arrived meanwhile."""
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        table = start if attempt == 0 else lake.iceberg(rewrite.table)
        if layout_ids(table) != layout_ids(start):
            raise Discarded("the table's schema, partitioning or sort order changed meanwhile")
        head = _main(table)
        deletes = _merge_deletes(table, head, rewrite, output)
        added = [*output.files, *deletes.carried]
        removed = [*(live.file for live in output.inputs), *deletes.removed]
        change = FileChange(added, removed, rewrites=True, sequence=output.sequence)
        made = write_snapshot(table, change, head, {bookmarks.OPERATION: OPERATION})
        crash_point("maintain.before-commit")
        try:
            lake.commit(snapshot_changes(table, made, MAIN, head))
        except CommitConflict:
            made.discard()
            for file in deletes.carried:
                with suppress(OSError):
                    table.io.delete(file.file_path)
            continue
        crash_point("maintain.committed")
        return _result(made.snapshot.snapshot_id, output, deletes)
    raise Discarded(f"main moved {MAX_COMMIT_ATTEMPTS} times while it was being committed")


def _merge_deletes(table: Table, head: int, rewrite: Rewrite, output: _Output) -> _Deletes:
    """Carry deletes that are newer than the inputs over, and remove those that apply to nothing.

    Raises Discarded unless the current main has all inputs, with at least the deletes that were
    applied when they were read.
    """
    if head != output.started_at:
        _require_descendant(table, head, output.started_at)
    spec, partition = rewrite.partition
    live = {each.path: each for each in live_files(table, head, {spec: {partition}})}
    if any(path not in live for path in rewrite.paths):
        raise Discarded("some of its files were replaced meanwhile")
    now = [live[each.path] for each in output.inputs]
    newly: dict[str, Positions] = {}
    if any(a.positions != b.positions for a, b in zip(now, output.inputs, strict=True)):
        positions_now = _deleted_positions(table, now)
        for path in rewrite.paths:
            before = output.deleted.get(path, NO_POSITIONS)
            after = positions_now.get(path, NO_POSITIONS)
            if len(np.setdiff1d(before, after)):
                raise Discarded("deletes of its files were undone meanwhile")
            newly[path] = np.setdiff1d(after, before)
    for then, current in zip(output.inputs, now, strict=True):
        if not set(then.equalities) <= set(current.equalities):
            raise Discarded("equality deletes of its files were removed meanwhile")
        if set(then.equalities) != set(current.equalities) and output.moves_rows(rewrite):
            # They apply by partition, and the rows are in another one now.
            raise Discarded("equality deletes arrived for files of an older partition spec")
    applied = {delete for each in output.inputs for delete in each.equalities}
    positions = {delete for each in now for delete in each.positions}
    others = [each for path, each in live.items() if path not in rewrite.paths]
    needed = {delete for each in others for delete in each.deletes}
    removed = [
        delete for delete in (applied | positions) - needed
        if (delete.spec_id or 0, delete.partition) == rewrite.partition
        and not _applies_to_all_partitions(table, delete)
    ]  # fmt: skip
    translated = output.translate(newly)
    carried = [
        write_delete_file(table, file.partition, {path: translated[path]})
        for file in output.files
        if (path := str(file.file_path)) in translated
    ]
    return _Deletes(carried, removed)


def _require_descendant(table: Table, head: int, ancestor: int) -> None:
    """Require that main only grew: else a delete could be missing that has been applied."""
    by_id = {each.snapshot_id: each.parent_snapshot_id for each in table.metadata.snapshots}
    at: int | None = head
    while at is not None and at != ancestor:
        at = by_id.get(at)
    if at is None:
        raise Discarded("main was rolled back or replaced meanwhile")


def _applies_to_all_partitions(table: Table, delete: DataFile) -> bool:
    """Whether it is an equality delete of an unpartitioned spec in a table that has others too."""
    specs = table.specs()
    return len(specs) > 1 and specs[delete.spec_id or 0].is_unpartitioned()


def _result(snapshot: int, output: _Output, deletes: _Deletes) -> RewriteResult:
    return RewriteResult(
        snapshot=snapshot,
        rows=output.rows.rows,
        files_before=len(output.inputs),
        bytes_before=sum(live.file.file_size_in_bytes for live in output.inputs),
        files_after=len(output.files),
        bytes_after=sum(file.file_size_in_bytes for file in output.files),
        delete_files_removed=len(deletes.removed),
        carried_deletes=sum(file.record_count for file in deletes.carried),
    )
