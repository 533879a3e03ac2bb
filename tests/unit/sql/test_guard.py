"""What may be asked, and what is refused before any engine hears of it."""

from __future__ import annotations

import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from thermocline.sql.guard import QueryRefused, SyntaxLimits, guard

ASKED = {
    "select count(*) from silver.orders": ["silver.orders"],
    "SELECT o.* FROM Silver.Orders AS o": ["silver.orders"],
    'select * from "silver"."orders"': ["silver.orders"],
    "select * from lake.silver.orders": ["silver.orders"],
    "select 1": [],
    "select * from range(10)": [],
    "with o as (select * from silver.orders) select * from o join gold.x using (a)": [
        "gold.x", "silver.orders",
    ],
    # A CTE hides only what is written as its own name.
    "with orders as (select 1 as a) select * from orders": [],
    "with orders as (select 1 as a) select * from silver.orders": ["silver.orders"],
    "select * from (select * from silver.a union all select * from silver.b) u": [
        "silver.a", "silver.b",
    ],
    "select * from silver.a where x in (select y from silver.b where b.z = a.z)": [
        "silver.a", "silver.b",
    ],
    "select (select max(y) from silver.b) from silver.a": ["silver.a", "silver.b"],
    "select i.sku, sum(i.qty) from silver.orders o, unnest(o.items) as u(i) group by all": [
        "silver.orders",
    ],
    "select sum(a) filter (where b > 1) over (partition by c order by d) from s.t": ["s.t"],
    "select date_trunc('day', at), a::int, try_cast(b as date), interval 3 day from s.t": ["s.t"],
    "select list_transform(a, x -> x + 1), a[1], b.c, m['k'] from s.t": ["s.t"],
    "select * exclude (a) from s.t qualify row_number() over (order by b) = 1": ["s.t"],
    "with recursive n as (select 1 as i union all select i + 1 from n where i < 5) select * from n":
        [],
}  # fmt: skip

OUTSIDE = [
    "SELECT * FROM read_csv('/etc/passwd', sep=':')",
    *(
        f"select * from {name}('/etc/passwd')"
        for name in (
            "read_text",
            "read_blob",
            "read_parquet",
            "read_json",
            "read_json_auto",
            "read_ndjson",
            "read_csv_auto",
            "parquet_metadata",
            "parquet_schema",
            "sniff_csv",
            "glob",
            "parquet_scan",
            "iceberg_scan",
            "iceberg_metadata",
            "iceberg_snapshots",
            "delta_scan",
            "sqlite_scan",
            "postgres_scan",
            "query",
            "query_table",
            "which_secret",
        )
    ),
    "select (select content from read_text('/etc/passwd'))",
    "with x as (select * from read_text('/etc/passwd')) select * from x",
    "select list_transform([1], x -> (select count(*) from read_text('/etc/passwd')))",
    "FROM '/etc/passwd'",
    "select * from '/etc/passwd'",
    'select * from "/etc/passwd"',
    "select * from 's3://other/data.parquet'",
    "select * from silver.'../x'",
    'select * from silver."../x"',
    "SUMMARIZE '/etc/passwd'",
    "DESCRIBE '/etc/passwd'",
    "select * from read_csv('http://169.254.169.254/latest/meta-data/')",
    "COPY silver.orders TO '/tmp/x'",
    "COPY (select 1) TO '/tmp/x'",
    "EXPORT DATABASE '/tmp/x'",
    "IMPORT DATABASE '/tmp/x'",
    "ATTACH '/tmp/x.db'",
    "DETACH x",
    "USE x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CREATE SECRET (TYPE s3)",
    "DROP SECRET s",
    "FROM duckdb_secrets()",
    "select * from duckdb_settings()",
    "SET memory_limit = '1TB'",
    "RESET memory_limit",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CALL enable_logging('QueryLog')",
    "select enable_logging('QueryLog')",
    "select getenv('HOME')",
    "select current_setting('secret_directory')",
    "select getvariable('x')",
    "select * from pragma_table_info('x')",
    "select nextval('s')",
    "select write_log('x')",
    "select pg_sleep(10)",
]
CHANGING = [
    "select 1; select 2",
    "select 1; drop table silver.orders",
    "select 1 /* */ ; -- \n delete from silver.orders",
    "with x as (delete from silver.orders returning *) select * from x",
    "with x as (insert into silver.orders values (1) returning *) select * from x",
    "insert into silver.orders select 1",
    "create table x as select 1",
    "create or replace macro f() as 1",
    "update silver.orders set a = 1",
    "merge into silver.a using silver.b on true when matched then delete",
    "truncate silver.orders",
    "vacuum",
    "checkpoint",
    "begin",
    "prepare x as select 1",
    "execute x",
    "explain select 1",
    "explain analyze select * from silver.orders",
    "select * into x from silver.orders",
    "select * from silver.orders for update",
    "show tables",
    "",
    ";",
    "--",
    "select 1 \\",
    "select 1\0",
    "select * from silver.orders\uff1b drop table x",
    "sel\u0435ct 1",
]
PROBES = [
    "select columns('em.*') from silver.customers",
    "pivot silver.orders on a using sum(b)",
    "select * from (pivot silver.orders on a using sum(b))",
    "unpivot silver.orders on a into name n value v",
    "select * from orders",
    "select * from other.silver.orders",
    "select * from memory.main.sqlite_master",
    'select * from silver."a\'; DROP TABLE t--"',
    f"select * from silver.{'x' * 10_000}",
    "select * from silver.ord\u0435rs",
    "select {'a': 1, 'b',: 2} as s",  # on which the parser stumbles
]


@pytest.mark.parametrize("sql", ASKED)
def test_what_is_asked_and_of_which_tables(sql: str) -> None:
    question = guard(sql)
    assert sorted(question.tables) == ASKED[sql]
    stored = [id(node) for nodes in question.tables.values() for node in nodes]
    assert len(stored) == len(set(stored))


@pytest.mark.parametrize("sql", OUTSIDE + CHANGING + PROBES)
@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_what_is_refused(sql: str, dialect: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        guard(sql, dialect)
    assert "\n" not in refused.value.cause
    assert len(refused.value.cause) < 400


def test_a_positional_join_is_refused_where_it_is_one() -> None:
    with pytest.raises(QueryRefused, match="POSITIONAL JOIN is not allowed"):
        guard("select * from silver.a positional join silver.b")
    [mention] = guard("select * from silver.a positional join silver.b", "trino").tables["silver.a"]
    assert mention.alias == "positional"


def test_every_model_of_the_shop_could_be_asked() -> None:
    models = Path(__file__).parents[3] / "examples" / "shop" / "models"
    texts = [path.read_text() for path in models.rglob("*.sql")]
    assert len(texts) >= 5
    for text in texts:
        assert guard(text).tables


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select " + "(" * 100 + "1" + ")" * 100, "nested more than 60 deep"),
        ("select " + "[" * 100 + "1" + "]" * 100, "nested more than 60 deep"),
        ("select " + "date(" * 40 + "1" + ")" * 40, "too deep inside type names"),
        ("select 1 where " + " or ".join(["1 = 2"] * 20_000), "words, more than"),
        ("select '" + "x" * 10_000_000 + "'", "characters, more than"),
        ("select " + ", ".join("a" for _ in range(5_000)), "more than 1,000 columns"),
        ("select " + "not " * 3_000 + "true", ""),
        ("select " + "-" * 3_001 + " 1", ""),
        ("select " + "case when a then " * 2_000 + "1" + " end" * 2_000, ""),
        ("select 1" + " union all select 1" * 4_000, ""),
    ],
)
def test_what_is_too_large_is_refused_at_once(sql: str, said: str) -> None:
    began = time.process_time()
    try:
        guard(sql)
    except QueryRefused as refused:
        assert said in refused.cause
    else:
        assert not said
    assert time.process_time() - began < 5


def test_bounds_are_the_callers() -> None:
    assert guard("select 1 + 2 + 3", bounds=SyntaxLimits(nodes=10)).tables == {}
    with pytest.raises(QueryRefused, match="more than 3 parts"):
        guard("select 1 + 2 + 3", bounds=SyntaxLimits(nodes=3))
    with pytest.raises(QueryRefused, match="Unknown dialect"):
        guard("select 1", "mysql")


WORDS = st.sampled_from(
    "select from where ( ) , * silver.orders gold.x join on union all with as x a b = 1 'z' "
    "group by order limit read_csv copy attach ; -- /* */ unnest [ ] { } over cast int :: $ @ "
    "for version of into values table lateral not null exists in case when then end".split()
)


@given(st.lists(WORDS, max_size=25).map(" ".join), st.sampled_from(["duckdb", "trino", "spark"]))
def test_any_words_give_a_question_over_named_tables_or_a_refusal(sql: str, dialect: str) -> None:
    try:
        question = guard(sql, dialect)
    except QueryRefused:
        return
    assert isinstance(question.tree, exp.Query)
    for name, nodes in question.tables.items():
        assert name in {"silver.orders", "gold.x"}
        assert all(f"{node.db}.{node.name}" == name for node in nodes)


@given(st.text(alphabet=string.printable + "é\u0435\uff1b\u2028\x00", max_size=60))
def test_any_text_is_refused_or_asked_and_never_fails(sql: str) -> None:
    try:
        guard(sql)
    except QueryRefused as refused:
        assert refused.next_step
