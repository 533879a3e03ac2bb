"""A hot node as a process: what it holds is what it was told, at the snapshot that it says."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.serve.nodes.running import Running, code, ok

from thermocline.serve.node import staging
from thermocline.serve.node.limits import BULK_NICE
from thermocline.serve.node.store import MAX_CHANGE_SETS
from thermocline.serve.wire.protocol import BlockingChannel, ConnectionLost, Frame

NODE = ("-m", "thermocline.serve.node", "--memory", str(512 << 20), "--threads", "4")
COLUMNS = [("id", "long"), ("at", "timestamptz"), ("amount", "decimal(12,2)")]
START = datetime(2026, 11, 10, tzinfo=UTC)
_changes = itertools.count(1)

Row = tuple[int, int, int]  # id, file, position


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("node"), *NODE) as running:
        yield running


@pytest.fixture
def line(node: Running) -> Iterator[BlockingChannel]:
    opened = node.line()
    yield opened
    opened.close()


def arrow(rows: list[Row]) -> pa.Table:
    """Rows whose time is their id in hours, and whose amount is their id in quarters."""
    ids, files, positions = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "at": pa.array([START + timedelta(hours=n) for n in ids], pa.timestamp("us", "UTC")),
        "amount": pa.array([Decimal(n) / 4 for n in ids], pa.decimal128(12, 2)),
        "__file": pa.array(files, pa.int32()),
        "__pos": pa.array(positions, pa.int64()),
    })  # fmt: skip


def spots(rows: list[tuple[int, int]]) -> bytes:
    files, positions = zip(*rows, strict=True)
    return staging.encode_body(pa.table({
        "__file": pa.array(files, pa.int32()), "__pos": pa.array(positions, pa.int64()),
    }))  # fmt: skip


def load(
    line: BlockingChannel,
    table: str,
    rows: list[Row],
    snapshot: int,
    since: datetime | None = None,
    columns: Any = COLUMNS,
) -> None:
    change = f"c{next(_changes)}"
    ok(line.ask(staging.begin(change)))
    ok(line.ask(staging.create(change, table, columns, snapshot, since=since, sort="at")))
    if rows:
        ok(line.ask(staging.add_rows(change, table), staging.encode_body(arrow(rows))))
    ok(line.ask(staging.apply(change)))


def ask(
    line: BlockingChannel, sql: str, snapshots: dict[str, int] | None = None, **more: Any
) -> Frame:
    tables = {name: {"table": name, "snapshot": str(at)} for name, at in (snapshots or {}).items()}
    return line.ask({"do": "query", "sql": sql, "tables": tables, "format": "json",
                     "rows": 1000, "bytes": 10 << 20, "seconds": 20, **more})  # fmt: skip


def rows_of(frame: Frame) -> list[Any]:
    ok(frame)
    return [json.loads(line) for line in bytes(frame.body).decode().splitlines()]


def test_it_answers_with_the_snapshot_it_holds(line: BlockingChannel) -> None:
    load(line, "silver.orders", [(n, 1, n) for n in range(10)], 77)
    reply = ask(line, 'SELECT count(*), sum(amount), max("at") FROM "silver.orders" WHERE id < 5',
                {"silver.orders": 77})  # fmt: skip
    assert rows_of(reply) == [[5, "2.50", "2026-11-10T04:00:00+00:00"]]
    assert reply.header["snapshots"] == {"silver.orders": "77"}
    assert reply.header["count"] == 1
    assert [column[2] for column in reply.header["columns"]] == [
        "bigint", "decimal(38,2)", "timestamp(6) with time zone",
    ]  # fmt: skip
    held = ok(line.ask({"do": "held"}))
    assert held["tables"]["silver.orders"]["snapshot"] == "77"
    assert held["tables"]["silver.orders"]["rows"] == 10
    assert 0 < held["memory"] < 512 << 20


def test_zeros_keep_their_signs_when_rows_are_compressed(line: BlockingChannel) -> None:
    zeros = [0.0] * 700 + [-0.0] * 700 + [1.5] * 700 + [7.0] * 700
    rows = pa.table({
        "x": pa.array(zeros), "__file": pa.array([1] * len(zeros), pa.int32()),
        "__pos": pa.array(range(len(zeros)), pa.int64()),
    })  # fmt: skip
    ok(line.ask(staging.begin("zeros")))
    ok(line.ask(staging.create("zeros", "silver.zeros", [("x", "double")], 1)))
    ok(line.ask(staging.add_rows("zeros", "silver.zeros"), staging.encode_body(rows)))
    ok(line.ask(staging.apply("zeros")))
    sql = 'SELECT 1 / x, count(*) FROM "silver.zeros" WHERE x = 0 GROUP BY 1 ORDER BY 1'
    reply = ask(line, sql, {"silver.zeros": 1})
    assert rows_of(reply) == [["-inf", 700], ["inf", 700]]


def test_hidden_columns_are_not_seen(line: BlockingChannel) -> None:
    load(line, "silver.hidden", [(1, 1, 1)], 1)
    reply = ask(line, 'SELECT * FROM "silver.hidden"', {"silver.hidden": 1})
    assert [name for name, _, _ in reply.header["columns"]] == ["id", "at", "amount"]
    assert code(ask(line, 'SELECT __file FROM "silver.hidden"', {"silver.hidden": 1})) == "query"


def test_another_snapshot_is_moved_and_another_table_not_held(line: BlockingChannel) -> None:
    load(line, "silver.moving", [(1, 1, 1)], 5)
    sql = 'SELECT * FROM "silver.moving"'
    reply = ask(line, sql, {"silver.moving": 6})
    assert code(reply) == "moved"
    assert reply.error
    assert reply.error["details"] == {"table": "silver.moving", "held": "5"}
    assert code(ask(line, 'SELECT * FROM "silver.nope"', {"silver.nope": 6})) == "not-held"


def test_a_copy_that_begins_later_than_asked_is_moved(line: BlockingChannel) -> None:
    """The window moves without a new snapshot, so the snapshot alone does not tell."""
    load(line, "silver.window", [(n, 1, n) for n in range(48)], 5, since=START)
    asked = {"table": "silver.window", "snapshot": "5", "since": "2026-11-10T00:00:00+00:00"}
    sql = 'SELECT count(*) FROM "silver.window"'
    assert rows_of(ask(line, sql, tables={"silver.window": asked})) == [[48]]
    ok(line.ask(staging.begin("cut")))
    later = START + timedelta(hours=24)
    ok(line.ask(staging.advance("cut", "silver.window", 5, 5, since=later)))
    ok(line.ask(staging.apply("cut")))
    assert code(ask(line, sql, tables={"silver.window": asked})) == "moved"
    assert code(ask(line, sql, tables={"silver.window": {**asked, "since": None}})) == "moved"
    reply = ask(line, sql, tables={"silver.window": {**asked, "since": later.isoformat()}})
    assert rows_of(reply) == [[24]]
    assert reply.header["since"] == {"silver.window": later.isoformat()}


def test_an_advance_takes_out_files_and_positions_and_adds_rows(line: BlockingChannel) -> None:
    load(line, "silver.adv", [(n, n // 10, n % 10) for n in range(30)], 1)
    ok(line.ask(staging.begin("adv")))
    ok(line.ask(staging.advance("adv", "silver.adv", 1, 2)))
    ok(line.ask(staging.add_rows("adv", "silver.adv"),
                staging.encode_body(arrow([(100, 0, 3), (101, 9, 0)]))))  # fmt: skip
    # Position 3 of file 0 goes, and comes again: what is added is not removed by the same change.
    ok(line.ask(staging.remove("adv", "silver.adv", files=[1]), spots([(0, 3), (0, 3), (2, 9)])))
    sql = 'SELECT id FROM "silver.adv" ORDER BY id'
    assert len(rows_of(ask(line, sql, {"silver.adv": 1}))) == 30, "nothing is seen before"
    held = ok(line.ask(staging.apply("adv")))
    assert held["tables"]["silver.adv"]["rows"] == 20
    expected = [n for n in range(30) if n // 10 != 1 and n not in (3, 29)] + [100, 101]
    assert [row[0] for row in rows_of(ask(line, sql, {"silver.adv": 2}))] == expected


def test_a_table_is_replaced_with_other_columns_and_dropped(line: BlockingChannel) -> None:
    load(line, "silver.shape", [(1, 1, 1)], 1)
    ok(line.ask(staging.begin("shape")))
    ok(line.ask(staging.create("shape", "silver.shape", [("name", "string")], 2)))
    body = pa.table({"name": ["x"], "__file": pa.array([1], pa.int32()), "__pos": [0]})
    ok(line.ask(staging.add_rows("shape", "silver.shape"), staging.encode_body(body)))
    ok(line.ask(staging.apply("shape")))
    assert rows_of(ask(line, 'SELECT * FROM "silver.shape"', {"silver.shape": 2})) == [["x"]]
    ok(line.ask(staging.begin("gone")))
    ok(line.ask(staging.drop("gone", "silver.shape")))
    assert "silver.shape" not in ok(line.ask(staging.apply("gone")))["tables"]
    assert code(ask(line, 'SELECT * FROM "silver.shape"', {"silver.shape": 2})) == "not-held"
    assert code(ask(line, 'SELECT * FROM "silver.shape"')) == "query"


TYPES: list[tuple[str, Any, pa.DataType, Any, Any]] = [
    ("flag", "boolean", pa.bool_(), True, True),
    ("small", "int", pa.int32(), -5, -5),
    ("price", "decimal(38,9)", pa.decimal128(38, 9), Decimal("12345678901234567890.123456789"),
     "12345678901234567890.123456789"),
    ("day", "date", pa.date32(), date(1, 1, 1), "0001-01-01"),
    ("local", "timestamp", pa.timestamp("us"), datetime(2026, 1, 1, 0, 0, 0, 1),
     "2026-01-01T00:00:00.000001"),
    ("moment", "timestamptz", pa.timestamp("us", "UTC"),
     datetime(2026, 3, 29, 1, 59, 59, 999999, UTC), "2026-03-29T01:59:59.999999+00:00"),
    ("key", "uuid", pa.string(), "6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e",
     "6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e"),
    ("bytes", "binary", pa.binary(), b"\0\xff", "AP8="),
    ("fixed", "fixed[2]", pa.binary(), b"\0\xff", "AP8="),
    ("row", {"type": "struct", "fields": [
        {"id": 1, "name": "a b", "type": "uuid", "required": False},
        {"id": 2, "name": "n", "type": {"type": "list", "element-id": 3, "element": "date",
                                        "element-required": False}, "required": False}]},
     pa.struct({"a b": pa.string(), "n": pa.list_(pa.date32())}),
     {"a b": "6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e", "n": [date(2026, 1, 1), None]},
     {"a b": "6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e", "n": ["2026-01-01", None]}),
    ("map", {"type": "map", "key-id": 1, "key": "string", "value-id": 2, "value": "decimal(3,1)",
             "value-required": False},
     pa.map_(pa.string(), pa.decimal128(3, 1)), [("k", Decimal("1.5"))], {"k": "1.5"}),
]  # fmt: skip


def test_every_type_survives(line: BlockingChannel) -> None:
    columns = [(name, kind) for name, kind, _, _, _ in TYPES]
    data = {name: pa.array([value, None], kind) for name, _, kind, value, _ in TYPES}
    data |= {"__file": pa.array([1, 1], pa.int32()), "__pos": pa.array([0, 1], pa.int64())}
    ok(line.ask(staging.begin("types")))
    ok(line.ask(staging.create("types", "silver.types", columns, 1)))
    ok(line.ask(staging.add_rows("types", "silver.types"), staging.encode_body(pa.table(data))))
    ok(line.ask(staging.apply("types")))
    first, second = rows_of(ask(line, 'SELECT * FROM "silver.types"', {"silver.types": 1}))
    assert first == [expected for *_, expected in TYPES]
    assert second == [None] * len(TYPES)
    kinds = rows_of(ask(line, 'SELECT typeof(key), typeof("row"), typeof(moment) '
                              'FROM "silver.types" LIMIT 1'))  # fmt: skip
    assert kinds == [["UUID", 'STRUCT("a b" UUID, n DATE[])', "TIMESTAMP WITH TIME ZONE"]]


def test_staging_that_makes_no_sense_is_refused_and_harms_nothing(line: BlockingChannel) -> None:
    load(line, "silver.safe", [(1, 1, 1)], 1)
    ok(line.ask(staging.begin("odd")))
    new = staging.create("odd", "silver.odd", COLUMNS, 1, sort="at")
    for said, body in [
        (staging.apply("another"), b""),
        (staging.add_rows("odd", "silver.safe"), staging.encode_body(arrow([(1, 1, 1)]))),
        (staging.add_rows("odd", "silver.nope"), b""),
        (staging.remove("odd", "silver.nope"), b""),
        ({**new, "columns": [["a", "int); DROP TABLE __held; --"]]}, b""),
        ({**new, "columns": [["a", {"type": "struct", "fields": []}]]}, b""),
        ({**new, "columns": [["__file", "int"]]}, b""),
        ({**new, "columns": None}, b""),
        ({**new, "since": "yesterday"}, b""),
        ({**new, "sort": "nope"}, b""),
        ({**new, "kind": "nonsense"}, b""),
        ({**new, "table": 5}, b""),
        (staging.advance("odd", "silver.nope", 1, 2), b""),
        (staging.advance("odd", "silver.safe", 2, 3), b""),
        (staging.advance("odd", "silver.safe", 1, 3, since=START), b""),
    ]:
        assert code(line.ask(said, body)) in ("staging", "not-held", "moved"), said
    ok(line.ask(new))
    assert code(line.ask(staging.add_rows("odd", "silver.odd"), b"garbage")) == "staging"
    ok(line.ask(new))
    wrong = pa.table({"id": ["not a number"], "at": ["x"], "amount": ["y"], "__file": [1],
                      "__pos": [1]})  # fmt: skip
    assert (
        code(line.ask(staging.add_rows("odd", "silver.odd"), staging.encode_body(wrong)))
        == "staging"
    )
    held = ok(line.ask(staging.apply("odd")))
    assert "silver.odd" not in held["tables"] and held["tables"]["silver.safe"]["rows"] == 1
    assert rows_of(ask(line, 'SELECT id FROM "silver.safe"', {"silver.safe": 1})) == [[1]]


def test_an_abandoned_change_leaves_no_trace(line: BlockingChannel) -> None:
    for ending in (staging.abandon("left"), staging.begin("left"), staging.reset()):
        ok(line.ask(staging.begin("left")))
        ok(line.ask(staging.create("left", "silver.left", COLUMNS, 1, sort="at")))
        ok(
            line.ask(
                staging.add_rows("left", "silver.left"), staging.encode_body(arrow([(1, 1, 1)]))
            )
        )
        ok(line.ask(ending))
        if ending == staging.begin("left"):
            ok(line.ask(staging.apply("left")))
        assert code(line.ask(staging.apply("left"))) == "staging"
    assert "silver.left" not in ok(line.ask({"do": "held"}))["tables"]
    copies = rows_of(ask(line, "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'copies'"))
    held = len(ok(line.ask({"do": "held"}))["tables"])
    assert copies == [[held]]


def test_a_copy_in_the_making_leaves_others_free_to_move(line: BlockingChannel) -> None:
    load(line, "silver.free", [(1, 1, 1)], 1)
    ok(line.ask(staging.begin("long")))
    ok(line.ask(staging.create("long", "silver.long", COLUMNS, 7, sort="at")))
    ok(line.ask(staging.add_rows("long", "silver.long"), staging.encode_body(arrow([(1, 1, 1)]))))
    for snapshot in (2, 3):
        ok(line.ask(staging.begin("step")))
        ok(line.ask(staging.advance("step", "silver.free", snapshot - 1, snapshot)))
        added = staging.encode_body(arrow([(snapshot, 2, snapshot)]))
        ok(line.ask(staging.add_rows("step", "silver.free"), added))
        assert "silver.long" not in ok(line.ask(staging.apply("step")))["tables"]
    ok(line.ask(staging.add_rows("long", "silver.long"), staging.encode_body(arrow([(2, 1, 2)]))))
    ok(line.ask(staging.apply("long")))
    both = {"silver.free": 3, "silver.long": 7}
    counted = 'SELECT (SELECT count(*) FROM "silver.free"), (SELECT count(*) FROM "silver.long")'
    assert rows_of(ask(line, counted, both)) == [[3, 2]]


def test_a_step_from_a_copy_that_another_changed_is_refused(line: BlockingChannel) -> None:
    load(line, "silver.twice", [(1, 1, 1)], 1)
    for change, row in (("one", (2, 2, 1)), ("two", (3, 3, 1))):
        ok(line.ask(staging.begin(change)))
        ok(line.ask(staging.advance(change, "silver.twice", 1, 2)))
        ok(line.ask(staging.add_rows(change, "silver.twice"), staging.encode_body(arrow([row]))))
    ok(line.ask(staging.apply("one")))
    assert code(line.ask(staging.apply("two"))) == "moved"
    found = ask(line, 'SELECT id FROM "silver.twice" ORDER BY 1', {"silver.twice": 2})
    assert rows_of(found) == [[1], [2]]


def test_so_many_changes_and_no_more(line: BlockingChannel) -> None:
    for number in range(MAX_CHANGE_SETS):
        ok(line.ask(staging.begin(f"of many {number}")))
    assert code(line.ask(staging.begin("one too many"))) == "staging"
    ok(line.ask(staging.reset()))
    ok(line.ask(staging.begin("one too many")))
    ok(line.ask(staging.abandon("one too many")))


def test_new_copies_step_back_for_queries(line: BlockingChannel, node: Running) -> None:
    load(line, "silver.bulk", [(1, 1, 1)], 1)
    threads = Path(f"/proc/{node.process.pid}/task").iterdir()
    nice = {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice == {own, min(19, own + BULK_NICE)}


# Queries that must not do harm -------------------------------------------------------------------

OUTSIDE = [
    "SELECT * FROM read_csv('/etc/passwd', sep=':')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_parquet('s3://b/x')",
    "SELECT * FROM glob('/*')",
    "SELECT (SELECT content FROM read_blob('/proc/self/environ'))",
    "FROM '/etc/passwd'",
    "SELECT getenv('PATH')",
    "ATTACH '/tmp/x.db'",
    "COPY (SELECT 1) TO '/tmp/thermocline-node.csv'",
    "EXPORT DATABASE '/tmp/thermocline-node'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 9",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "SHOW TABLES",
    "SUMMARIZE \"silver.walls\"",
    "DESCRIBE __held",
    "CREATE SECRET (TYPE s3)",
    "CALL enable_logging()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM system.main.enable_logging(storage='file', storage_path='/tmp/node-log')",
    "SELECT * FROM \"Enable_Logging\"()",
    "SELECT * FROM enable_profiling()",
    "SELECT * FROM query('SELECT ' || '42')",
    "SELECT * FROM \"query\" /* ( */ ('SELECT 42')",
    "SELECT * FROM query_table('__held')",
    "SELECT * FROM checkpoint()",
    "SELECT write_log('x')",
    "DELETE FROM __held",
    "DROP VIEW \"silver.walls\"",
    "INSERT INTO __held VALUES ('a', 'b', 'c')",
    "SELECT 1; DROP VIEW \"silver.walls\"",
    "BEGIN",
    "COMMIT",
    "EXPLAIN ANALYZE SELECT 1",
    "PREPARE held AS SELECT 1, 2, 3",
    "",
    "-- nothing",
    "SELECT 1\0",
]  # fmt: skip


def test_nothing_outside_is_reached_even_past_the_guard(line: BlockingChannel) -> None:
    load(line, "silver.walls", [(1, 1, 1)], 3)
    for sql in OUTSIDE:
        reply = ask(line, sql)
        assert code(reply) == "query", sql
        paths = re.findall(r"/[\w./-]+", str(reply.error))
        assert all(path in sql for path in paths), "only what the asker said"
        reply = ask(line, 'SELECT id FROM "silver.walls"', {"silver.walls": 3})
        assert rows_of(reply) == [[1]], f"after {sql}"
    assert not Path("/tmp/thermocline-node.csv").exists()
    assert not Path("/tmp/node-log").exists()


def test_errors_tell_no_value_of_a_row(line: BlockingChannel) -> None:
    for sql in ("SELECT ('card ' || 4111)::int", "SELECT 2147483647::int + 4111::int * 1000000",
                "SELECT cast('4111-x' AS date) FROM range(3)"):  # fmt: skip
        reply = ask(line, sql)
        assert code(reply) == "query"
        assert "4111" not in str(reply.error)
    load(line, "silver.secrets", [(1, 1, 1)], 1)
    assert "silver" not in str(ask(line, "SELECT * FROM secrets").error), "nor a table's name"


def test_results_are_stopped_at_their_bounds(line: BlockingChannel) -> None:
    began = time.monotonic()
    assert code(ask(line, "SELECT * FROM range(100000000000)")) == "too-many-rows"
    assert code(ask(line, "SELECT i FROM range(1001) t(i)", rows=1000)) == "too-many-rows"
    assert len(rows_of(ask(line, "SELECT i FROM range(1000) t(i)", rows=1000))) == 1000
    wide = "SELECT repeat('x', 10000) FROM range(100000)"
    assert code(ask(line, wide, rows=10**6, bytes=1 << 20)) == "too-large"
    assert time.monotonic() - began < 10


def test_a_query_that_is_cancelled_or_too_long_ends(node: Running, line: BlockingChannel) -> None:
    endless = "SELECT count(*) FROM range(1000000000000) t(i) WHERE i % 7 = 8"
    assert code(ask(line, endless, seconds=0.3)) == "too-long"
    other = node.line()

    def give_up() -> None:
        with pytest.raises(ConnectionLost):
            ask(other, endless)

    asker = threading.Thread(target=give_up)
    asker.start()
    while not ok(line.ask({"do": "ping"}))["running"]:
        time.sleep(0.01)
    other._sock.shutdown(2)  # nobody waits for it any more
    until = time.monotonic() + 5
    while ok(line.ask({"do": "ping"}))["running"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    asker.join(5)
    assert rows_of(ask(line, "SELECT 1")) == [[1]]


def test_memory_attacks_leave_it_alive_or_known_to_be_dead(tmp_path: Path) -> None:
    attacks = [
        "SELECT length(rpad('x', 2000000000, 'y'))",
        "SELECT repeat('x', 100000000) FROM range(100)",
        "SELECT list(i) FROM range(1000000000) t(i)",
        "SELECT i FROM range(300000000) t(i) ORDER BY hash(i)",
        "SELECT string_agg(i::varchar, '') FROM range(1000000000) t(i)",
        "WITH RECURSIVE r AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM r) SELECT * FROM r",
    ]
    with Running(tmp_path / "n", *NODE) as running:
        line = running.line()
        load(line, "silver.kept", [(n, 1, n) for n in range(1000)], 9)
        for sql in attacks:
            try:
                found = code(ask(line, sql, seconds=3))
                assert found in ("memory", "crowded", "too-long", "query"), sql
                kept = ask(line, 'SELECT sum(id) FROM "silver.kept"', {"silver.kept": 9})
                assert rows_of(kept) == [[499500]]
            except ConnectionLost:
                assert running.process.wait(5) != 0
                return
        assert ok(line.ask({"do": "ping"}))["rss"] < (512 + 384) << 20


def test_a_copy_that_does_not_fit_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    small = ("-m", "thermocline.serve.node", "--memory", str(128 << 20), "--threads", "1")
    with Running(tmp_path / "n", *small) as running:
        line = running.line()
        load(line, "silver.kept", [(n, 1, n) for n in range(1000)], 9)
        ok(line.ask(staging.begin("big")))
        said = staging.create("big", "silver.big", [("s", "string")], 1, expect=1 << 30)
        assert code(line.ask(said)) == "memory"
        ok(line.ask(staging.create("big", "silver.big", [("s", "string")], 1)))
        found = ""
        for number in range(100):
            noise = pa.table({"s": [os.urandom(500).hex() for _ in range(2000)],
                              "__file": pa.array([number] * 2000, pa.int32()),
                              "__pos": pa.array(range(2000), pa.int64())})  # fmt: skip
            reply = line.ask(staging.add_rows("big", "silver.big"), staging.encode_body(noise))
            if reply.error:
                found = code(reply)
                break
        assert found == "memory", reply.error
        assert list(ok(line.ask(staging.apply("big")))["tables"]) == ["silver.kept"]
        assert ok(line.ask({"do": "held"}))["memory"] < 32 << 20, "what was staged is gone"
        reply = ask(line, 'SELECT count(*) FROM "silver.kept"', {"silver.kept": 9})
        assert rows_of(reply) == [[1000]]


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "THERMOCLINE_S3_SECRET", "FOO"])
def test_it_does_not_start_where_there_could_be_a_secret(tmp_path: Path, name: str) -> None:
    running = Running(tmp_path / "n", *NODE, environment={name: "canary-value"})
    assert running.said == b""
    assert running.process.wait(10) == 2
    assert running.process.stderr
    said = running.process.stderr.read().decode()
    assert name in said and "canary-value" not in said and "Traceback" not in said
    running.stop()


# Changing while it is asked ----------------------------------------------------------------------


def test_two_tables_are_always_of_one_look(node: Running, line: BlockingChannel) -> None:
    """Both tables get the same rows in each change, so both sums match in every query."""
    for table in ("gold.left", "gold.right"):
        load(line, table, [(n, 0, n) for n in range(100)], 1)
    done = threading.Event()
    wrong: list[Any] = []
    seen: set[str] = set()
    sql = ('SELECT (SELECT sum(id) FROM "gold.left"), (SELECT count(*) FROM "gold.left"), '
           '(SELECT sum(id) FROM "gold.right"), (SELECT count(*) FROM "gold.right")')  # fmt: skip
    expected = {"1": (sum(range(100)), 100)}

    def poll() -> None:
        own = node.line()
        tables = {"l": {"table": "gold.left"}, "r": {"table": "gold.right"}}
        while not done.is_set():
            reply = ask(own, sql, tables=tables)
            ((left, left_count, right, right_count),) = rows_of(reply)
            snapshots = set(reply.header["snapshots"].values())
            told = expected.get(next(iter(snapshots)))
            if len(snapshots) != 1 or not (
                (int(left), left_count) == (int(right), right_count) == told
            ):
                wrong.append((reply.header["snapshots"], left, right, told))
            seen.update(snapshots)

    threads = [threading.Thread(target=poll) for _ in range(3)]
    for thread in threads:
        thread.start()
    live = {(0, n): n for n in range(100)}
    for snapshot in range(2, 42):
        change = f"poll{snapshot}"
        added = {(snapshot, n): snapshot * 1000 + n for n in range(50)}
        gone = [next(iter(live))]
        live = {spot: n for spot, n in live.items() if spot not in gone} | added
        if snapshot % 7 == 0:
            live = {spot: n for spot, n in live.items() if spot[0] != snapshot - 3}
        expected[str(snapshot)] = (sum(live.values()), len(live))
        ok(line.ask(staging.begin(change)))
        for table in ("gold.left", "gold.right"):
            if snapshot % 10 == 0:  # from time to time a new copy instead
                ok(line.ask(staging.create(change, table, COLUMNS, snapshot, sort="at")))
                rows = [(n, file, pos) for (file, pos), n in live.items()]
            else:
                ok(line.ask(staging.advance(change, table, snapshot - 1, snapshot)))
                files = [snapshot - 3] if snapshot % 7 == 0 else []
                ok(line.ask(staging.remove(change, table, files), spots(gone)))
                rows = [(n, file, pos) for (file, pos), n in added.items()]
            ok(line.ask(staging.add_rows(change, table), staging.encode_body(arrow(rows))))
        ok(line.ask(staging.apply(change)))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert len(seen) > 5, "queries ran between the changes"


def test_2000_queries_from_8_threads(node: Running, line: BlockingChannel) -> None:
    load(line, "silver.many", [(n, 1, n) for n in range(1000)], 4)
    failed: list[Any] = []

    def work(first: int) -> None:
        own = node.line()
        for number in range(first, 2000, 8):
            low = number % 900
            sql = (
                f'SELECT count(*), min(id) FROM "silver.many" WHERE id >= {low} AND id < {low + 50}'
            )
            reply = ask(own, sql, {"silver.many": 4})
            if reply.error or rows_of(reply) != [[50, low]]:
                failed.append(reply)
        own.close()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


STEPS = st.lists(
    st.fixed_dictionaries({
        "kind": st.sampled_from(["advance", "advance", "advance", "new", "abandon"]),
        "add": st.lists(st.integers(0, 200), max_size=12),
        "files": st.sets(st.integers(0, 12), max_size=2),
        "spots": st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
        "cut": st.none() | st.integers(0, 150),
    }),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_any_sequence_of_changes_is_what_a_plain_model_says(
    node: Running, steps: list[dict[str, Any]]
) -> None:
    line = node.line()
    table, snapshot, cut = "silver.model", 1, 0
    load(line, table, [], snapshot, since=START)
    model: dict[tuple[int, int], int] = {}
    for file, step in enumerate(steps):
        change = f"m{next(_changes)}"
        added = {(file, position): n for position, n in enumerate(step["add"])}
        rows = [(n, *spot) for spot, n in added.items()]
        ok(line.ask(staging.begin(change)))
        if step["kind"] == "new":
            after = added
            since = 0
            ok(
                line.ask(
                    staging.create(change, table, COLUMNS, snapshot + 1, since=START, sort="at")
                )
            )
        else:
            since = max(cut, step["cut"] or 0)
            later = START + timedelta(hours=since) if step["cut"] is not None else None
            ok(line.ask(staging.advance(change, table, snapshot, snapshot + 1, since=later)))
            ok(line.ask(staging.remove(change, table, step["files"]),
                        spots(step["spots"]) if step["spots"] else b""))  # fmt: skip
            after = {spot: n for spot, n in model.items()
                     if spot[0] not in step["files"] and spot not in step["spots"]}  # fmt: skip
            after |= added
            after = {spot: n for spot, n in after.items() if n >= since}
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            ok(line.ask(staging.add_rows(change, table), staging.encode_body(arrow(half))))
        if step["kind"] == "abandon":
            ok(line.ask(staging.abandon(change)))
        else:
            held = ok(line.ask(staging.apply(change)))["tables"][table]
            snapshot, model, cut = snapshot + 1, after, since
            assert held["rows"] == len(model)
        reply = ask(line, f'SELECT id, amount FROM "{table}" ORDER BY id', {table: snapshot})
        assert rows_of(reply) == [[n, f"{Decimal(n) / 4:.2f}"] for n in sorted(model.values())]
    line.close()


def test_a_copy_that_is_mostly_deleted_rows_is_written_anew(tmp_path: Path) -> None:
    """Otherwise a table that is updated all day would fill the node with rows nobody sees."""
    with Running(tmp_path / "n", *NODE) as running:
        line = running.line()
        columns = [("id", "long"), ("noise", "string")]

        def rows(file: int) -> bytes:
            count = 40_000
            return staging.encode_body(pa.table({
                "id": pa.array(range(count), pa.int64()),
                "noise": [f"{file} {n * 7919 % 1000003}" for n in range(count)],
                "__file": pa.array([file] * count, pa.int32()),
                "__pos": pa.array(range(count), pa.int64()),
            }))  # fmt: skip

        ok(line.ask(staging.begin("first")))
        ok(line.ask(staging.create("first", "silver.churn", columns, 1)))
        ok(line.ask(staging.add_rows("first", "silver.churn"), rows(1)))
        memory = [ok(line.ask(staging.apply("first")))["memory"]]
        for number in range(2, 14):
            change = str(number)
            ok(line.ask(staging.begin(change)))
            ok(line.ask(staging.advance(change, "silver.churn", number - 1, number)))
            ok(line.ask(staging.remove(change, "silver.churn", [number - 1])))
            ok(line.ask(staging.add_rows(change, "silver.churn"), rows(number)))
            held = ok(line.ask(staging.apply(change)))
            assert held["tables"]["silver.churn"]["rows"] == 40_000
            memory.append(held["memory"])
        assert max(memory) < 12 * (memory[0] + (1 << 20)), memory
        copies = "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'copies'"
        assert rows_of(ask(line, copies)) == [[1]]
        found = ask(line, 'SELECT count(*), min(noise) FROM "silver.churn"', {"silver.churn": 13})
        assert rows_of(found) == [[40_000, "13 0"]]
