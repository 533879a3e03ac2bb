"""Distinct values that Spark counts are in the table's metadata, and later commits keep them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers import trino
from trino import dbapi

from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Primitive
from thermocline.errors import BadInput
from thermocline.lake import Lake
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import live_files
from thermocline.maintain.column_statistics import compute_statistics, find_statistics
from thermocline.maintain.file_rewrite import Rewrite, rewrite_files

TABLE = "silver.events"
EVENTS = Contract(
    TABLE, (Column("id", Primitive("long")), Column("kind", Primitive("string"))),
    write=WriteMode.APPEND,
)  # fmt: skip


def append(lake: Lake, first: int, count: int) -> None:
    """Append rows of their own ids, and of seven kinds."""
    ids = range(first, first + count)
    part = pa.table({"id": list(ids), "kind": [f"kind {each % 7}" for each in ids]})
    commit_files(lambda: lake.iceberg(TABLE), append_rows(part), "main", {})


def test_statistics_are_computed_kept_and_renewed(lake: Lake) -> None:
    lake.ensure(EVENTS)
    append(lake, 0, 1_000)
    first = compute_statistics(lake, TABLE)
    assert (first.is_new, first.snapshot) == (True, lake.state(TABLE).head())
    assert first.distinct == {"id": 1_000, "kind": 7}

    append(lake, 1_000, 50)
    state = lake.state(TABLE)
    assert state.head() != first.snapshot
    found = compute_statistics(lake, TABLE)
    assert (found.is_new, found.snapshot) == (False, first.snapshot)

    files = live_files(lake.iceberg(TABLE), state.head() or 0)
    paths = frozenset(live.path for live in files)
    rewrite_files(lake, Rewrite(TABLE, files[0].partition, paths))
    kept = find_statistics(lake.state(TABLE))
    assert kept is not None
    assert (kept.snapshot, kept.path) == (first.snapshot, first.path)

    append(lake, 2_000, 500)
    renewed = compute_statistics(lake, TABLE)
    assert (renewed.is_new, renewed.snapshot) == (True, lake.state(TABLE).head())
    assert renewed.distinct == {"id": 1_550, "kind": 7}


def test_a_table_without_a_snapshot_has_no_statistics(lake: Lake) -> None:
    lake.catalog.create_namespace_if_not_exists("silver")
    lake.catalog.create_table(TABLE, pa.schema([("id", pa.int64())]))
    with pytest.raises(BadInput, match="has no rows yet"):
        compute_statistics(lake, TABLE)


@pytest.mark.skipif(trino.missing() is not None, reason=str(trino.missing()))
def test_trino_reads_them_also_after_a_commit(lake: Lake, tmp_path: Path) -> None:
    lake.ensure(EVENTS)
    append(lake, 0, 1_000)
    compute_statistics(lake, TABLE)
    append(lake, 1_000, 50)
    with trino.serve(tmp_path / "trino", lake.settings) as server:
        port = int(server.url.rpartition(":")[2])
        with dbapi.connect("127.0.0.1", port, "test", catalog=server.catalog) as connection:
            cursor = connection.cursor().execute(f"SHOW STATS FOR {TABLE}")
            shown = {name: distinct for name, _, distinct, *_ in cursor.fetchall() if name}
    assert shown == {"id": 1_000, "kind": 7}
