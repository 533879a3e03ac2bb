"""Custom SQL rules: what they may say, and what is refused."""

from __future__ import annotations

import pytest

from thermocline.check.compiler import compile_checks, find_references
from thermocline.check.gate import check
from thermocline.errors import ContractError

HOSTILE = [
    "select 1; drop table things",
    "drop table things",
    "insert into {object} values (1)",
    "delete from {object}",
    "with gone as (delete from {object} returning 1) select count(*) from gone",
    "update {object} set id = 1",
    "create table x as select * from {object}",
    "copy {object} to 'out.csv'",
    "attach 'x.db'",
    "install httpfs",
    "set memory_limit = '1TB'",
    "pragma version",
    "call pragma_version()",
    "export database 'x'",
    "select count(*) from read_csv('/etc/passwd', sep=':')",
    "select count(*) from read_text('/etc/passwd')",
    "select count(*) from parquet_metadata('/etc/x')",
    "select count(*) from glob('/etc/*')",
    "select (select count(*) from read_blob('/etc/passwd')) from {object}",
    "with x as (from read_csv('/etc/passwd')) select count(*) from x",
    "select count(*) from '/etc/passwd'",
    'select count(*) from "/etc/passwd"',
    "select count(*) from 's3://other/x.parquet'",
    "select getenv('HOME') from {object}",
    "select current_setting('memory_limit') from {object}",
    "select reflect('java.lang.System', 'exit', 1) from {object}",
    "select java_method('java.lang.System', 'exit', 1) from {object}",
    "select count(*) from query('select 1')",
    "select count(*) from query_table('things')",
    "select count(*) from duckdb_secrets()",
    "select count(*) from range(1000000000000)",
    "with recursive t as (select 1 as n union all select n + 1 from t) select count(*) from t",
    "select columns('.*') from {object}",
    "select * from {object}",
    "select id, code from {object}",
    "select count(*) from {object} where id = ?",
    "select count(*) from {object} where id = $1",
    "select count(*) from other_table",
    "select count(*) from bronze.secret",
    "select count(*) from information_schema.tables",
    "select count(*) into x from {object}",
    "select count(*) from {object} where code = '{object}'",
    "select count(*) from {object} where {property} is null",
    "select count(*) from {property}",
    "select count(*) from {object} tablesample 10%",
    "summarize {object}",
    "describe {object}",
    "values (1)",
    "explain select 1",
    "select count(* from {object}",
    "select count(*) from {object} where code = 'x",
    "select count(*) from {object} -- \0",
    "",
    "select " + "(" * 3000 + "1" + ")" * 3000,
    "select count(*) from {object} where id in (" + ",".join("1" * 20_000) + ")",
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
def test_hostile_query_is_refused(cases, query, dialect):
    with pytest.raises(ContractError) as refused:
        compile_checks(cases.contract(cases.sql(query)), "things", {}, dialect, cases.NOW)
    assert "silver.things  sql: " in str(refused.value)


def test_comments_do_not_reach_the_engine(engine, cases):
    rule = cases.sql("select /* '; drop */ count(*) from {object} -- where \n where id = 1")
    compiled = compile_checks(cases.contract(rule), "things", {}, "duckdb", cases.NOW)
    assert "drop" not in compiled.sql
    assert check(cases.contract(rule), engine, "things", {}, cases.NOW).outcomes[-1].metric == 1


def test_spark_does_not_substitute_variables_in_a_value(cases):
    rule = cases.rule("accepted", "code", values=["${env:HOME}", "\\${spark.app.name}"])
    sql = compile_checks(cases.contract(rule), "things", {}, "spark", cases.NOW).sql
    assert "${" not in sql
    assert r"'\u0024{env:HOME}', '\\\u0024{spark.app.name}'" in sql


def test_a_name_that_spark_would_substitute_is_refused_there_only(engine, cases):
    name = cases.COLUMNS[-1].name
    contract = cases.contract(cases.rule("missing", name), columns=cases.COLUMNS)
    engine.put("weird", cases.TABLE.append_column(name, cases.TABLE["code"]))
    assert check(contract, engine, "weird", {}, cases.NOW).outcomes[-1].metric == 1
    with pytest.raises(ContractError, match="Spark cannot read the name"):
        compile_checks(contract, "weird", {}, "spark", cases.NOW)


@pytest.mark.parametrize("relation", ['a"; drop table things; --', "a'b", "tä b", "a.b;c", "`a`"])
def test_a_hostile_relation_stays_a_name(engine, cases, relation):
    quoted = '"' + relation.replace('"', '""') + '"'
    engine.connection.execute(f"create table {quoted} as from things")
    rule = cases.rule("missing", "code")
    assert check(cases.contract(rule), engine, quoted, {}, cases.NOW).outcomes[-1].metric == 1
    assert engine.query("select count(*) as n from things").to_pylist() == [{"n": 6}]


def test_outer_columns_are_out_of_sight(engine, cases):
    """A column that only the checked table has is an error in a query of another table."""
    rule = cases.sql("select count(*) from silver.customers where amount < 0", name="stray")
    with pytest.raises(ContractError) as refused:
        check(cases.contract(rule), engine, "things", {"silver.customers": "customers"}, cases.NOW)
    assert "stray: the query fails: Binder Error" in str(refused.value)


def test_several_rows_are_not_a_value(engine, cases):
    rule = cases.sql("select id from {object}")
    with pytest.raises(ContractError, match=r"the query fails: .*More than one row"):
        check(cases.contract(rule), engine, "things", {}, cases.NOW)


def test_references_refuses_what_compile_refuses(cases):
    with pytest.raises(ContractError, match="must be one SELECT"):
        find_references(cases.contract(cases.sql("drop table x")))


def test_a_plain_count_is_measured_in_the_same_pass(cases):
    rule = cases.sql("select count(*) from {object} where {object}.amount < 0")
    sql = compile_checks(cases.contract(rule), "things", {}, "duckdb", cases.NOW).sql
    assert sql.count("things") == 1
    assert "COUNT(CASE WHEN amount < 0 THEN 1 END)" in sql
