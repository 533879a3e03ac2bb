"""Which columns a query filters by."""

from __future__ import annotations

import pytest

from thermocline.sql.guard import guard
from thermocline.sql.predicate_columns import find_predicate_columns

COLUMNS = {"s.a": ("id", "Day", "kind"), "s.b": ("id", "amount")}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM s.a WHERE id = 5", {"s.a": {"id"}}),
        ("SELECT * FROM s.a WHERE 5 <= id AND (DAY > DATE '2026-01-01' AND kind IN ('a', 'b'))",
         {"s.a": {"id", "Day", "kind"}}),
        ("SELECT * FROM s.a WHERE day BETWEEN now() - INTERVAL 1 DAY AND now()", {"s.a": {"Day"}}),
        ("SELECT * FROM s.a WHERE id = 5 OR kind = 'a'", {"s.a": set()}),
        ("SELECT * FROM s.a WHERE NOT id = 5", {"s.a": set()}),
        ("SELECT * FROM s.a WHERE id <> 5 OR upper(kind) = 'A'", {"s.a": set()}),
        ("SELECT * FROM s.a x JOIN s.b y ON x.id = y.id AND y.amount > 3 WHERE kind = 'a'",
         {"s.a": {"kind"}, "s.b": {"amount"}}),
        ("SELECT * FROM s.a, s.b WHERE id = 1", {"s.a": set(), "s.b": set()}),
        ("SELECT * FROM (SELECT * FROM s.a WHERE kind = 'a') q WHERE q.id = 1",
         {"s.a": {"kind"}}),
        ("WITH c AS (SELECT * FROM s.b WHERE id = 1) SELECT * FROM c, s.a WHERE a.id = 2",
         {"s.a": {"id"}, "s.b": {"id"}}),
        ("SELECT * FROM s.a WHERE id IN (SELECT id FROM s.b WHERE amount = 1)",
         {"s.a": set(), "s.b": {"amount"}}),
        ("SELECT * FROM s.a WHERE id = (SELECT max(id) FROM s.b)", {"s.a": set(), "s.b": set()}),
        ("SELECT * FROM s.a WHERE other = 1 OR id > 1", {"s.a": set()}),
        ("SELECT 1 FROM s.a UNION SELECT 1 FROM s.a WHERE id = 1", {"s.a": {"id"}}),
    ],
)  # fmt: skip
def test_columns_that_conditions_compare_with_values(
    sql: str, expected: dict[str, set[str]]
) -> None:
    query = guard(sql)
    assert find_predicate_columns(query.tree, query.tables, COLUMNS) == expected
