"""Questions that come again after commits: their older part is counted once, and is never stale."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.serve import shop_lake
from tests.integration.serve.routing import CALLER, Serving, rows_of
from tests.integration.serve.shop_lake import PER_DAY, append, order, today

from thermocline.lake import Lake
from thermocline.serve.router import QueryLimits
from thermocline.serve.values import Answer, QueryRequest

TABLE = "silver.orders"
FAR = (
    "select customer_id, count(*) as n, sum(amount) as total, max(ordered_at) as newest"
    " from silver.orders where ordered_at >= current_date - {} group by 1 order by 1"
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return shop_lake.build(tmp_path / "p")


@pytest.fixture
def serving(tmp_path: Path, lake: Lake) -> Iterator[Serving]:
    limits = QueryLimits(verify_share=1.0, split_rows=1)
    serving = Serving(tmp_path / "p", limits)
    serving.settled(lake)
    yield serving
    serving.run(serving.router.verifier.wait())
    assert serving.router.verifier.mismatches == 0
    serving.run(serving.router.stop())


def asked(serving: Serving, lake: Lake, sql: str) -> Answer:
    """The answer of now: kept ones of a moment ago will not do."""
    serving.settled(lake)
    return serving.ask(sql, max_staleness=0)


def older(answer: Answer) -> str | None:
    """What is said of the older part, where the answer came in parts."""
    said = [each for each in answer.provenance["because"] if each.startswith("older rows")]
    return said[0].split()[3].rstrip(",") if said else None


def truth(lake: Lake, days: int) -> list[list[Any]]:
    """The same, counted from all rows of the table."""
    groups: dict[int, list[Any]] = {}
    for row in lake.iceberg(TABLE).scan().to_arrow().to_pylist():
        if row["ordered_at"] >= today() - timedelta(days=days):
            found = groups.setdefault(row["customer_id"], [0, Decimal(0), row["ordered_at"]])
            found[0] += 1
            found[1] += row["amount"]
            found[2] = max(found[2], row["ordered_at"])
    return [
        [key, n, str(total), newest.isoformat()]
        for key, (n, total, newest) in sorted(groups.items())
    ]


@pytest.mark.parametrize("days", [20, 5])
def test_only_what_is_new_is_counted_after_a_commit(
    serving: Serving, lake: Lake, days: int
) -> None:
    sql = FAR.format(days)
    first = asked(serving, lake, sql)
    assert older(first) is None
    assert rows_of(first) == truth(lake, days)
    assert sum(row[1] for row in rows_of(first)) == (days + 1) * PER_DAY
    seen = []
    for number in range(3):
        append(lake, TABLE, [order(1_000_000 + number, today() + timedelta(hours=number))])
        answer = asked(serving, lake, sql)
        assert rows_of(answer) == truth(lake, days)
        assert answer.provenance["engine"] == "hot"
        assert answer.rows.columns == first.rows.columns
        seen.append(older(answer))
        # What is hot is read from memory; what is older, once from the files.
        scanned = answer.provenance["scanned"]["files"]
        assert (scanned >= days) if number == 0 and days > 7 else scanned == 0
    assert seen == ["read", "cached", "cached"]
    midnight = today().replace(tzinfo=None).isoformat()
    for asked_for, at in ((sql, midnight), (sql.replace("max(", "mode("), None)):
        told = serving.run(serving.router.explain(QueryRequest(asked_for), CALLER))
        assert told["split_at"] == at


def test_a_late_row_is_counted(serving: Serving, lake: Lake) -> None:
    sql = FAR.format(20)
    asked(serving, lake, sql)
    for number, days in enumerate((0, 12, 0, 3)):
        append(lake, TABLE, [order(2_000_000 + number, today() - timedelta(days=days))])
        answer = asked(serving, lake, sql)
        assert rows_of(answer) == truth(lake, 20)
        assert older(answer) == ("cached" if number == 2 else "read")


def test_where_older_rows_keep_changing_nothing_is_split(serving: Serving, lake: Lake) -> None:
    sql = FAR.format(20)
    asked(serving, lake, sql)
    seen = []
    for number in range(6):
        append(lake, TABLE, [order(2_500_000 + number, today() - timedelta(days=10 + number))])
        answer = asked(serving, lake, sql)
        assert rows_of(answer) == truth(lake, 20)
        seen.append(older(answer))
    assert seen == ["read", "read", "read", None, None, None]


def test_deleted_and_changed_rows_are_not_counted(serving: Serving, lake: Lake) -> None:
    sql = FAR.format(20)
    asked(serving, lake, sql)
    append(lake, TABLE, [order(3_000_000, today())])
    assert older(asked(serving, lake, sql)) == "read"
    lake.iceberg(TABLE).delete("customer_id = 3")
    answer = asked(serving, lake, sql)
    assert rows_of(answer) == truth(lake, 20)
    assert 3 not in [row[0] for row in rows_of(answer)]
    assert older(answer) == "read"


def test_a_new_column_does_not_bring_back_old_answers(serving: Serving, lake: Lake) -> None:
    sql = FAR.format(20)
    asked(serving, lake, sql)
    append(lake, TABLE, [order(4_000_000, today())])
    assert older(asked(serving, lake, sql)) == "read"
    with lake.iceberg(TABLE).update_schema() as update:
        update.rename_column("amount", "price")
    append(lake, TABLE, [{**order(4_000_001, today()), "price": Decimal(1)}])
    with pytest.raises(Exception, match="amount"):
        asked(serving, lake, sql)
    priced = sql.replace("sum(amount)", "sum(price)")
    asked(serving, lake, priced)
    append(lake, TABLE, [{**order(4_000_002, today()), "price": Decimal(2)}])
    answer = asked(serving, lake, priced)
    assert older(answer) == "read"
    assert sum(row[1] for row in rows_of(answer)) == 21 * PER_DAY + 3


def test_an_older_part_with_many_rows_is_not_sent_along(serving: Serving, lake: Lake) -> None:
    sql = "select order_id, count(*) as n from silver.orders where ordered_at >= current_date - 20"
    sql += " group by 1 order by 1"
    asked(serving, lake, sql)
    for number in range(2):
        append(lake, TABLE, [order(5_000_000 + number, today())])
        answer = asked(serving, lake, sql)
        assert older(answer) is None
        assert len(rows_of(answer)) == 21 * PER_DAY + number + 1


def test_a_node_that_dies_is_answered_for(serving: Serving, lake: Lake) -> None:
    sql = FAR.format(20)
    asked(serving, lake, sql)
    append(lake, TABLE, [order(6_000_000, today())])
    serving.settled(lake)
    for node in serving.router.fleet.nodes.values():
        node.kill("test")
    answer = serving.ask(sql, max_staleness=0)
    assert rows_of(answer) == truth(lake, 20)
