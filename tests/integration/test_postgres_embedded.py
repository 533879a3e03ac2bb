"""Postgres change data capture without Kafka: a real server, a real Debezium, a real lake."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from tests.integration.postgres_project import RAW, Project
from tests.servers.postgres import PASSWORD

from thermocline.errors import Permanent
from thermocline.ingest import marks
from thermocline.ingest.feed import LostData, OtherStream
from thermocline.ingest.postgres.log_position import LogPosition
from thermocline.ingest.postgres.replication_slot import LogReplaced, SlotManager
from thermocline.ingest.stream import open_ingester, poll_sources


@pytest.fixture
def shop(captured: Project) -> Project:
    return captured


def test_first_state_then_changes_land_once_in_source_order(shop: Project) -> None:
    shop.sql(
        "insert into orders values (1, 'ann', 12345678901234567890123456.78, "
        "'2024-05-06 07:08:09.123456+02', '2024-05-06', '2024-05-06 07:08:09.654321', "
        "'{a,b}', '{\"x\": 7}'), (2, 'bob', 2.00, null, null, null, null, null)"
    )
    assert shop.ingest() == (2, 0)
    assert shop.ingest() == (0, 0)
    shop.sql(
        "begin; insert into orders values (3, 'cec'), (4, 'dan');"
        "update orders set customer = 'cecil' where id = 3; update orders set id = 5 where id = 4;"
        "commit",
        "begin; delete from orders; rollback",
        "delete from orders where id = 2",
    )
    assert shop.ingest() == (6, 0)
    changes = shop.bronze("_op", "id", "customer", "_table", "_source_file", "_position")
    assert [row[:3] for row in changes] == [
        ("r", 1, "ann"),
        ("r", 2, "bob"),
        ("c", 3, "cec"),
        ("c", 4, "dan"),
        ("u", 3, "cecil"),
        ("d", 4, None),
        ("c", 5, "dan"),
        ("d", 2, None),
    ]
    assert {row[3:5] for row in changes} == {("orders", "public.orders")}
    assert [row[5] for row in changes] == [1, 2, 3, 4, 5, 6, 7, 8]
    [first] = [row for row in shop.bronze("id", "_raw", "_key", "_event_time") if row[0] == 1]
    assert json.loads(first[1])["after"]["customer"] == "ann"
    assert first[2] == b'{"id":1}'
    shop.run()
    assert shop.silver() == shop.truth()
    assert shop.silver()[0] == (
        1,
        "ann",
        Decimal("12345678901234567890123456.78"),
        dt.datetime(2024, 5, 6, 5, 8, 9, 123456, dt.UTC),
        dt.date(2024, 5, 6),
        dt.datetime(2024, 5, 6, 7, 8, 9, 654321),
        ["a", "b"],
        {"x": 7},
    )


def test_a_change_under_way_while_the_first_state_is_read_wins_over_it(shop: Project) -> None:
    """A slot begins when the transactions of before have ended; those of meanwhile go on.

    Their first changes lie before the slot's beginning in the log, and yet come after it.
    """
    shop.sql("insert into orders values (1, 'before')")
    connections = [shop.server.connect(shop.database) for _ in range(3)]
    with ExitStack() as opened:
        older, old, ours = (opened.enter_context(closing(each)) for each in connections)
        held = _begun(older)
        reading = threading.Thread(target=shop.ingest)
        reading.start()
        _await_waiting_for(shop, held)
        held = _begun(old)
        older.commit()
        _await_waiting_for(shop, held)
        _begun(ours)
        ours.cursor().execute("update orders set customer = 'after'")
        old.commit()
        reading.join()
        assert shop.bronze("_op", "customer") == [("r", "before")]
        ours.commit()
    assert shop.ingest() == (1, 0)
    shop.run()
    assert shop.silver() == shop.truth()
    assert shop.silver()[0][1] == "after"


def _begun(connection: Any) -> int:
    """Begin a transaction that has a number; gives that."""
    connection.autocommit = False
    cursor = connection.cursor()
    cursor.execute("select txid_current()")
    return int(cursor.fetchone()[0])


def _await_waiting_for(shop: Project, transaction: int) -> None:
    """Until somebody waits for the end of a transaction: the slot that is being made."""
    waiting = (
        "select 1 from pg_locks where locktype = 'transactionid' and not granted "
        f"and transactionid::text = '{transaction % (1 << 32)}'"
    )
    deadline = time.monotonic() + 60
    while not shop.sql(waiting):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_truncate_deletes_every_row_there_was(shop: Project) -> None:
    shop.sql("insert into orders select g, 'n' || g from generate_series(1, 3) g")
    shop.ingest()
    shop.sql(
        "insert into orders values (4, 'late')", "delete from orders where id = 1",
        "truncate orders", "insert into orders values (2, 'again')",
    )  # fmt: skip
    shop.ingest()
    shop.run()
    assert shop.silver() == shop.truth()
    assert [row[1] for row in shop.silver()] == ["again"]
    deleted = [row[1] for row in shop.bronze("_op", "id") if row[0] == "d"]
    assert sorted(deleted) == [1, 2, 3, 4]


def test_a_dropped_slot_is_an_error_that_says_how_to_read_the_tables_anew(shop: Project) -> None:
    shop.sql("insert into orders values (1, 'ann'), (2, 'bob')")
    shop.ingest()
    [(slot, _)] = shop.slots()
    shop.sql(f"select pg_drop_replication_slot('{slot}')")
    shop.sql("delete from orders where id = 1", "update orders set customer = 'rob'")
    with pytest.raises(LostData) as raised:
        shop.ingest()
    assert f"the replication slot {slot} was dropped" in raised.value.cause
    assert "Data may be missing" in raised.value.next_step
    assert "thermo stream orders --accept-loss" in raised.value.next_step
    assert shop.slots() == []
    shop.ingest(accept_loss=True)
    shop.run()
    assert shop.silver() == shop.truth()
    shop.sql("insert into orders values (9, 'new')")
    assert shop.ingest() == (1, 0)


def test_the_slot_never_runs_ahead_of_what_has_landed(shop: Project) -> None:
    shop.ingest()
    [(_, before)] = shop.slots()
    shop.sql("insert into orders values (1, 'ann')")
    shop.ingest()
    [(_, after)] = shop.slots()
    assert after > before
    lsns = [row[0] for row in shop.bronze("_lsn")]
    assert len(lsns) == 1 and lsns[0] < after


def test_a_log_that_went_back_or_is_another_server_s_is_refused_for_good(shop: Project) -> None:
    shop.sql("insert into orders values (1, 'ann')")
    shop.ingest()
    lakehouse = shop.open()
    source = lakehouse.sources["orders"]
    mark = marks.read(lakehouse.lake, lakehouse.lake.state(RAW), "orders")
    assert mark is not None
    manager = SlotManager(lakehouse.lake, source, "thermocline_orders")
    for changed, says in (
        ({"commit": mark.position["commit"] + (1 << 40)}, "back before what landed"),
        ({"system": "1"}, "another server's"),
        ({"commit": mark.position["commit"] - 1}, "was moved on or recreated"),
    ):
        with pytest.raises(LostData) as raised:
            manager.verify(LogPosition.from_bookmark({**mark.position, **changed}))
        assert says in raised.value.cause
        assert "Data may be missing" in raised.value.next_step
        assert isinstance(raised.value, LogReplaced) is ("moved on" not in says)


def test_a_second_reader_of_the_slot_stops_and_the_first_goes_on(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thermocline.ingest.postgres.replication_slot.RELEASE_TIMEOUT_SECONDS", 0.5)
    lakehouse = shop.open()
    source, contract = lakehouse.sources["orders"], lakehouse.contracts[RAW]
    with closing(open_ingester(lakehouse.lake, source, contract)) as first:
        shop.sql("insert into orders values (1, 'ann')")
        taken = first.ingest_batch()
        assert taken is not None and taken.rows == 1
        with pytest.raises(OtherStream) as raised:
            shop.ingest()
        assert "Let only one of them run" in raised.value.next_step
        shop.sql("insert into orders values (2, 'bob')")
        taken = first.ingest_batch()
        assert taken is not None and taken.rows == 1
    assert shop.bronze("_op", "id") == [("r", 1), ("c", 2)]


def test_two_ingests_at_once_land_every_change_once(shop: Project) -> None:
    shop.sql("insert into orders select g, 'n' || g from generate_series(1, 20000) g")
    shop.ingest()
    shop.sql("update orders set amount = 1")
    both = [started(shop), started(shop)]
    said = [each.communicate(timeout=240) for each in both]
    assert min(each.returncode for each in both) == 0, said
    for each, (out, err) in zip(both, said, strict=True):
        assert each.returncode == 0 or "other-stream" in out, (out, err)
    shop.run()
    assert shop.silver() == shop.truth()
    positions = [row[0] for row in shop.bronze("_position")]
    assert positions == list(range(1, len(positions) + 1))


def test_two_first_ingests_at_once_land_the_first_state_once(shop: Project) -> None:
    """Neither may take the other's slot for its own."""
    shop.sql("insert into orders select g, 'n' || g from generate_series(1, 20000) g")
    both = [started(shop), started(shop)]
    shop.sql("update orders set amount = 1 where id < 100")
    said = [each.communicate(timeout=240) for each in both]
    assert min(each.returncode for each in both) == 0, said
    for each, (out, err) in zip(both, said, strict=True):
        assert each.returncode == 0 or "other-stream" in out, (out, err)
    shop.ingest()
    shop.run()
    assert shop.silver() == shop.truth()
    assert len({row[0] for row in shop.bronze("_position")}) == len(shop.bronze("_position"))


def test_interrupted_it_ends_after_the_batch_in_hand(shop: Project) -> None:
    shop.ingest()
    shop.source(batch={"rows": 5000, "bytes": 1 << 28})
    shop.sql("insert into orders select g, 'n' || g from generate_series(1, 20000) g")
    command = started(shop)
    time.sleep(6)
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=10)  # a batch that takes long is cut off
    assert command.returncode == 130, (out, err)
    assert "ending after the current batch" in err
    assert "Traceback" not in out + err and "py4j" not in out + err
    landed = len(shop.bronze("id"))
    assert landed % 5000 == 0 and landed < 20000
    shop.ingest()
    assert len(shop.bronze("id")) == 20000


def started(shop: Project) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "thermocline.cli.main", "ingest", "orders", "--json"]
    return subprocess.Popen(
        command, cwd=shop.folder, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # As in a terminal, even where these tests run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_schema_changes_follow_the_contract_s_policy(shop: Project) -> None:
    shop.contracts(drift="add")
    shop.sql("insert into orders values (1, 'ann', 5)")
    shop.ingest()
    shop.sql(
        "alter table orders add column channel text",
        "insert into orders (id, customer, channel) values (2, 'bob', 'web')",
        "alter table orders rename column channel to medium",
        "insert into orders (id, customer, medium) values (3, 'cec', 'app')",
        "alter table orders drop column amount",
        "insert into orders (id, customer) values (4, 'dan')",
    )
    assert shop.ingest() == (3, 0)
    assert shop.bronze("id", "amount", "channel", "medium") == [
        (1, 5, None, None),
        (2, None, "web", None),
        (3, None, None, "app"),
        (4, None, None, None),
    ]


def test_a_column_added_with_a_default_is_not_null_in_silence(shop: Project) -> None:
    shop.contracts(drift="add")
    shop.sql("insert into orders values (1, 'ann'), (2, 'bob')")
    shop.ingest()
    shop.sql(
        "alter table orders add column note text",
        "alter table orders add column channel text default 'web'",
        "update orders set amount = 1 where id = 1",
    )
    with pytest.raises(LostData) as raised:
        shop.ingest()
    assert "the column channel of public.orders was added with a default" in raised.value.cause
    assert "thermo stream orders --accept-loss" in raised.value.next_step
    shop.ingest(accept_loss=True)
    found = shop.open().table(RAW).to_arrow().to_pylist()
    assert {r["id"]: r["channel"] for r in found if r["_op"] == "r" and r["channel"]} == {
        1: "web",
        2: "web",
    }
    shop.sql("alter table orders rename channel to medium")
    assert shop.ingest() == (0, 0)


def test_a_table_that_the_publication_does_not_send_is_refused(shop: Project) -> None:
    shop.sql(
        "create table parted (id int primary key, customer text) partition by hash (id)",
        "create table parted_0 partition of parted for values with (modulus 1, remainder 0)",
        "create publication theirs for table parted",
    )
    for tables in (["public.orders"], ["public.parted"]):
        shop.source(publication="theirs", tables=tables)
        with pytest.raises(Permanent) as raised:
            shop.ingest()
        assert "is not in the publication theirs" in raised.value.cause


def test_a_generated_column_that_is_not_sent_is_refused(shop: Project) -> None:
    shop.sql(
        "alter table orders drop column amount",
        "alter table orders add column amount numeric(30,2) generated always as (id * 2) stored",
    )
    with pytest.raises(Permanent) as raised:
        shop.ingest()
    assert "the column amount of public.orders is not in the publication" in raised.value.cause


@pytest.mark.parametrize("kind", ["bit(8)", "bit varying"])
def test_bits_that_the_contract_calls_bytes_are_refused(shop: Project, kind: str) -> None:
    shop.sql("alter table orders drop column customer", f"alter table orders add customer {kind}")
    path = shop.folder / "contracts" / "bronze" / "raw_orders.odcs.yaml"
    said = "{name: customer, physicalType: %s}"
    path.write_text(path.read_text().replace(said % "string", said % "binary"))
    with pytest.raises(Permanent) as raised:
        shop.ingest()
    assert "the column customer of public.orders is of type" in raised.value.cause


def test_a_change_that_the_contract_refuses_is_quarantined_with_its_place(shop: Project) -> None:
    shop.source(badShare=1)
    shop.ingest()
    shop.sql(
        "alter table orders add column channel text",
        "insert into orders (id, customer, channel) values (1, 'ann', 'web')",
    )
    assert shop.ingest() == (0, 1)
    [row] = shop.open().quarantine(RAW)
    assert row.file == "public.orders"
    assert row.position == 1
    assert row.reasons == ("fields that the contract does not name: channel",)
    # Without the field it lands, as the change that it was, and only once.
    [exported], _ = shop.open().export_quarantine("orders")
    assert (exported["id"], exported["channel"], exported["_op"]) == (1, "web", "c")
    del exported["channel"]
    mended = shop.folder / "mended.jsonl"
    mended.write_text(json.dumps(exported))
    assert [shop.open().replay("orders", mended).replayed for _ in range(2)] == [1, 0]
    assert shop.bronze("id", "customer", "_op", "_position", "_source_file") == [
        (1, "ann", "c", 1, "public.orders")
    ]


def test_a_password_is_in_no_log_and_on_no_command_line(shop: Project) -> None:
    lakehouse = shop.open()
    source, contract = lakehouse.sources["orders"], lakehouse.contracts[RAW]
    with closing(open_ingester(lakehouse.lake, source, contract)) as ingester:
        shop.sql("insert into orders values (1, 'ann')")
        ingester.ingest_batch()
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert any(b"postgres.capture_worker" in line for line in lines)
    assert not any(PASSWORD.encode() in line for line in lines)
    logs = list((shop.folder / ".thermocline").glob("*.log"))
    assert not any(PASSWORD in log.read_text(errors="replace") for log in logs)


@pytest.mark.parametrize("point", ["ingest.committed-bronze", "ingest.published"])
def test_killed_while_landing_every_change_lands_once(shop: Project, point: str) -> None:
    shop.sql("insert into orders values (1, 'ann')")
    shop.ingest()
    shop.sql("insert into orders values (2, 'bob')", "delete from orders where id = 1")
    command = [sys.executable, "-m", "thermocline.cli.main", "ingest", "orders"]
    environ = {**os.environ, "THERMOCLINE_CRASH_AT": point}
    killed = subprocess.run(
        command, cwd=shop.folder, env=environ, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shop.sql("insert into orders values (3, 'cec')")
    shop.ingest()
    assert shop.bronze("_position", "_op", "id") == [
        (1, "r", 1),
        (2, "c", 2),
        (3, "d", 1),
        (4, "c", 3),
    ]


def test_a_server_that_crashes_while_it_is_captured_is_waited_for(shop: Project) -> None:
    """A killed backend has Postgres end all others and recover, as an immediate restart does."""
    lakehouse = shop.open()
    source, contract = lakehouse.sources["orders"], lakehouse.contracts[RAW]
    stop, landed = threading.Event(), 0
    deadline = time.monotonic() + 90
    shop.sql("insert into orders values (1, 'ann')")
    with closing(open_ingester(lakehouse.lake, source, contract)) as stream:
        for beat in poll_sources(lakehouse.lake, [stream], every=0.1, stop=stop):
            landed += beat.batch.rows if beat.batch else 0
            if beat.batch and landed == 2:
                shop.sql("insert into orders values (3, 'cec')")
                _crash(shop, "insert into orders values (9, 'never committed')")
                shop.sql("insert into orders values (4, 'dan')", "delete from orders where id = 1")
            elif beat.batch and landed == 1:
                shop.sql("insert into orders values (2, 'bob')")
            if landed >= 5 or time.monotonic() > deadline:
                stop.set()
    assert shop.ingest() == (0, 0)
    assert shop.bronze("_position", "_op", "id") == [
        (1, "r", 1),
        (2, "c", 2),
        (3, "c", 3),
        (4, "c", 4),
        (5, "d", 1),
    ]


def _crash(shop: Project, unfinished: str) -> None:
    """Crash the server in the middle of a transaction, and wait until it lets us in again."""
    connection = shop.server.connect(shop.database)
    connection.autocommit = False
    connection.cursor().execute(unfinished)
    os.kill(connection.info.backend_pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        try:
            shop.sql("select 1")
            return
        except psycopg2.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
