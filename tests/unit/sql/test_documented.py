"""What is documented as refused of Trino's dialect is refused, and nothing beside it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.errors import BadInput
from thermocline.sql.guard import guard
from thermocline.sql.translate import translate

COLUMNS = {
    "silver.facts": {
        "id": "long", "k": "int", "amount": "decimal(12,2)", "x": "double", "name": "string",
        "day": "date", "local": "timestamp", "moment": "timestamptz", "tags": "list<string>",
    },
}  # fmt: skip
REFUSED = {
    "time zones": ["timestamp '2026-03-01 00:00:00 Asia/Tokyo'",
                   "timestamp '2026-03-01 00:00 +02:00'"],
    "casts": ["cast(x as decimal(9, 2))", "cast(x as varchar)", "cast(name as timestamp)",
              "cast(local as timestamp(1))"],
    "regular expressions": ["regexp_like(name, '(?=a)')", r"regexp_like(name, '(a)\1')",
                            "regexp_like(name, '(?i)a')", r"regexp_replace(name, '\d', '')",
                            "regexp_like(name, name)"],
    "`CASE x WHEN …`": ["case x when x then 1 end", "x in (1, 2)", "x between 0 and 1",
                        "nullif(x, 1)", "greatest(x, 1)"],
    "aggregates": ["approx_percentile(x, 2, 0.5)", "max_by(k, id)", "min_by(k, id)",
                   "listagg(name, ',') within group (order by id)", "corr(x, x)"],
    "dates": ["date_diff('week', day, day)", "date_diff('month', day, day)",
              "date_add('day', k, day)", "format_datetime(local, 'yyyy')",
              "date_parse(name, '%Y')", "from_iso8601_date(name)"],
    "other functions": ["lpad(name, 3, 'x')", "rpad(name, 3, 'x')", "pi()", "codepoint('a')",
                        "typeof(k)", "json_extract_scalar(name, '$.a')", "array_join(tags, ',')",
                        "transform(tags, t -> t)"],
}  # fmt: skip
QUERIES = [
    "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t",
    "select k from silver.facts tablesample bernoulli (10)",
    "select sum(k) over w from silver.facts window w as (order by id)",
    "select sum(k) over (order by id range between 1 preceding and current row) from silver.facts",
    "select k from silver.facts order by k fetch first 2 rows with ties",
    "select t from silver.facts cross join unnest(tags) as u(t)",
]
ANSWERED = [
    "select case k when 1 then 'a' end, case x when 1.5 then 'b' end from silver.facts",
    "select approx_distinct(k), approx_percentile(x, 0.5) from silver.facts",
    "select array_agg(k order by id) from silver.facts",
    "select k from silver.facts order by k fetch first 2 rows only",
    "select cast(name as date), try_cast(name as integer) from silver.facts",
    "select cast(local as timestamp) from silver.facts",
    "select regexp_replace(name, '^a(.*)$', '$1'), concat_ws('-', name, name) from silver.facts",
    "select from_unixtime(k), decimal '1.20', date '2026-3-1' from silver.facts",
]


def said(sql: str) -> str:
    question = guard(sql, "trino")
    return translate(question, "duckdb", {table: table for table in question.tables}, COLUMNS)


@pytest.mark.parametrize("expression", [each for several in REFUSED.values() for each in several])
def test_what_is_listed_is_refused(expression: str) -> None:
    with pytest.raises(BadInput):
        said(f"select {expression} from silver.facts")


@pytest.mark.parametrize("sql", QUERIES)
def test_so_are_the_queries(sql: str) -> None:
    with pytest.raises(BadInput):
        said(sql)


@pytest.mark.parametrize("sql", ANSWERED)
def test_what_is_beside_it_is_answered(sql: str) -> None:
    assert said(sql)


def test_every_row_of_the_list_has_its_trial() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = text.partition("| construct | refused |")[2].partition("\n\n")[0].splitlines()[2:]
    named = [row.split("|")[1].strip() for row in rows]
    missing = [name for name in named if not any(name.startswith(each) for each in REFUSED)]
    assert missing == ["text that is cast to a number or date", "query"]
