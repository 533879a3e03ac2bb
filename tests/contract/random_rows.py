"""Tables of real rows with random histories, and copies of their lakes: all without Spark.

Rows are added, deleted on read, rewritten, put on branches, tagged and rolled back while the
table's columns and partitioning evolve. Each kind of reference that metadata can have is among what
comes of it: many manifests in one list, one in many, deletes that name several files or gone ones.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.transforms import BucketTransform, IdentityTransform, MonthTransform
from tests.contract.catalog_tables import ORDERS, order, orders

from thermocline.lake import Lake, atomic_commit, avro, filediff, overwrite, refs, snapshot_producer
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.locations import normalize_location
from thermocline.lake.metadata import MAIN
from thermocline.lake.orphans import find_orphans
from thermocline.lake.snapshot_producer import FileChange

Photo = dict[str, tuple[int, str]]


class RandomRows:
    """One table and its history."""

    def __init__(self, lake: Lake, seed: int, table: str = ORDERS.table) -> None:
        self.dice = Random(seed)
        self.lake = lake
        self.name = table
        self.log: list[str] = []
        self._mark = f"of{seed}_"
        self._number = 0
        if not lake.exists(table):
            lake.ensure(orders(table))

    def play(self, steps: int) -> None:
        """Do each thing once, and then so many things at random."""
        acts = [self.add, self.delete, self.rewrite, self.tag, self.branch, self.evolve,
                self.statistics, self.rollback]  # fmt: skip
        self.add()
        for act in [*self.dice.sample(acts, len(acts)), *self.dice.choices(acts[:6], k=steps)]:
            self.log.append(act.__name__)
            act()

    def add(self) -> None:
        """Add rows, to main or to a branch."""
        rows = self._rows(self.dice.randint(1, 8))
        self._commit(FileChange(write_files(self._table(), rows), appends=True))

    def delete(self) -> None:
        """Delete rows of some files by files of deletes."""
        table, branch = self._table(), self._a_branch()
        head = table.metadata.refs[branch].snapshot_id
        some = {
            f.file_path: np.array(sorted(self.dice.sample(range(f.record_count), 1)), np.int64)
            for f in self._data(table, head)
            if self.dice.random() < 0.7
        }
        if some:
            empty = self._rows(0)
            self._commit(overwrite.replace_rows(table, head, empty, some, on_read=True), branch)

    def rewrite(self) -> None:
        """Write rows in the place of some files, which stay in older snapshots."""
        table, branch = self._table(), self._a_branch()
        head = table.metadata.refs[branch].snapshot_id
        paths = [f.file_path for f in self._data(table, head) if self.dice.random() < 0.3]
        self._commit(overwrite.replace_files(table, head, self._rows(2), paths), branch)

    def tag(self) -> None:
        """Name any snapshot."""
        state = self.lake.state(self.name)
        at = self.dice.choice(list(state.snapshots))
        self.lake.commit([refs.new_ref(state, f"t{self._mark}{len(self.log)}", at, tag=True)])

    def branch(self) -> None:
        """Begin a branch at any snapshot."""
        state = self.lake.state(self.name)
        at = self.dice.choice(list(state.snapshots))
        self.lake.commit([refs.new_ref(state, f"b{self._mark}{len(self.log)}", at, tag=False)])

    def rollback(self) -> None:
        """Take main back to a snapshot that it was at."""
        state = self.lake.state(self.name)
        main = [each.id for each in state.ancestry(state.head())]
        self.lake.commit([refs.rollback(state, self.dice.choice(main))])

    def evolve(self) -> None:
        """Cut the table in another way, or give it a column."""
        table = self._table()
        if self.dice.random() < 0.4:
            with table.update_schema() as update:
                from pyiceberg.types import StringType

                update.add_column(f"c{self._mark}{len(self.log)}", StringType())
            return
        with table.update_spec() as spec:
            for field in table.spec().fields:
                spec.remove_field(field.name)
            column, transform = self.dice.choice([
                ("placed", MonthTransform()), ("quantity", IdentityTransform()),
                ("id", BucketTransform(3)), ("note", IdentityTransform()),
            ])  # fmt: skip
            spec.add_field(column, transform, f"p{self._mark}{len(self.log)}")

    def statistics(self) -> None:
        """Describe main's snapshot by a file of statistics that says where it came from."""
        table = self._table()
        head = table.metadata.refs[MAIN].snapshot_id
        path = f"{table.location()}/metadata/{head}-{self._mark}{len(self.log)}.stats"
        kind = "apache-datasketches-theta-v1"
        about = {"type": kind, "snapshot-id": head, "sequence-number": 1, "fields": [1]}
        said = {"ndv": "3"} | ({"from": table.location()} if self.dice.random() < 0.6 else {})
        footer = {"blobs": [{**about, "offset": 4, "length": 3, "properties": said}]}
        payload = json.dumps(footer).encode()
        end = b"PFA1" + payload + len(payload).to_bytes(4, "little") + bytes(4) + b"PFA1"
        with table.io.new_output(path).create() as stream:
            stream.write(b"PFA1abc" + end)
        blob = BlobMetadata(type=kind, snapshot_id=head, sequence_number=1, fields=[1],
                            properties=said)  # fmt: skip
        with table.update_statistics() as update:
            update.set_statistics(StatisticsFile(
                snapshot_id=head, statistics_path=path, file_size_in_bytes=7 + len(end),
                file_footer_size_in_bytes=len(end), blob_metadata=[blob],
            ))  # fmt: skip

    def _commit(self, change: FileChange, branch: str | None = None) -> None:
        table = self._table()
        branch = branch or self._a_branch()
        head = table.metadata.refs[branch].snapshot_id
        made = snapshot_producer.write_snapshot(table, change, head, {})
        atomic_commit.commit_all(self.lake.catalog, snapshot_changes(table, made, branch, head))

    def _a_branch(self) -> str:
        found = self.lake.state(self.name).refs.values()
        branches = sorted(each.name for each in found if each.type == "branch")
        return MAIN if self.dice.random() < 0.6 else self.dice.choice(branches)

    def _data(self, table: Table, head: int) -> list[Any]:
        files = [change.file for change in filediff.compare(table, None, head).files]
        return [each for each in files if each.content == DataFileContent.DATA]

    def _rows(self, count: int) -> pa.Table:
        schema = self._table().schema().as_arrow()
        numbers = range(self._number + 1, self._number + 1 + count)
        self._number += count
        return pa.Table.from_pylist([order(number) for number in numbers], schema)

    def _table(self) -> Table:
        return self.lake.iceberg(self.name)


def contents(lake: Lake, table: str) -> dict[int, list[str]]:
    """The rows of every snapshot, as PyIceberg reads them."""
    found = lake.iceberg(table)
    return {
        each.snapshot_id: sorted(
            map(str, found.scan(snapshot_id=each.snapshot_id).to_arrow().to_pylist())
        )
        for each in found.snapshots()
    }


def on_duckdb(lake: Lake, table: str) -> dict[int, int]:
    """How many rows DuckDB finds in every snapshot that a branch or tag names."""
    state, found = lake.state(table), {}
    for ref in state.refs.values():
        lake.duck.view("seen", state.metadata_location, ref.snapshot)
        [count] = lake.duck.connection.execute("select count(*) from seen").fetchone() or (None,)
        found[ref.snapshot] = count
    return found


def photo(folder: Path) -> Photo:
    """Every file below a folder: when it was last written, and a hash of its bytes."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def left_over(lake: Lake) -> set[str]:
    """The names of files that no snapshot needs."""
    found = (find_orphans(lake.iceberg(table)) for table in lake.tables())
    return {path.rpartition("/")[2] for some in found for path, _ in some}


def names(lake: Lake, place: str) -> list[str]:
    """What in the metadata of a lake names a place, by the file that does: all must be gone."""
    found = []
    for table, state in lake.states().items():
        iceberg = lake.iceberg(table)
        texts = {state.metadata_location: json.dumps(state.raw)}
        for entry in iceberg.metadata.snapshots:
            texts[entry.manifest_list] = _text(lake, entry.manifest_list)
            for manifest in entry.manifests(iceberg.io):
                texts[manifest.manifest_path] = _text(lake, manifest.manifest_path)
                for file in manifest.fetch_manifest_entry(iceberg.io):
                    if file.data_file.content == DataFileContent.POSITION_DELETES:
                        path = file.data_file.file_path
                        texts[path] = str(_deletes(lake, path))
        for statistics in iceberg.metadata.statistics:
            texts[statistics.statistics_path] = _bytes(lake, statistics.statistics_path).decode(
                "latin-1"
            )
        found += [path for path, text in texts.items() if place in f"{path} {text}"]
    return found


def _text(lake: Lake, location: str) -> str:
    return str(avro.read(_bytes(lake, location)).records)


def _deletes(lake: Lake, location: str) -> list[Any]:
    from io import BytesIO

    import pyarrow.parquet as pq

    return list(pq.read_table(BytesIO(_bytes(lake, location))).to_pylist())


def _bytes(lake: Lake, location: str) -> bytes:
    path = normalize_location(location)
    if path.startswith("/"):
        return Path(path).read_bytes()
    from thermocline.lake.catalog import load_file_io

    with load_file_io(lake.settings).new_input(location).open() as stream:
        return bytes(stream.read())
