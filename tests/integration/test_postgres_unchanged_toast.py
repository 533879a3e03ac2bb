"""Large values that did not change are not sent again, and yet every row is whole."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from tests.integration.odcs import HEAD
from tests.integration.postgres_project import BRONZE, ORDERS, RAW, Project

from thermocline.ingest.debezium import NOT_SENT
from thermocline.ingest.source import BatchLimits
from thermocline.ingest.stream import open_ingester

TABLE = """
drop table orders;
create extension if not exists hstore;
create type mood as enum ('sad', 'happy');
create domain short_text as text;
create table orders (
    id int primary key, n int, note text not null, photo bytea not null, doc jsonb, scores int[],
    prices float8[], days date[], costs numeric[], ids uuid[], tags hstore, exact numeric,
    moods mood[], said short_text
);
"""
LARGE = ("note", "photo", "doc", "scores", "prices", "days", "costs", "ids", "tags", "exact")
COLUMNS = """\
      - {name: id, physicalType: long, required: true%s}
      - {name: n, physicalType: int}
      - {name: note, physicalType: string}
      - {name: photo, physicalType: binary}
      - {name: doc, physicalType: string}
      - {name: scores, logicalType: array, items: {physicalType: int}}
      - {name: prices, logicalType: array, items: {physicalType: double}}
      - {name: days, logicalType: array, items: {physicalType: date}}
      - {name: costs, logicalType: array, items: {physicalType: "decimal(38,20)"}}
      - {name: ids, logicalType: array, items: {physicalType: uuid}}
      - {name: tags, physicalType: string}
      - {name: exact, physicalType: string}
      - {name: moods, logicalType: array, items: {physicalType: string}}
      - {name: said, physicalType: string}
"""
NAMES = [
    "id", "n", "note", "photo", "doc", "scores", "prices", "days", "costs", "ids", "tags", "exact",
    "moods", "said",
]  # fmt: skip
# Values that do not compress, so that they are kept apart from their row.
VALUES = """
select {id}, 0, string_agg(md5(random()::text), ''),
    decode(string_agg(md5(random()::text), ''), 'hex'),
    to_jsonb(string_agg(md5(random()::text), '')),
    array_agg((random() * 1e9)::int), array_agg(random()), array_agg(date '2000-01-01' + g),
    array_agg((random() * 1e15)::bigint + 0.12345678901234567890::numeric),
    array_agg(gen_random_uuid()), hstore('k', string_agg(md5(random()::text), '')),
    (string_agg((1e8 + random() * 1e8)::int::text, ''))::numeric,
    array_agg('happy'::mood), string_agg(md5(random()::text), '')
from generate_series(1, 1500) g
"""


@pytest.fixture
def shop(captured: Project) -> Project:
    captured.sql(
        TABLE,
        "; ".join(f"alter table orders alter {c} set storage external" for c in LARGE),
    )
    folder = captured.folder
    (folder / "contracts/bronze/raw_orders.odcs.yaml").write_text(
        HEAD.format(name="raw_orders") + BRONZE + COLUMNS % ""
        + "customProperties:\n  - {property: write, value: append}\n"
    )  # fmt: skip
    (folder / "contracts/silver/orders.odcs.yaml").write_text(
        HEAD.format(name="orders") + COLUMNS % ", primaryKey: true"
        + "      - {name: source_lsn, physicalType: long, required: true}\n"
        "customProperties:\n"
        "  - {property: write, value: merge}\n"
        "  - {property: orderBy, value: source_lsn}\n"
        "  - {property: deleteWhen, value: \"_op = 'd'\"}\n"
    )  # fmt: skip
    (folder / "models/silver/orders.sql").write_text(
        f"select {', '.join(NAMES)}, _lsn as source_lsn, _op from bronze.raw_orders"
    )
    return captured


def insert(id_: int) -> str:
    return f"insert into orders {VALUES.format(id=id_)}"


def silver(shop: Project) -> list[tuple[Any, ...]]:
    rows = shop.open().table(ORDERS).to_arrow().to_pylist()
    return sorted(tuple(plain(row[name]) for name in NAMES) for row in rows)


def truth(shop: Project) -> list[tuple[Any, ...]]:
    texts = shop.sql(
        "select id, n, note, encode(photo, 'base64'), doc::text, scores, prices, days, costs, "
        "ids::text[], hstore_to_json(tags)::text, exact::text, moods::text[], said::text "
        "from orders order by id"
    )
    found = []
    for row in texts:
        cells = dict(zip(NAMES, row, strict=True))
        cells["photo"] = cells["photo"].replace("\n", "")
        cells["tags"] = json.dumps(json.loads(cells["tags"]), separators=(",", ":"))
        found.append(tuple(plain(cells[name]) for name in NAMES))
    return found


def plain(value: Any) -> Any:
    """A value in a form that compares: bytes as text, lists as tuples, all else as it is."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return tuple(plain(each) for each in value)
    return value if isinstance(value, int | float | str) or value is None else str(value)


def assert_whole(shop: Project) -> None:
    shop.run()
    assert silver(shop) == truth(shop)
    shop.open().run(full_refresh=True)
    assert silver(shop) == truth(shop)


def test_an_unchanged_value_of_any_type_is_kept(shop: Project) -> None:
    shop.sql(insert(1), insert(2))
    assert shop.ingest() == (2, 0)
    shop.sql("update orders set n = 1", "update orders set note = 'new' where id = 1")
    assert shop.ingest() == (3, 0)
    assert_whole(shop)
    shop.sql("update orders set doc = null, photo = '' where id = 2", "update orders set n = 3")
    assert shop.ingest() == (3, 0)
    assert_whole(shop)


def test_it_is_kept_within_a_batch_and_over_changes_of_key(shop: Project) -> None:
    shop.ingest()
    shop.sql(
        f"begin; {insert(1)}; update orders set n = 1; update orders set id = 2; "
        "update orders set id = 3, n = 2; commit",
        "update orders set id = 4",
        f"begin; {insert(3)}; update orders set id = 33 where id = 3;"
        "update orders set id = 3 where id = 4; commit",
        "update orders set n = 9",
    )
    assert shop.ingest()[1] == 0
    assert_whole(shop)
    shop.sql("update orders set id = 5 where id = 3", "update orders set n = 10 where id = 5")
    assert shop.ingest() == (3, 0)
    assert_whole(shop)


@pytest.mark.parametrize("rows", [1, 3])
def test_it_is_kept_whatever_the_batches_are(shop: Project, rows: int) -> None:
    shop.ingest()
    shop.sql(
        insert(1),
        "begin; update orders set id = 2; update orders set n = 1; update orders set id = 1;commit",
        "delete from orders",
        insert(1),
        "update orders set n = n + 1",
    )
    while True:
        lakehouse = shop.open()
        source = lakehouse.sources["orders"]
        contract = lakehouse.contracts[RAW]
        limits = BatchLimits(rows=rows)
        with closing(open_ingester(lakehouse.lake, source, contract, limits=limits)) as ingester:
            taken = ingester.ingest_batch()
        if taken is None:
            break
        assert taken.quarantined == 0
    assert_whole(shop)


def test_a_text_that_equals_a_placeholder_is_a_text(shop: Project) -> None:
    shop.sql(insert(1))
    shop.ingest()
    shop.sql("update orders set note = '__debezium_unavailable_value', said = '{}'")
    assert shop.ingest() == (1, 0)
    assert_whole(shop)
    assert silver(shop)[0][NAMES.index("note")] == "__debezium_unavailable_value"


def test_a_value_behind_a_quarantined_change_is_taken_from_there(shop: Project) -> None:
    shop.source(badShare=1)
    shop.sql(insert(1))
    shop.ingest()
    shop.sql("alter table orders add column odd int", "update orders set note = 'x', odd = 1")
    assert shop.ingest() == (0, 1)
    shop.sql("alter table orders drop column odd", "update orders set n = 7")
    assert shop.ingest() == (1, 0)
    assert_whole(shop)


def test_a_value_that_is_not_known_is_never_guessed(shop: Project) -> None:
    shop.source(badShare=1)
    shop.sql(insert(1))
    shop.ingest()
    lakehouse = shop.open()
    lakehouse.lake.spark.session.sql(f"delete from lake.{RAW}")
    shop.sql("update orders set n = 7", "update orders set n = 8")
    assert shop.ingest() == (0, 2)
    rows = shop.open().quarantine(RAW)
    assert {row.reasons for row in rows} == {(NOT_SENT,)}
    shop.open().replay("orders")
    assert shop.open().table(RAW).to_arrow().num_rows == 0


@pytest.mark.parametrize("point", ["ingest.committed-bronze", "ingest.published"])
def test_killed_while_landing_it_is_kept(shop: Project, point: str) -> None:
    shop.sql(insert(1))
    shop.ingest()
    shop.sql("update orders set n = 1", "update orders set id = 2", "update orders set n = 2")
    command = [sys.executable, "-m", "thermocline.cli.main", "ingest", "orders"]
    environ = {**os.environ, "THERMOCLINE_CRASH_AT": point}
    killed = subprocess.run(
        command, cwd=shop.folder, env=environ, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shop.sql("update orders set n = 3")
    shop.ingest()
    assert [row[0] for row in shop.bronze("_position")] == [1, 2, 3, 4, 5, 6]
    assert_whole(shop)


def test_with_full_identity_every_change_has_all_values(shop: Project) -> None:
    shop.sql("alter table orders replica identity full", insert(1))
    shop.ingest()
    shop.sql("update orders set n = 1", "update orders set id = 2", "delete from orders", insert(3))
    assert shop.ingest()[1] == 0
    assert_whole(shop)
    deleted = [row for row in shop.bronze("_op", "id", "note") if row[0] == "d"]
    assert [row[1] for row in deleted] == [1, 2] and all(row[2] for row in deleted)
