"""A small lake behind Trino's protocol: DuckDB tables asked through the guard, in this process.

It stands where the router stands, so that the protocol can be tested without nodes and workers.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import duckdb
from sqlglot import exp
from starlette.applications import Starlette
from starlette.requests import Request

from thermocline.errors import BadInput, NotFound
from thermocline.serve import trino
from thermocline.serve.failures import Unauthenticated
from thermocline.serve.rows.encode import encode
from thermocline.serve.trino.open_queries import PagingLimits
from thermocline.serve.values import (
    Answer,
    Caller,
    EncodedRows,
    LakeState,
    QueryRequest,
    ResultColumn,
    TableHead,
)
from thermocline.sql.guard import guard

TABLES = {
    "silver.orders": {
        "id": "long", "customer": "string", "total": "decimal(10, 2)", "at": "timestamptz",
        "paid": "boolean", "tags": "list<string>",
    },
    "silver.wide": {"n": "long", "text": "string"},
    "silver.slow": {"n": "long"},
    "gold.daily": {"day": "date", "revenue": "double"},
}  # fmt: skip

ROWS = """
    CREATE SCHEMA silver; CREATE SCHEMA gold;
    CREATE TABLE silver.orders AS SELECT * FROM (VALUES
        (1::BIGINT, 'ann', 10.50::DECIMAL(10, 2), '2026-11-14 10:00:00.123456+00'::TIMESTAMPTZ,
         true, ['a', 'b']),
        (2, 'bo''b', 7.25, '2026-11-15 00:00:00+00', false, []),
        (3, NULL, NULL, NULL, NULL, NULL)) AS t(id, customer, total, "at", paid, tags);
    CREATE TABLE silver.wide AS
        SELECT range AS n, repeat('x', 100) AS text FROM range(30000);
    CREATE TABLE silver.slow AS SELECT 1::BIGINT AS n;
    CREATE TABLE gold.daily AS SELECT DATE '2026-11-14' AS day, 17.75::DOUBLE AS revenue;
"""


class SmallRouter:
    """Answers like the router does. A query on silver.slow waits until it is cancelled."""

    def __init__(self) -> None:
        self.asked: list[QueryRequest] = []
        self.callers: list[Caller] = []
        self.running = 0
        self.cancelled = 0
        self._database = duckdb.connect()
        self._database.execute(ROWS)

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        """Guard, run, encode."""
        self.asked.append(request)
        self.callers.append(caller)
        question = guard(request.sql, request.dialect)
        for table in question.tables:
            if table not in TABLES:
                raise NotFound(f"There is no table {table}.", "`thermo tables` lists them.")
        if "silver.slow" in question.tables:
            await self._wait()
        return self._run(question.tree.transform(_without_catalog), request)

    async def answer_tree(self, tree: exp.Query, request: QueryRequest, caller: Caller) -> Answer:
        """Run, encode."""
        return self._run(tree, request)

    def _run(self, tree: exp.Expr, request: QueryRequest) -> Answer:
        try:
            table = self._database.cursor().execute(tree.sql("duckdb")).to_arrow_table()
        except duckdb.Error as error:
            raise BadInput(str(error).splitlines()[0], "Mend the SQL.") from error
        columns, body = encode(table, request.format)
        rows = EncodedRows(tuple(ResultColumn(*each) for each in columns), table.num_rows, body)
        return Answer(rows, request.format, {"engine": "hot"})

    async def _wait(self) -> None:
        self.running += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Where it would go."""
        tables = list(guard(request.sql, request.dialect).tables)
        return {"ways": [{"engine": "hot", "because": ["it is held"]}], "tables": tables}

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        """The tables."""
        now = datetime(2026, 11, 15, tzinfo=UTC)
        heads = {
            table: TableHead(table, "uuid", 1, "metadata", now, columns, None, (1,))
            for table, columns in TABLES.items()
        }
        return LakeState(1, now, heads, {})


def _without_catalog(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Table):
        node.set("catalog", None)
    return node


def open_to_all(request: Request) -> Caller:
    """Nobody needs a token."""
    return Caller()


def with_tokens(request: Request) -> Caller:
    """`Bearer NAME` is the token of NAME."""
    given = request.headers.get("authorization", "")
    if not given.startswith("Bearer "):
        raise Unauthenticated("This server answers only callers with a token.", "Send one.")
    return Caller(given.removeprefix("Bearer "))


def application(router: SmallRouter, identity: Any = open_to_all, **limits: Any) -> Starlette:
    """The protocol alone as an application."""
    return Starlette(routes=trino.routes(router, identity, PagingLimits(**limits)))
