"""Random histories of one table with maintenance, beside a model of plain Python.

A row is an id, a kind and a number. The model keeps the rows of every snapshot; after each step
every branch, tag and kept snapshot must be readable whole and hold the model's rows. Rewrites run
while another step happens between reading and committing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from thermocline.lake import Lake, refs
from thermocline.lake.data_file_reader import DataFileReader, deleted_positions
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.lake.overwrite import write_delete_file
from thermocline.lake.run_branches import is_run_branch
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain import file_rewrite
from thermocline.maintain.file_rewrite import Discarded, Rewrite, rewrite_files
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.maintenance_plan import CompactTask, plan_tables
from thermocline.maintain.maintenance_policy import MaintenancePolicy

TABLE = "silver.t"
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "kind", StringType()),
    NestedField(3, "n", LongType()),
)
Row = tuple[int, str | None, int | None]
Rows = Counter[Row]
# Small enough that a handful of rows is worth a rewrite.
POLICY = MaintenancePolicy(min_files=2, cool_down=0, max_delete_files=2)


class MaintainedTable:
    """A table, the model of its snapshots, and the steps that change both."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.random = random.Random(seed)
        self.lake = lake
        self.steps: list[str] = []
        self.rewrites: Counter[str] = Counter()
        self.expected: dict[int, Rows] = {}
        self.compared: set[int] = set()
        self._next_id = 0
        self._has_equality_deletes = False
        self._uses_equality_deletes = seed % 2
        self._reader = FileStatsReader()
        lake.catalog.create_namespace_if_not_exists("silver")
        lake.catalog.create_table(TABLE, SCHEMA)
        self._commit(FileChange(self._write([self._row() for _ in range(3)]), appends=True), [], [])
        if self.random.random() < 0.5:
            self.repartition()

    # Steps ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one random step, then compare everything."""
        acts, weights = zip(*self.choices(), strict=True)
        (act,) = self.random.choices(acts, weights)
        self.steps.append(act.__name__)
        act()
        self.compare()

    def choices(self) -> list[tuple[Callable[[], None], int]]:
        """Return the steps, each with its weight."""
        return [
            (self.append, 6), (self.delete_rows, 4), (self.replace, 1),
            (self.delete_equal, 2 * self._uses_equality_deletes),
            (self.compact, 5), (self.compact_beside, 5), (self.maintain, 2), (self.branch, 1),
            (self.tag, 1), (self.drop_ref, 1), (self.roll_back, 1), (self.repartition, 1),
            (self.evolve, 1),
        ]  # fmt: skip

    def append(self) -> None:
        """Append a few rows, in one file per partition."""
        rows = [self._row() for _ in range(self.random.randint(1, 5))]
        self._commit(FileChange(self._write(rows), appends=True), rows, [])

    def delete_rows(self) -> None:
        """Delete some rows by position deletes: one file for each data file, or for several."""
        files, taken = self.write_deletes()
        if files:
            self._commit(FileChange(files), [], taken)

    def write_deletes(self) -> tuple[list[DataFile], list[Row]]:
        """Write position deletes of some rows; return the files and the rows."""
        table, gone, taken = self._table(), {}, []
        for live in self._sample_live(table):
            if live.partition[0] != table.spec().spec_id:
                continue
            at, rows = self._live_rows(table, live)
            chosen = [number for number in range(len(rows)) if self.random.random() < 0.4]
            if chosen:
                gone[live] = np.array([at[number] for number in chosen], dtype=np.int64)
                taken += [rows[number] for number in chosen]
        by_partition: dict[Any, dict[str, Any]] = {}
        for live, positions in gone.items():
            shared = live.partition if self.random.random() < 0.5 else live.path
            by_partition.setdefault((live.partition, shared), {})[live.path] = positions
        files = [
            write_delete_file(table, partition[1], found)
            for (partition, _), found in by_partition.items()
        ]
        return files, taken

    def delete_equal(self) -> None:
        """Delete rows by equality deletes on the id, or on the kind and the number."""
        table, head = self._table(), self._head()
        rows = list(self.expected[head].elements())
        if not rows:
            return
        columns = self.random.choice([(1,), (2, 3)])
        chosen = self.random.sample(rows, min(len(rows), 2))
        keys = {tuple(row[column - 1] for column in columns) for row in chosen}
        partitions = {live.partition for live in live_files(table, head)}
        everywhere = [(i, Record()) for i, spec in table.specs().items() if spec.is_unpartitioned()]
        if everywhere and self.random.random() < 0.5:
            partitions = {everywhere[0]}  # applies to the files of all partitions
        files = [write_equality_deletes(table, each, columns, keys) for each in partitions]
        taken = [row for row in rows if tuple(row[c - 1] for c in columns) in keys]
        self._has_equality_deletes = True
        self._commit(FileChange(files), [], taken)

    def replace(self) -> None:
        """Replace a data file by other rows, as a copy-on-write update does."""
        table = self._table()
        found = self._sample_live(table)[:1]
        for live in found:
            _, old = self._live_rows(table, live)
            new = [self._row() for _ in range(self.random.randint(1, 3))]
            self._commit(FileChange(self._write(new), [live.file]), new, old)

    def compact(self) -> None:
        """Rewrite some files of one partition."""
        self.rewrite_beside(lambda: None)

    def compact_beside(self) -> None:
        """Rewrite some files while another step changes the table."""
        beside = self.random.choice([
            self.append, self.delete_rows, self.delete_rows, self.replace, self.replace,
            self.delete_equal if self._uses_equality_deletes else self.delete_rows,
            self.roll_back, self.evolve, self.repartition, self.compact,
        ])  # fmt: skip
        self.steps[-1] += f" {beside.__name__}"
        self.rewrite_beside(beside)

    def maintain(self) -> None:
        """Plan a pass, and apply all of it."""
        states = self.lake.states([TABLE])
        plan = plan_tables(self.lake, states, self._reader, POLICY)
        for task in plan.tasks:
            if isinstance(task, CompactTask):
                self._apply(task.rewrite)

    def branch(self) -> None:
        """Create a branch at some snapshot."""
        self._add_ref(tag=False)

    def tag(self) -> None:
        """Create a tag at some snapshot."""
        self._add_ref(tag=True)

    def drop_ref(self) -> None:
        """Drop a branch or tag."""
        state = self.lake.state(TABLE)
        names = [name for name in state.refs if name != "main" and not is_run_branch(name)]
        if names:
            self.lake.commit([refs.remove_ref(state, self.random.choice(names))])

    def roll_back(self) -> None:
        """Roll main back to an earlier snapshot."""
        state = self.lake.state(TABLE)
        chain = [snapshot.id for snapshot in state.ancestry(state.head())][1:4]
        if chain:
            self.lake.commit([refs.rollback(state, self.random.choice(chain))])

    def repartition(self) -> None:
        """Change the partition spec; files of the old one stay."""
        table = self._table()
        with table.update_spec() as update:
            for field in table.spec().fields:
                update.remove_field(field.name)
            choice = self.random.choice(["none", "kind", "bucket"])
            name = f"p{len(table.specs())}"
            if choice == "kind":
                update.add_field("kind", IdentityTransform(), name)
            elif choice == "bucket":
                update.add_field("id", BucketTransform(2), name)

    def evolve(self) -> None:
        """Add a column, which old and new rows have as null."""
        table = self._table()
        with table.update_schema() as update:
            update.add_column(f"added_{len(table.schema().fields)}", StringType())

    # Rewrites ------------------------------------------------------------------------------------

    def rewrite_beside(self, beside: Callable[[], None]) -> None:
        """Rewrite some files of one partition, while something else happens."""
        table, head = self._table(), self._head()
        groups: dict[Any, list[LiveFile]] = {}
        for live in live_files(table, head):
            groups.setdefault(live.partition, []).append(live)
        if not groups:
            return
        partition = self.random.choice(sorted(groups, key=str))
        some = groups[partition]
        chosen = self.random.sample(some, self.random.randint(1, len(some)))
        rewrite = Rewrite(TABLE, partition, frozenset(live.path for live in chosen))
        self._apply(rewrite, beside)

    def _apply(self, rewrite: Rewrite, beside: Callable[[], None] = lambda: None) -> None:
        original = file_rewrite._verify

        def verify_and_disturb(*arguments: Any) -> None:
            original(*arguments)
            file_rewrite._verify = original
            beside()

        file_rewrite._verify = verify_and_disturb
        try:
            result = rewrite_files(self.lake, rewrite)
        except Discarded:
            self.rewrites["discarded"] += 1
        else:
            self.rewrites["published"] += 1
            self.rewrites["carried"] += bool(result.carried_deletes)
            parent = self.lake.state(TABLE).snapshot(result.snapshot).parent
            assert parent is not None
            self.expected[result.snapshot] = self.expected[parent]
        finally:
            file_rewrite._verify = original

    # The model -----------------------------------------------------------------------------------

    def compare(self) -> None:
        """Read every new ref's snapshot, and one that was read before: each as the model says."""
        state = self.lake.state(TABLE)
        named = {ref.snapshot for ref in state.refs.values()} - self.compared
        self.compare_snapshots({*named, self.random.choice(sorted(state.snapshots))})

    def compare_snapshots(self, snapshots: Iterable[int]) -> None:
        """Read snapshots whole: each must hold the model's rows."""
        for snapshot in snapshots:
            found = Counter(self._read_all(snapshot))
            assert found == self.expected[snapshot], (snapshot, found, self.expected[snapshot])
            self.compared.add(snapshot)

    def _table(self) -> Table:
        return self.lake.iceberg(TABLE)

    def _head(self) -> int:
        head = self.lake.state(TABLE).head()
        assert head is not None
        return head

    def _row(self) -> Row:
        self._next_id += 1
        kind = self.random.choice(["a", "b", "c", None])
        return self._next_id, kind, self.random.choice([None, 0, 1, 2**40])

    def _write(self, rows: list[Row]) -> list[DataFile]:
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        kinds = [pa.int64(), pa.string(), pa.int64()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return write_files(self._table(), pa.table(arrays, ["id", "kind", "n"]))

    def _commit(self, change: FileChange, added: list[Row], removed: list[Row]) -> None:
        table = self._table()
        ref = table.metadata.refs.get("main")
        parent = None if ref is None else ref.snapshot_id
        made = write_snapshot(table, change, parent, {})
        self.lake.commit(snapshot_changes(table, made, "main", parent))
        rows = Counter() if parent is None else self.expected[parent]
        rows = rows - Counter(removed) + Counter(added)
        if parent is None:
            rows = Counter(self._read_all(made.snapshot.snapshot_id))
        self.expected[made.snapshot.snapshot_id] = rows

    def _read_all(self, snapshot: int) -> list[Row]:
        """Read a snapshot by DuckDB, or file by file once the table has equality deletes.

        DuckDB 1.5 fails where a partition value is null, and drops rows with nulls in the key.
        """
        if not self._has_equality_deletes:
            location = self.lake.state(TABLE).metadata_location
            return self.lake.duck.read(location, snapshot).project("id, kind, n").fetchall()
        table, found = self._table(), []
        for live in live_files(table, snapshot):
            path = str(live.path)
            with table.io.new_input(path).open() as stream:
                rows = pq.read_table(stream, columns=["id", "kind", "n"]).to_pylist()
            gone = deleted_positions(table.io, [frozenset(live.positions)]).get(path, ())
            keys: list[Mapping[str, Any]] = []
            for delete in live.equalities:
                with table.io.new_input(delete.file_path).open() as stream:
                    keys += pq.read_table(stream).to_pylist()
            found += [
                tuple(row.values())
                for position, row in enumerate(rows)
                if position not in set(gone) and not any(key.items() <= row.items() for key in keys)
            ]
        return found

    def _sample_live(self, table: Table) -> list[LiveFile]:
        found = sorted(live_files(table, self._head()), key=lambda live: live.path)
        return self.random.sample(found, min(len(found), self.random.randint(1, 3)))

    def _live_rows(self, table: Table, live: LiveFile) -> tuple[list[int], list[Row]]:
        """The positions and rows of a file that are in the model's newest snapshot."""
        gone = deleted_positions(table.io, [frozenset(live.positions)])
        reader = DataFileReader(table, SCHEMA)
        dead = gone.get(live.path, np.zeros(0, dtype=np.int64))
        expected = self.expected[self._head()]
        at: list[int] = []
        rows: list[Row] = []
        for positions, part in reader.live_parts(live.file, dead):
            for position, values in zip(positions, part.to_pylist(), strict=True):
                row = tuple(values.values())
                if expected[row]:  # it may be deleted by an equality delete
                    at.append(int(position))
                    rows.append(row)
        return at, rows

    def _add_ref(self, *, tag: bool) -> None:
        state = self.lake.state(TABLE)
        snapshot = self.random.choice(sorted(state.snapshots))
        self._next_id += 1
        name = f"{'tag' if tag else 'branch'}-{self._next_id}"
        self.lake.commit([refs.new_ref(state, name, snapshot, tag=tag)])


def write_equality_deletes(
    table: Table, partition: Any, columns: tuple[int, ...], keys: set[tuple[Any, ...]]
) -> DataFile:
    """Write an equality-delete file for one partition, as Flink does."""
    spec, record = partition
    fields = [SCHEMA.find_field(column) for column in columns]
    kinds = {LongType(): pa.int64(), StringType(): pa.string()}
    schema = pa.schema([
        pa.field(f.name, kinds[f.field_type], True, {"PARQUET:field_id": str(f.field_id)})
        for f in fields
    ])  # fmt: skip
    values = zip(*keys, strict=True)
    arrays = [pa.array(v, f.type) for v, f in zip(values, schema, strict=True)]
    output = table.io.new_output(f"{table.location()}/data/eq-{uuid4()}.parquet")
    with output.create() as stream:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), stream)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=output.location,
        file_format=FileFormat.PARQUET, partition=record, record_count=len(keys),
        file_size_in_bytes=len(output), equality_ids=list(columns), sort_order_id=None,
        key_metadata=None,
    )  # fmt: skip
    file.spec_id = spec
    return file
