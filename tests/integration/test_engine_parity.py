"""What is called alike is alike: the same rows on both engines, over awkward values."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline.contract import Contract
from thermocline.contract.definition import Column
from thermocline.contract.types import Decimal as DecimalType
from thermocline.contract.types import Field, List, Primitive, Struct
from thermocline.transform import engine_parity
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.model_decorator import Read
from thermocline.transform.models import Model, parse_query
from thermocline.transform.spark.reader import SparkReader

if TYPE_CHECKING:
    from thermocline.lake import Lake

ITEM = Struct((Field("sku", Primitive("string")), Field("price", DecimalType(10, 2))))
KINDS: dict[str, Any] = {
    "i": Primitive("int"), "l": Primitive("long"), "d": DecimalType(12, 2), "e": DecimalType(8, 4),
    "s": Primitive("string"), "n": Primitive("string"), "j": Primitive("string"),
    "b": Primitive("boolean"), "day": Primitive("date"), "ts": Primitive("timestamp"),
    "tz": Primitive("timestamptz"), "f": Primitive("double"), "u": Primitive("uuid"),
    "items": List(ITEM), "item": ITEM,
}  # fmt: skip
TABLE = Contract("bronze.odd", tuple(Column(name, kind) for name, kind in KINDS.items()))
KNOWN = {TABLE.table: {name: str(kind) for name, kind in KINDS.items()}}
VALUES = (
    "i // 3", "i % 3", "l // i", "l % i", "i * 2 + l", "-i", "abs(i)", "d + e", "d - 1", "d * e",
    "d * 0.5",
    "round(d)", "round(e, 2)", "round(-e, 1)", "round(l)", "cast(round(d * 100) as bigint)",
    "cast(e as decimal(7,2))", "cast(n as integer)", "cast(n as decimal(10,2))",
    "cast(i as varchar)", "cast(day as varchar)", "cast(b as varchar)", "cast(tz as date)",
    "cast(ts as date)", "cast(day as timestamp)", "cast('2026-03-01 10:00:00.5' as timestamp)",
    "s || '/' || i", "lower(s)", "trim(s)", "length(s)", "translate(s, 'aé ', 'x')",
    "j ->> '$.color'", "json_extract_string(j, '$.n')", "coalesce(s, 'none')", "nullif(i, 0)",
    "case when d > 0 then d else e end", "case i when 7 then 'seven' end", "s = 'É'",
    "i in (1, 7)", "i is null or l > 5", "d between -1 and 1", "date_trunc('month', tz)",
    "date_trunc('week', day)", "date_trunc('hour', ts)", "tz + interval 30 minute",
    "date_diff('day', day, date '2026-03-01')", "item.price", "item.sku || ''",
    "date_diff('second', date_trunc('second', ts), date_trunc('second', ts + interval 1 day))",
    "row_number() over (partition by b order by i, l)", "lag(i) over (order by l desc, i)",
    "sum(i) over (order by l, i rows between unbounded preceding and current row)",
    "rank() over (order by b, day)", "lower(u)",
    "date_trunc('month', ts) = timestamp '2026-02-15 12:00:00'",
    "date_trunc('week', tz) <> timestamptz '2026-02-15 12:00:00+00:00'",
    "cast(date_trunc('month', day) as date) <> date '2026-02-02'",
    "date_trunc('month', ts) = timestamp '2026-02-01'",
)  # fmt: skip
QUERIES = (
    "select l, "
    + ", ".join(f"{value} as v{n}" for n, value in enumerate(VALUES))
    + " from bronze.odd",
    "select b, count(*) as n, count(i) as m, sum(i) as s, sum(d) as t, min(s) as lo, max(s) as hi, "
    "max(tz) as late, sum(case when b then 1 else 0 end) as yes from bronze.odd group by b",
    "select count(*) as n, sum(i) as s, sum(d) as t, max(s) as hi from bronze.odd where false",
    "select distinct b, i from bronze.odd",
    "select o.l, opened.item.price as p from bronze.odd as o cross join unnest(o.items) as "
    "opened(item)",
    "select x.i, y.l from bronze.odd as x left join bronze.odd as y on y.i = x.i and y.b",
    "select i from bronze.odd union all select i from bronze.odd",
    "with k as (select b, sum(d) as t from bronze.odd group by b having count(*) > 1) "
    "select b, cast(t as decimal(18,2)) as t from k",
)


def rows() -> pa.Table:
    """Nulls, signs, halves, letters beyond ASCII, times before 1970 and with microseconds."""
    at = datetime(2026, 2, 28, 23, 59, 59, 999999)
    old = datetime(1969, 12, 31, 23, 30, 0, 1)
    some = [
        (7, 5, "0.05", "0.1250", "É a ", " 12 ", '{"color": "red", "n": 1.5}', True, at),
        (-7, 6, "-0.05", "-0.1250", "é", "-3", '{"color": null, "n": {"x": 1}}', False, old),
        (0, 7, "99.99", "2.5000", "", "0", '{"n": "1"}', None, at),
        (None, 8, None, None, None, None, None, None, None),
        (1, 9, "-2.50", "9999.9999", "\tzßİ ΑΣ", "007", "{}", True, old),
    ]
    i, l_, d, e, s, n, j, b, ts = zip(*some, strict=True)
    decimals = [[None if x is None else Decimal(x) for x in column] for column in (d, e)]
    item = pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))])
    one = {"sku": "a", "price": Decimal("1.25")}
    return pa.table(
        {
            "i": pa.array(i, pa.int32()), "l": pa.array(l_, pa.int64()),
            "d": pa.array(decimals[0], pa.decimal128(12, 2)),
            "e": pa.array(decimals[1], pa.decimal128(8, 4)),
            "s": s, "n": n, "j": j, "b": b,
            "day": pa.array([t and t.date() for t in ts], pa.date32()),
            "ts": pa.array(ts, pa.timestamp("us")),
            "tz": pa.array([t and t.replace(tzinfo=UTC) for t in ts], pa.timestamp("us", "UTC")),
            "f": [0.1, -0.0, float("nan"), None, 1e300],
            "u": ["0f8fad5b-d9cb-469f-a165-70867728950e", None, None, None, None],
            "items": pa.array([[one, one], [], None, [None], [{"sku": None, "price": None}]],
                              pa.list_(item)),
            "item": pa.array([one, None, {"sku": "", "price": None}, None, one], item),
        }
    )  # fmt: skip


def test_what_is_called_alike_is(lake: Lake) -> None:
    lake.ensure(TABLE)
    draft = lake.draft("odd")
    snapshot = draft.append(TABLE.table, rows(), bookmark=None, operation="append")
    session = Session(lake)
    for query in QUERIES:
        assert engine_parity.find_difference(parse_query(query), KNOWN) is None, query
        spans = {TABLE.table: SourceSpan(TABLE.table, None, snapshot)}
        model = Model("gold.t", Path("t.sql"), {"o": Read(TABLE.table)}, "", TABLE, text=query)
        on_duck = Inputs(lake, model, spans, DuckReader(session)).read_all()
        on_spark = Inputs(lake, model, spans, SparkReader(lake)).read_all()
        given = session.connection.execute(on_duck).to_arrow_table()
        assert columns(given) == columns(on_spark.toArrow()), query
    session.close()


def columns(answer: pa.Table) -> dict[str, list[Any]]:
    """Each column's values, rows in one order; numbers and instants as values, not as types."""
    plain = [{name: _plain(value) for name, value in row.items()} for row in answer.to_pylist()]
    ordered = sorted(plain, key=repr)
    return {name: [row[name] for row in ordered] for name in answer.column_names}


def _plain(value: Any) -> Any:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value).normalize() + 0
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
