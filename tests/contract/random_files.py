"""Tables of files that are only listed, with random histories: what may be found without looking.

Files are added, removed and deleted from at random while the table's partitioning and columns
evolve and statistics are erased. What the lake finds by opening few manifests must be what is
found by opening all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import PATH_FIELD_ID, DeleteFileIndex
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from thermocline.errors import Permanent
from thermocline.lake import Lake, atomic_commit, filediff, overwrite, snapshot_producer
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.metadata import location_path
from thermocline.lake.snapshot_producer import FileChange

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "at", TimestamptzType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "price", DecimalType(9, 2)),
    NestedField(7, "share", FloatType()),
    NestedField(8, "good", BooleanType()),
    NestedField(9, "code", UUIDType()),
    NestedField(10, "raw", BinaryType()),
)
TRANSFORMS = {
    "id": [IdentityTransform(), BucketTransform(4), TruncateTransform(10)],
    "n": [IdentityTransform(), BucketTransform(3)],
    "kind": [IdentityTransform(), TruncateTransform(1), BucketTransform(4)],
    "at": [IdentityTransform(), DayTransform(), MonthTransform()],
    "day": [IdentityTransform(), MonthTransform()],
    "price": [IdentityTransform(), TruncateTransform(100)],
    "share": [IdentityTransform()],
    "good": [IdentityTransform()],
    "code": [IdentityTransform()],
    "raw": [IdentityTransform(), TruncateTransform(2)],
}
PROMOTED = {"n": LongType(), "price": DecimalType(12, 2), "share": DoubleType()}
VALUES: dict[type[Any], list[Any]] = {
    LongType: [-5, 0, 3, 7, 2**40],
    IntegerType: [-3, 0, 4, 9],
    DateType: [0, 20_000, 20_001, -1],
    TimestamptzType: [0, 1_700_000_000_000_000, -1],
    StringType: ["", "a", "b", "ab", "z", "ﬀ", "\U0001f600", "ä"],
    DecimalType: [Decimal("-1.50"), Decimal("0.00"), Decimal("12.25")],
    FloatType: [0.0, -0.0, 1.5, float("nan"), float("inf")],
    DoubleType: [0.0, -0.0, 1.5, float("nan"), float("-inf")],
    BooleanType: [True, False],
    UUIDType: [UUID(int=0), UUID(int=1 << 127), UUID(int=5)],
    BinaryType: [b"", b"\x00", b"\xff\xff"],
}


class Differs(AssertionError):
    """The lake found something else than there is."""


class RandomFiles:
    """One table and what is in it."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.random = random.Random(seed)
        self.lake = lake
        self.name = f"silver.t{seed}"
        self.log: list[str] = []
        lake.catalog.create_namespace_if_not_exists("silver")
        merging = {
            "commit.manifest.min-count-to-merge": "5",
            "commit.manifest-merge.enabled": "true",
        }
        self.table = lake.catalog.create_table(self.name, SCHEMA, properties=merging)
        self._repartition()
        self._number = 0
        self.live: dict[str, DataFile] = {}
        self.named: dict[str, list[str]] = {}
        """By delete file, the data files that its rows name."""
        self.add()

    def step(self) -> None:
        """Do one thing, chosen at random."""
        steps = [self.add, self.add, self.remove, self.delete, self.delete, self.erase]
        steps += [self.delete_by_name]
        steps += [self._repartition] * (self.random.random() < 0.3) + [self._evolve]
        act = self.random.choice(steps)
        self.log.append(act.__name__)
        act()

    def add(self) -> None:
        """Add a few data files."""
        files = [self._file() for _ in range(self.random.randint(1, 6))]
        self._commit(FileChange(files))

    def remove(self) -> None:
        """Remove some files, of either kind."""
        if self.live:
            wanted = self.random.sample(sorted(self.live), min(len(self.live), 3))
            self._commit(FileChange([self._file()], [self.live[path] for path in wanted]))

    def delete(self) -> None:
        """Delete rows of some files of a partition, by one delete file."""
        # PyIceberg adds files of today's partitioning only.
        today = self.table.spec().spec_id
        live = [file for file in self.live.values() if file.spec_id == today]
        data = [file for file in live if file.content == DataFileContent.DATA]
        if not data:
            return
        one = self.random.choice(data)
        beside = [f for f in data if (f.spec_id, f.partition) == (one.spec_id, one.partition)]
        named = sorted({f.file_path for f in self.random.sample(beside, min(len(beside), 3))})
        if self.random.random() < 0.5:
            named = [one.file_path]
        bounds = (named[0], named[-1]) if self.random.random() < 0.8 else None
        file = self._made(DataFileContent.POSITION_DELETES, one.spec_id, one.partition, bounds)
        self.named[file.file_path] = named
        self._commit(FileChange([file]))

    def delete_by_name(self) -> None:
        """Delete rows of any file, by a delete file of today's partitioning that names it."""
        data = [f for f in self.live.values() if f.content == DataFileContent.DATA]
        older = [file for file in data if file.spec_id != self.table.spec().spec_id]
        if older:
            one, today = self.random.choice(older), self.table.spec().spec_id
            bounds = (one.file_path, one.file_path)
            where = self._partition(today)
            file = self._made(DataFileContent.POSITION_DELETES, today, where, bounds)
            self.named[file.file_path] = [one.file_path]
            self._commit(FileChange([file]))

    def erase(self) -> None:
        """Erase statistics from the newest manifest list, as writers may leave them out."""
        path = location_path(self.table.current_snapshot().manifest_list)  # type: ignore[union-attr]
        with path.open("rb") as stream:
            found = fastavro.reader(stream)
            schema, kept, records = found.writer_schema, found.metadata, list(found)
        for record in records:
            for part in record["partitions"] or ():
                for bound in ("lower_bound", "upper_bound"):
                    if self.random.random() < 0.3:
                        part[bound] = None
            if self.random.random() < 0.2:
                record["partitions"] = None
        known = {key: kept[key] for key in kept if not key.startswith("avro.")}
        with path.open("wb") as stream:
            fastavro.writer(stream, schema, records, metadata=known)

    def check(self) -> None:
        """Hold what the lake finds against what is found by opening everything."""
        heads = [snapshot.snapshot_id for snapshot in self.table.snapshots()]
        end = self.random.choice([heads[-1], self.random.choice(heads)])
        start = self.random.choice([None, *heads])
        self._same("compare", _shown(filediff.compare(self.table, start, end).files),
                   _shown(_compared(self.table, start, end)))  # fmt: skip
        self._check_paths(end)
        self._check_partitions(heads[0] if start is None else start, end)
        live = {e.data_file.file_path for e in _all(self.table, heads[-1])}
        self._same("live files", live, set(self.live))

    def _check_paths(self, head: int) -> None:
        everything = _compared(self.table, None, head)
        if everything:
            some = self.random.sample(everything, self.random.randint(1, min(4, len(everything))))
            paths = {each.file.file_path for each in some}
            found = filediff.find_files_at_paths(self.table, head, paths)
            self._same("files at paths", _shown(found), _shown(some))

    def _check_partitions(self, start: int, end: int) -> None:
        today = self.table.spec().spec_id
        before, after = (_all(self.table, head) for head in (start, end))
        if any(entry.data_file.spec_id != today for entry in (*before, *after)):
            try:
                overwrite.changed_partitions(self.table, start, end)
            except overwrite.OutdatedPartitioning:
                return
            raise Differs(f"older partitioning was overlooked: {self.log}")
        wanted = {entry.data_file.partition for entry in after if self.random.random() < 0.4}
        # No contract partitions by a float, of which NaN is no partition that is equal to itself.
        wanted = {each for each in wanted | {self._partition(today)} if "nan" not in repr(each)}
        found = {file.file_path for file in overwrite._current_spec_files(self.table, end, wanted)}
        there = {e.data_file.file_path for e in after if e.data_file.partition in wanted}
        self._same("files of partitions", found, there)
        old, new = (
            {e.data_file.file_path: repr(e.data_file.partition) for e in entries}
            for entries in (before, after)
        )
        changed = {(old | new)[path] for path in old.keys() ^ new.keys()}
        found = {repr(each) for each in overwrite.changed_partitions(self.table, start, end)}
        self._same("changed partitions", found, changed)

    def _same(self, what: str, found: Any, there: Any) -> None:
        if found != there:
            raise Differs(f"{what}: found {found}, there is {there}; {self.log}")

    def _commit(self, change: FileChange) -> None:
        head = self.table.current_snapshot()
        parent = None if head is None else head.snapshot_id
        made = snapshot_producer.write_snapshot(self.table, change, parent, {})
        atomic_commit.commit_all(
            self.table.catalog, snapshot_changes(self.table, made, "main", parent)
        )
        self._load()
        self.live |= {file.file_path: file for file in change.added}
        for file in change.removed:
            del self.live[file.file_path]

    def _load(self) -> None:
        self.table = self.lake.catalog.load_table(self.name)

    def _repartition(self) -> None:
        fields = [field.name for field in self.table.spec().fields]
        with self.table.update_spec() as update:
            for name in fields:
                if self.random.random() < 0.6:
                    update.remove_field(name)
            columns = [field.name for field in self.table.schema().fields]
            for column in self.random.sample(columns, self.random.randint(0, 2)):
                base = {"sort": "kind"}.get(column, column)
                transform = self.random.choice(TRANSFORMS[base])
                name = f"p{len(self.log)}_{column}"
                taken = {(f.source_id, str(f.transform)) for f in self.table.spec().fields}
                source = self.table.schema().find_field(column).field_id
                if (source, str(transform)) not in taken:
                    update.add_field(column, transform, name)
        self._load()

    def _evolve(self) -> None:
        names = {field.name: field for field in self.table.schema().fields}
        column = self.random.choice(sorted(PROMOTED))
        with self.table.update_schema() as update:
            if names[column].field_type != PROMOTED[column]:
                update.update_column(column, PROMOTED[column])
            elif "kind" in names:
                update.rename_column("kind", "sort")
        self._load()

    def _file(self) -> DataFile:
        spec = self.table.spec().spec_id
        return self._made(DataFileContent.DATA, spec, self._partition(spec), None)

    def _partition(self, spec_id: int) -> Record:
        kinds = self.table.specs()[spec_id].partition_type(self.table.schema()).fields
        return Record(
            *(
                None
                if self.random.random() < 0.15 or type(kind.field_type) not in VALUES
                else self.random.choice(VALUES[type(kind.field_type)])
                for kind in kinds
            )
        )

    def _made(
        self,
        content: DataFileContent,
        spec: int,
        partition: Record,
        bounds: tuple[str, str] | None,
    ) -> DataFile:
        self._number += 1
        low, high = bounds or (None, None)
        file = DataFile.from_args(
            content=content,
            file_path=f"file:///lake/{self.random.randrange(10**6)}-{self._number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=10,
            file_size_in_bytes=100,
            lower_bounds={PATH_FIELD_ID: low.encode()} if low else None,
            upper_bounds={PATH_FIELD_ID: high.encode()} if high else None,
        )
        file.spec_id = spec
        return file


def _all(
    table: Table, snapshot: int, content: ManifestContent | None = None
) -> list[ManifestEntry]:
    """Every live entry of a snapshot."""
    io: FileIO = table.io
    manifests = table.snapshot_by_id(snapshot).manifests(io)  # type: ignore[union-attr]
    return [
        entry
        for manifest in manifests
        if content is None or manifest.content == content
        for entry in manifest.fetch_manifest_entry(io)
    ]


def _compared(table: Table, start: int | None, end: int) -> list[filediff.ChangedFile]:
    """The difference of two snapshots, found by opening every manifest of both."""
    sides = []
    for head in (start, end):
        data = _all(table, head, ManifestContent.DATA) if head is not None else []
        deletes = _all(table, head, ManifestContent.DELETES) if head is not None else []
        sides.append(({e.data_file.file_path: e for e in data}, _index(deletes), deletes))
    (before, old, gone), (after, new, came) = sides
    paths = [{e.data_file.file_path: e for e in deletes} for deletes in (gone, came)]
    both = paths[0] | paths[1]
    differing = _index(both[path] for path in paths[0].keys() ^ paths[1].keys())
    found = [
        filediff.ChangedFile(entry.data_file, _applying(old, entry), None)
        for path, entry in before.items() if path not in after
    ]  # fmt: skip
    found += [
        filediff.ChangedFile(entry.data_file, None, _applying(new, entry))
        for path, entry in after.items() if path not in before
    ]  # fmt: skip
    found += [
        filediff.ChangedFile(entry.data_file, _applying(old, entry), _applying(new, entry))
        for path, entry in after.items() if path in before and _applying(differing, entry)
    ]  # fmt: skip
    return found


def _index(entries: Iterable[ManifestEntry]) -> DeleteFileIndex:
    index = DeleteFileIndex()
    for entry in entries:
        index.add_delete_file(entry, partition_key=entry.data_file.partition)
    return index


def _applying(index: DeleteFileIndex, entry: ManifestEntry) -> frozenset[DataFile]:
    file = entry.data_file
    return frozenset(index.for_data_file(entry.sequence_number or 0, file, file.partition))


def _shown(changes: Iterable[filediff.ChangedFile]) -> set[Any]:
    def deletes(some: frozenset[DataFile] | None) -> frozenset[str] | None:
        return None if some is None else frozenset(file.file_path for file in some)

    return {(each.file.file_path, deletes(each.start), deletes(each.end)) for each in changes}


def trial(lake: Lake, seed: int, steps: int) -> list[str]:
    """One table with a random history, looked at after each step; says what was done."""
    table = RandomFiles(lake, seed)
    for _ in range(steps):
        table.step()
        try:
            table.check()
        except Permanent as error:
            raise Differs(f"{error}: {table.log}") from error
    return table.log
