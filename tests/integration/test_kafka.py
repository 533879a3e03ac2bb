"""Messages of a real broker on their way into bronze."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from tests.integration.kafka_project import TARGET, Project, order
from tests.servers.kafka import Kafka, Message

from thermocline.errors import CheckFailed
from thermocline.ingest.feed import LostData


@pytest.fixture
def orders(project: Path, kafka_server: Kafka) -> Project:
    """A source of a topic with two partitions."""
    return Project(project, kafka_server, kafka_server.create(partitions=2))


def test_messages_land_with_all_that_came_with_them(orders: Project) -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 123000, UTC)
    sent = Message(
        order(7, note="é"),
        key=b"k7",
        headers=(("trace", b"\x00\xff"), ("trace", b"again")),
        partition=1,
        timestamp_ms=int(moment.timestamp() * 1000),
    )
    orders.server.send(orders.topic, [order(1), sent])
    assert orders.ingest() == (2, 0)
    assert orders.rows("id", "amount", "_source", "_source_file", "_position") == [
        (1, Decimal("1.50"), "orders", f"{orders.topic}/0", 0),
        (7, Decimal("7.50"), "orders", f"{orders.topic}/1", 0),
    ]
    [_, landed] = orders.rows("note", "_key", "_headers", "_event_time", "_raw", "_rescued")
    assert landed == (
        "é",
        b"k7",
        [{"key": "trace", "value": b"\x00\xff"}, {"key": "trace", "value": b"again"}],
        moment,
        sent.value,
        None,
    )


def test_each_message_lands_once_however_often_it_is_asked_for(orders: Project) -> None:
    orders.server.send(orders.topic, [order(n) for n in range(5)])
    assert orders.ingest() == (5, 0)
    assert orders.ingest() == (0, 0)
    orders.server.send(orders.topic, [order(n) for n in range(5, 8)])
    assert orders.ingest() == (3, 0)
    assert orders.rows("id", "_position") == [(n, n) for n in range(8)]


def test_a_poison_record_is_set_aside_with_its_offset_and_the_rest_goes_on(
    orders: Project,
) -> None:
    poison = {
        b'{"id": "x"}': 'id: "x" is not of type long',
        b"no json": "not a JSON object",
        b'{"id": 1} {"id": 2}': "not a JSON object",
        b'{"id": 1, "note": "\xff\xfe"}': "not valid text in its encoding",
        b'{"note": "n"}': "id is missing",
        order(3, colour="red"): "fields that the contract does not name: colour",
    }
    orders.server.send(orders.topic, [order(0), *poison, order(9)])
    orders.server.send(orders.topic, [Message(order(n), partition=1) for n in range(20)])
    assert orders.ingest() == (22, 6)
    set_aside = orders.open().quarantine(TARGET)
    assert [(row.file, row.position) for row in set_aside] == [
        (f"{orders.topic}/0", n) for n in range(1, 7)
    ]
    for row, reason in zip(set_aside, poison.values(), strict=True):
        assert reason in row.reasons[0]
    assert [row.raw for row in set_aside][:2] == ['{"id": "x"}', "no json"]
    assert set_aside[3].raw == '{"id": 1, "note": "ÿþ"}'  # byte by byte, as Latin-1 shows it
    assert orders.ingest() == (0, 0)


def test_mended_messages_land_once_with_what_came_with_them(
    orders: Project, tmp_path: Path
) -> None:
    bad = Message(b'{"id": "x", "note": "kept"}', key=b"k", headers=(("h", b"v"),))
    orders.server.send(orders.topic, [bad, order(1), order(2, colour="red")])
    assert orders.ingest() == (1, 2)
    [row, _] = orders.open().quarantine(TARGET)
    mended = tmp_path / "mended.jsonl"
    mended.write_text(f'{{"id": "{row.id}", "row": {{"id": 5}}}}\n')
    assert orders.open().replay("orders", mended).replayed == 1
    assert orders.open().replay("orders", mended).replayed == 0
    found = orders.rows("id", "note", "_position", "_key", "_headers", "_raw")
    headers = [{"key": "h", "value": b"v"}]
    assert found == [
        (5, "kept", 0, b"k", headers, bad.value),
        (1, "n", 1, None, None, order(1)),
    ]
    assert orders.ingest() == (0, 0)  # a replay does not hide how far the topic was read

    # An exported row is the whole record: a field that is not wanted is taken out of it.
    [exported], _ = orders.open().export_quarantine("orders")
    assert (exported["id"], exported.pop("colour")) == (2, "red")
    mended.write_text(json.dumps(exported))
    assert [orders.open().replay("orders", mended).replayed for _ in range(2)] == [1, 0]
    assert orders.rows("id", "_position", "_raw")[2] == (2, 2, order(2, colour="red"))


def test_tombstones_are_kept_where_the_contract_allows(orders: Project) -> None:
    orders.contract(required=False)
    orders.server.send(orders.topic, [order(1), Message(None, key=b"1")])
    assert orders.ingest() == (2, 0)
    assert orders.rows("id", "_key", "_raw")[1] == (None, b"1", None)
    orders.contract(required=True)


def test_more_bad_records_than_allowed_stop_it_and_nothing_lands(orders: Project) -> None:
    orders.source(badShare=0.2)
    orders.server.send(orders.topic, [order(n) for n in range(30)] + [b"bad"] * 15)
    with pytest.raises(CheckFailed, match=r"15 of 45 rows for bronze.raw_orders are bad") as told:
        orders.ingest()
    assert f"{orders.topic}/0:30 not a JSON object" in told.value.cause
    assert orders.rows("id") == []
    orders.source(badShare=0.9)
    assert orders.ingest() == (30, 15)


def test_fields_the_contract_does_not_name_follow_its_policy(orders: Project) -> None:
    orders.contract("rescue")
    orders.server.send(orders.topic, [order(1, colour="red")])
    assert orders.ingest() == (1, 0)
    assert orders.rows("_rescued") == [([("colour", "red")],)]
    orders.contract("add")
    orders.server.send(orders.topic, [order(2, size=4)])
    assert orders.ingest() == (1, 0)
    assert orders.rows("id", "size") == [(1, None), (2, "4")]


def test_a_batch_is_bounded_and_ingestion_ends_at_what_was_there(orders: Project) -> None:
    orders.source(batch={"rows": 40})
    sent = [Message(order(n), partition=n % 2) for n in range(100)]
    orders.server.send(orders.topic, sent)
    [target] = orders.open().ingest().targets
    assert target.rows == 100
    history = orders.open().table(TARGET).history()
    assert len([each for each in history if each.operation == "ingest"]) == 3
    assert sorted(orders.rows("id")) == [(n,) for n in range(100)]


def test_very_large_and_very_wide_messages_land(orders: Project) -> None:
    orders.contract("rescue")
    large = order(1, note="x" * (20 << 20))
    wide = order(2, **{f"f{n}": n for n in range(10_000)})
    orders.server.send(orders.topic, [large, wide])
    assert orders.ingest() == (2, 0)
    [one, other] = orders.rows("note", "_raw", "_rescued")
    assert (len(one[0]), one[1]) == (20 << 20, large)
    assert dict(other[2]) == {f"f{n}": str(n) for n in range(10_000)}


def test_a_message_whose_keys_are_data_does_not_make_thousands_of_columns(
    orders: Project,
) -> None:
    orders.contract("add")
    orders.server.send(orders.topic, [order(1, **{f"f{n:04}": n for n in range(10_000)})])
    assert orders.ingest() == (1, 0)
    [(rescued,)] = orders.rows("_rescued")
    added = [name for name in orders.open().table(TARGET).to_arrow().column_names if name[0] == "f"]
    assert added == [f"f{n:04}" for n in range(100)]
    assert dict(rescued) == {f"f{n:04}": str(n) for n in range(100, 10_000)}


def test_what_a_transaction_did_not_commit_never_lands(orders: Project) -> None:
    producer = orders.server.producer(transactional_id=f"tx-{orders.topic}")
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(orders.topic, order(number * 10 + each), partition=0)
        producer.flush(30)  # an abort throws away what was not sent yet
        end(30)
    assert orders.ingest() == (20, 0)
    assert [row[0] for row in orders.rows("id")] == [*range(10), *range(20, 30)]
    producer.begin_transaction()
    producer.produce(orders.topic, order(99), partition=0)
    producer.flush(30)
    assert orders.ingest() == (0, 0)  # still open
    producer.commit_transaction(30)
    assert orders.ingest() == (1, 0)


def test_records_that_were_deleted_before_they_were_read_are_reported(orders: Project) -> None:
    server, topic = orders.server, orders.topic
    server.send(topic, [order(n) for n in range(3)])
    assert orders.ingest() == (3, 0)
    server.send(topic, [order(n) for n in range(3, 10)])
    server.forget(topic, 0, 7)
    with pytest.raises(LostData, match=f"offsets 3 to 6 of {topic}/0 were deleted") as told:
        orders.ingest()
    assert "--accept-loss" in told.value.next_step
    assert orders.ingest(accept_loss=True) == (3, 0)
    assert orders.ingest() == (0, 0)
    assert [row[0] for row in orders.rows("id")] == [0, 1, 2, 7, 8, 9]


def test_a_topic_made_again_is_not_taken_for_the_old_one(orders: Project) -> None:
    server, topic = orders.server, orders.topic
    server.send(topic, [order(n) for n in range(4)])
    assert orders.ingest() == (4, 0)
    server.delete(topic)
    with pytest.raises(LostData, match="does not have the topic"):
        orders.ingest()
    server.create(topic, partitions=2)
    server.send(topic, [order(n) for n in range(10, 20)])
    with pytest.raises(LostData, match=f"{topic} was deleted and created again after 4 of its"):
        orders.ingest()
    assert orders.ingest(accept_loss=True) == (10, 0)
    assert orders.ingest() == (0, 0)


def test_a_partition_that_is_added_is_read_from_its_beginning(orders: Project) -> None:
    orders.server.send(orders.topic, [order(1)])
    assert orders.ingest() == (1, 0)
    orders.server.grow(orders.topic, 3)
    orders.server.send(orders.topic, [Message(order(2), partition=2)])
    assert orders.ingest() == (1, 0)
    assert orders.rows("id", "_source_file")[1] == (2, f"{orders.topic}/2")


def test_a_start_at_the_end_passes_over_what_is_there_and_nothing_else(orders: Project) -> None:
    orders.source(start="latest")
    orders.server.send(orders.topic, [order(1)])
    assert orders.ingest() == (0, 0)
    orders.server.send(orders.topic, [order(2)])
    assert orders.ingest() == (1, 0)
    assert orders.rows("id") == [(2,)]
