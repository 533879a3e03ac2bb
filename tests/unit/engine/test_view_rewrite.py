"""Queries that read views answer as those that read the tables, whatever their names are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from thermocline.engine.view_rewrite import private_view_name, replace_with_view
from thermocline.errors import BadInput

TABLES = ("gold.orders", "silver.orders", "gold.gold", "silver.address")
STORED = """
create table {0} as select * from (values
  ({1}, {{'geo': {{'lat': {1}.5, 'orders': 'p'}}, 'city': 'b'}}, [{{'n': {{'m': 1}}}}], 'o'),
  (2, {{'geo': {{'lat': {1}.25, 'orders': 'q'}}, 'city': 'c'}}, [], 'r')
) v(id, address, items, orders)
"""
SEED, QUERIES = 20, 600


@pytest.fixture(scope="module")
def stored() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("create schema gold; create schema silver")
        for number, table in enumerate(TABLES, start=3):
            connection.execute(STORED.format(table, number))
            connection.execute(f'create view "{view(table)}" as select * from {table}')
        yield connection


def view(table: str) -> str:
    return private_view_name(table.replace(".", "__"))


def through_views(sql: str) -> str:
    query = sqlglot.parse_one(sql, read="duckdb")
    for mention in list(query.find_all(exp.Table)):
        if mention.db:
            replace_with_view(mention, view(f"{mention.db}.{mention.name}".lower()))
    return query.sql("duckdb")


class Writer:
    """Writes queries whose names are of few words, so that most mean several things."""

    WORDS = ("orders", "gold", "silver", "address", "o", "geo", "items")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def word(self) -> str:
        found = self.chance.choice(self.WORDS)
        return self.chance.choice([found, found, found.upper(), f'"{found}"'])

    def path(self, beginnings: list[str]) -> str:
        inner = ["id", "address.city", "address.geo.lat", "address.geo", "orders", "*", "address",
                 "items[1].n.m", "address.geo.orders", "ADDRESS.Geo.Lat"]  # fmt: skip
        begins = self.chance.choice([*beginnings, *beginnings, "", self.word()])
        ends = self.chance.choice(inner)
        return f"{begins}.{ends}" if begins else ends

    def query(self, depth: int) -> str:
        froms, beginnings = [], []
        for _ in range(self.chance.choice([1, 1, 2])):
            table = self.chance.choice(TABLES)
            if depth and self.chance.random() < 0.25:
                alias = self.word()
                froms.append(f"({self.query(depth - 1)}) as {alias}")
                beginnings.append(alias)
            elif self.chance.random() < 0.5:
                alias = self.word()
                froms.append(f"{table} as {alias}")
                beginnings.append(alias)
            else:
                froms.append(self.chance.choice([table, table.upper()]))
                beginnings += [table, table.partition(".")[2]]
        columns = [self.path(beginnings) for _ in range(self.chance.randint(1, 3))]
        where = ""
        if depth and self.chance.random() < 0.3:
            where = (
                f" where {self.path(beginnings)} in (select id from {self.chance.choice(TABLES)})"
            )
        made = f"select {', '.join(columns)} from {', '.join(froms)}{where}"
        if depth and self.chance.random() < 0.4:
            name = self.chance.choice(['"gold.orders"', '"GOLD.ORDERS"', *self.WORDS])
            return f"with {name} as ({self.query(depth - 1)}) {made}"
        if depth and self.chance.random() < 0.15:
            return f"({made}) union all ({made})"
        return made


def test_a_query_answers_alike_through_views(stored: duckdb.DuckDBPyConnection) -> None:
    writer, compared, ambiguous = Writer(SEED), 0, 0
    for _ in range(QUERIES):
        sql = writer.query(2)
        try:
            rows = stored.execute(sql).fetchall()
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
            continue  # a name that means nothing
        try:
            found = stored.execute(through_views(sql)).fetchall()
        except (BadInput, duckdb.BinderException):
            ambiguous += 1  # refused, which is never wrong
            continue
        assert Counter(map(str, found)) == Counter(map(str, rows)), sql
        compared += 1
    assert compared > QUERIES / 4
    assert ambiguous < compared / 3, "most names mean one thing"


CAPTURING = [
    'with "gold.orders" as (select 999 as id) select id from gold.orders',
    'with "GOLD.orders" as (select 999 as id) select id from GOLD.Orders',
    "with orders as (select 999 as id) select id from gold.orders",
    "with gold as (select 999 as id) select id from gold.orders",
    'with a as (with "gold.orders" as (select 9 id) select id from gold.orders) select id from a',
    'select id from (with "gold.orders" as (select 9 id) select id from gold.orders)',
    'select id from gold.orders "silver.orders"',
    'with "gold.orders" as (select 9 id), x as (select id from gold.orders) select id from x',
    'with recursive "gold.orders" as (select 9 id) select id from gold.orders',
    'select id from gold.orders where id in (with "gold.orders" as (select 9 id) '
    "select id from gold.orders)",
]


@pytest.mark.parametrize("sql", CAPTURING)
def test_no_name_captures_a_stored_table(stored: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert sorted(stored.execute(through_views(sql)).fetchall()) == [(2,), (3,)]
