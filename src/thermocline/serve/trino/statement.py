"""Plan and execute a statement.

`plan_statement` decides from the text alone and changes nothing. A query for the router is a value
first, so that EXPLAIN and EXECUTE share it and differ only in the kind of result.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote_plus

from thermocline.serve.failures import Busy
from thermocline.serve.trino import client_session, parameters, show
from thermocline.serve.trino.catalog_tables import CatalogListing
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.serve.trino.name_resolution import ResolvedQuery, resolve
from thermocline.serve.trino.statement_parser import (
    StatementReader,
    parse_query,
    split_keyword,
    tokenize,
)
from thermocline.serve.trino.statement_result import StatementResult, session_result, table_result
from thermocline.serve.values import Answer, Caller, LakeState, QueryRequest
from thermocline.sql.guard import guard, sanitize
from thermocline.sql.session_zone import depends_on_session_zone

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.serve.trino.client_session import ClientSession

INLINE_CHARACTERS = 5_000
"""Longer texts are parsed in a thread, so that they do not block the event loop."""


MAX_QUEUE_SECONDS = 30.0
"""Seconds that a query is queued when its caller has too many running."""

_REFUSED_STATEMENTS = frozenset(
    {
        *("ALTER", "ANALYZE", "CALL", "COMMENT", "CREATE", "DELETE", "DENY", "DROP", "GRANT"),
        *("INSERT", "MERGE", "REFRESH", "REVOKE", "TRUNCATE", "UPDATE"),
    }
)
"""Trino's other statements, which are refused."""


class StatementRouter(Protocol):
    """The router, as statements use it."""

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query, or raise."""

    async def answer_tree(self, tree: exp.Query, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query of our own making, without stored tables."""

    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Return the route of a query and the reasons for it."""

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        """Return the state of the lake, or the part that a caller may see."""


@dataclass(frozen=True)
class RouterQuery:
    """A query for the router, and the kind of result that the statement returns."""

    query: ResolvedQuery
    end: Literal["rows", "columns", "plan", "json", "valid"] = "rows"


async def execute_statement(
    text: str, session: ClientSession, caller: Caller, router: StatementRouter
) -> StatementResult:
    """Execute a statement. Raises ThermoclineError."""
    listing = CatalogListing(router.lake_state(caller).table_heads)
    if len(text) > INLINE_CHARACTERS:
        found = await asyncio.to_thread(plan_statement, text, session, listing)
    else:
        found = plan_statement(text, session, listing)
    if isinstance(found, StatementResult):
        return found
    request = QueryRequest(
        sql=found.query.sql,
        dialect="trino",
        format="trino",
        timeout=session.timeout,
        max_staleness=session.max_staleness,
        min_snapshot=session.min_snapshot,
    )
    tree = found.query.tree
    if tree is None and not session.in_utc:
        columns = {table: head.columns for table, head in listing.heads.items()}
        if await asyncio.to_thread(depends_on_session_zone, request.sql, columns):
            raise TrinoError(
                "NOT_SUPPORTED",
                f"The answer depends on the time zone of the session, {sanitize(session.zone)}; "
                "the only supported time zone is UTC.",
                "SET TIME ZONE 'UTC', or connect with that zone.",
            )
    if found.end in {"plan", "json", "valid"}:
        plan = {"list": "from the catalog"} if tree else await router.explain(request, caller)
        return _explain_result(plan, found.end)
    if tree is not None:
        listed = replace(request, sql="", min_snapshot=None)
        answer = await _retry_while_busy(lambda: router.answer_tree(tree, listed, caller))
    else:
        answer = await _retry_while_busy(lambda: router.answer(request, caller))
    return _to_result(answer, found)


async def _retry_while_busy(asking: Callable[[], Awaitable[Answer]]) -> Answer:
    """Queue a query while the caller is busy, as Trino's clients expect."""
    until = time.monotonic() + MAX_QUEUE_SECONDS
    while True:
        try:
            return await asking()
        except Busy:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(random.uniform(0.02, 0.1))  # noqa: S311  (jitter)


def plan_statement(
    text: str, session: ClientSession, listing: CatalogListing
) -> StatementResult | RouterQuery:
    """Return the result of a statement, or the query that the router has to answer."""
    try:
        return _plan(text, session, listing)
    except RecursionError:
        raise TrinoError(
            "QUERY_TEXT_TOO_LARGE", "The query is nested too deeply.", "Use WITH for inner queries."
        ) from None


def _plan(
    text: str, session: ClientSession, listing: CatalogListing
) -> StatementResult | RouterQuery:
    word, after = split_keyword(text)
    match word:
        case "SHOW":
            return show.show(StatementReader(word, after), session, listing)
        case "USE":
            return show.use_schema(StatementReader(word, after), session, listing)
        case "DESCRIBE" | "DESC":
            return _describe(StatementReader(word, after), session, listing)
        case "SET" | "RESET":
            return _set(StatementReader(word, after), word)
        case "PREPARE" | "DEALLOCATE" | "EXECUTE":
            return _prepared(StatementReader(word, after), word, session, listing)
        case "EXPLAIN":
            return _explain(StatementReader(word, after), session, listing)
        case "START" | "COMMIT" | "ROLLBACK":
            return _transaction(StatementReader(word, after), word)
        case "VALUES":  # a statement only in Trino
            return RouterQuery(resolve(parse_query(tokenize(text), text), None, session, listing))
        case "SELECT" | "WITH" | "TABLE" | "":
            return RouterQuery(_query(text, session, listing))
    if word not in _REFUSED_STATEMENTS:
        raise TrinoError(
            "SYNTAX_ERROR", f"No statement begins with {sanitize(word)}.", "Fix the SQL."
        )
    guard(text, "trino")  # reports syntax errors
    raise TrinoError("NOT_SUPPORTED", f"{sanitize(word)} is not supported.", "Send a SELECT.")


def _query(text: str, session: ClientSession, listing: CatalogListing) -> ResolvedQuery:
    """Resolve a query. Most are cached: dashboards repeat the same texts."""
    if len(text) <= INLINE_CHARACTERS and (
        cached := _resolve_cacheable(text, session.catalog, session.schema)
    ):
        return cached
    return resolve(parse_query(tokenize(text), text), text, session, listing)


@lru_cache(maxsize=2000)
def _resolve_cacheable(text: str, catalog: str, schema: str | None) -> ResolvedQuery | None:
    anonymous = client_session.ClientSession(user="", catalog=catalog, schema=schema)
    found = resolve(parse_query(tokenize(text), text), text, anonymous, CatalogListing({}))
    return found if found.is_cacheable else None


def _describe(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult | RouterQuery:
    if reader.accept("INPUT"):
        sql = _prepared_statement(reader.read_name(), session)
        reader.expect_end()
        rows = [(place, "unknown") for place in range(parameters.count_parameters(sql))]
        return table_result([("Position", "bigint"), ("Type", "varchar")], rows)
    if reader.accept("OUTPUT"):
        from sqlglot import exp

        sql = _prepared_statement(reader.read_name(), session)
        reader.expect_end()
        tree = parameters.bind_parameters(
            sql, [exp.null() for _ in range(parameters.count_parameters(sql))]
        )
        tree.set("limit", exp.Limit(expression=exp.Literal.number(0)))
        tree.set("offset", None)
        return RouterQuery(resolve(tree, None, session, listing), "columns")
    return show.describe_table(reader, session, listing)


def _set(reader: StatementReader, word: str) -> StatementResult:
    if word == "SET" and reader.accept("TIME", "ZONE"):
        zone = "UTC" if reader.accept("LOCAL") else reader.read_string()
        reader.expect_end()
        client_session.check_property("time_zone_id", zone)
        return session_result("SET TIME ZONE", {"X-Trino-Set-Session": f"time_zone_id={zone}"})
    reader.expect("SESSION")
    name = ".".join(reader.read_names(max_parts=2))
    if word == "RESET":
        reader.expect_end()
        known = client_session.PROPERTIES.get(name)
        client_session.check_property(name, known.default if known else "")
        return session_result("RESET SESSION", {"X-Trino-Clear-Session": name})
    reader.expect("=")
    value = _constant(reader.read_rest())
    client_session.check_property(name, value)
    return session_result("SET SESSION", {"X-Trino-Set-Session": f"{name}={quote_plus(value)}"})


def _constant(text: str) -> str:
    """Return the text of one constant."""
    from sqlglot import exp

    values = parameters.parse_parameters(text)
    if len(values) == 1 and isinstance(values[0], exp.Literal):
        return values[0].name
    if len(values) == 1 and isinstance(values[0], exp.Boolean):
        return "true" if values[0].this else "false"
    raise TrinoError(
        "INVALID_SESSION_PROPERTY", "A property takes one constant.", "Use one constant."
    )


def _prepared(
    reader: StatementReader, word: str, session: ClientSession, listing: CatalogListing
) -> StatementResult | RouterQuery:
    if word == "EXECUTE":
        if reader.accept("IMMEDIATE"):
            return _execute(reader.read_string(), reader, session, listing)
        return _execute(_prepared_statement(reader.read_name(), session), reader, session, listing)
    if word == "DEALLOCATE":
        reader.expect("PREPARE")
        name = reader.read_name()
        reader.expect_end()
        _prepared_statement(name, session)
        headers = {"X-Trino-Deallocated-Prepare": quote_plus(name)}
        return session_result("DEALLOCATE", headers)
    name = reader.read_name()
    reader.expect("FROM")
    sql = reader.read_rest()
    _check_preparable(sql)
    headers = {"X-Trino-Added-Prepare": f"{quote_plus(name)}={quote_plus(sql)}"}
    return session_result("PREPARE", headers)


def _check_preparable(sql: str) -> str:
    """Refuse statements that EXECUTE does not support; return the kind of statement."""
    word, _ = split_keyword(sql)
    if word in {"SHOW", "DESCRIBE", "DESC"}:
        return word
    if word not in {"SELECT", "WITH", "VALUES", "TABLE", ""}:
        raise TrinoError(
            "NOT_SUPPORTED", f"A {sanitize(word)} cannot be prepared.", "Prepare a SELECT."
        )
    from sqlglot import exp

    parameters.bind_parameters(sql, [exp.null() for _ in range(parameters.count_parameters(sql))])
    return "SELECT"


def _execute(
    sql: str, reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult | RouterQuery:
    values: list[exp.Expr] = []
    if not reader.is_at_end:
        reader.expect("USING")
        values = parameters.parse_parameters(reader.read_rest())
    if _check_preparable(sql) != "SELECT" and not values:
        return plan_statement(sql, session, listing)
    return RouterQuery(resolve(parameters.bind_parameters(sql, values), None, session, listing))


def _prepared_statement(name: str, session: ClientSession) -> str:
    sql = session.prepared.get(name)
    if sql is None:
        raise TrinoError(
            "NOT_FOUND", f"Prepared statement not found: {sanitize(name)}.", "PREPARE it first."
        )
    return sql


def _explain(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> RouterQuery:
    end: Literal["plan", "json", "valid"] = "plan"
    if reader.accept("("):
        while not reader.accept(")"):
            if reader.accept("TYPE", "VALIDATE"):
                end = "valid"
            elif reader.accept("FORMAT", "JSON"):
                end = "json"
            elif not (
                reader.accept("TYPE", "LOGICAL")
                or reader.accept("TYPE", "DISTRIBUTED")
                or reader.accept("FORMAT", "TEXT")
            ):
                raise TrinoError(
                    "NOT_SUPPORTED", "This EXPLAIN is not supported.", "EXPLAIN query."
                )
            reader.accept(",")
    sql = reader.read_rest()
    if _check_preparable(sql) != "SELECT":
        raise TrinoError("NOT_SUPPORTED", "Only a query can be explained.", "EXPLAIN a SELECT.")
    return RouterQuery(resolve(parse_query(tokenize(sql), sql), sql, session, listing), end)


def _transaction(reader: StatementReader, word: str) -> StatementResult:
    """Accept transaction statements without effect: queries only read committed data."""
    if word == "START":
        reader.expect("TRANSACTION")
        if not reader.is_at_end:
            reader.read_rest()  # its isolation level and mode
        return session_result("START TRANSACTION", {"X-Trino-Started-Transaction-Id":
                                                  str(uuid.uuid4())})  # fmt: skip
    reader.accept("WORK")
    reader.expect_end()
    return session_result(word, {"X-Trino-Clear-Transaction-Id": "true"})


def _explain_result(found: dict[str, Any], end: str) -> StatementResult:
    if end == "valid":
        return table_result([("Valid", "boolean")], [(True,)])
    if end == "json":
        text = json.dumps(found, default=str, indent=2)
    else:
        text = "\n".join(f"{key}: {_line(value)}" for key, value in found.items())
    return table_result([("Query Plan", "varchar")], [(text,)])


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _to_result(answer: Answer, router_query: RouterQuery) -> StatementResult:
    result_columns = answer.rows.columns
    names = router_query.query.names
    if len(names) != len(result_columns):
        names = (None,) * len(result_columns)
    columns = tuple((name or each.name, each.trino) for name, each in zip(names, result_columns))
    if router_query.end == "columns":
        return _describe_output(columns, router_query.query.names)
    return StatementResult(columns, answer.rows.body, answer.rows.count)


def _describe_output(
    columns: tuple[tuple[str, str], ...], names: tuple[str | None, ...]
) -> StatementResult:
    titles = [(title, "varchar") for title in ("Column Name", "Catalog", "Schema", "Table", "Type")]
    titles += [("Type Size", "bigint"), ("Aliased", "boolean")]
    return table_result(titles, [(name, "", "", "", kind, 0, False) for name, kind in columns])
