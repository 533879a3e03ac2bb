"""A statement: what it asks for, and the asking.

`read` decides from the text alone and changes nothing; what is to be asked of the router is a value
first, so that EXPLAIN and EXECUTE are the same query with another end.
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
from thermocline.serve.trino import bind, outcome, sessions, show
from thermocline.serve.trino.catalog_tables import Lake
from thermocline.serve.trino.faults import Faulty
from thermocline.serve.trino.outcome import Outcome
from thermocline.serve.trino.resolve import Resolved, resolve
from thermocline.serve.trino.words import Words, leading, parsed, tokens
from thermocline.serve.values import Answer, Caller, LakeState, QueryRequest
from thermocline.sql.guard import guard, sanitize
from thermocline.sql.session_zone import depends_on_session_zone

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.serve.trino.sessions import Session

_AT_ONCE = 5_000
"""Texts longer than this are read beside the loop, which others wait for."""


LONGEST_QUEUE = 30.0
"""Seconds that a query waits for its turn, when its caller has too many running."""

_OTHERS = frozenset(
    {
        *("ALTER", "ANALYZE", "CALL", "COMMENT", "CREATE", "DELETE", "DENY", "DROP", "GRANT"),
        *("INSERT", "MERGE", "REFRESH", "REVOKE", "TRUNCATE", "UPDATE"),
    }
)
"""Trino's other statements: known, and refused."""


class Router(Protocol):
    """What is needed of the router."""

    async def answer(self, ask: QueryRequest, caller: Caller) -> Answer:
        """Answer a question, or raise."""

    async def answer_tree(self, tree: exp.Query, ask: QueryRequest, caller: Caller) -> Answer:
        """Answer a query of our own making, without stored tables."""

    async def explain(self, ask: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Where a question would go, and why."""

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        """What is known of the lake, or what a caller may know of it."""


@dataclass(frozen=True)
class Asking:
    """A query for the router, and what is to be made of its answer."""

    query: Resolved
    end: Literal["rows", "columns", "plan", "json", "valid"] = "rows"


async def run(text: str, session: Session, caller: Caller, router: Router) -> Outcome:
    """Do what a statement says. Raises what is wrong with it, as a ThermoclineError."""
    lake = Lake(router.lake_state(caller).table_heads)
    if len(text) > _AT_ONCE:
        found = await asyncio.to_thread(read, text, session, lake)
    else:
        found = read(text, session, lake)
    if isinstance(found, Outcome):
        return found
    ask = QueryRequest(
        sql=found.query.sql,
        dialect="trino",
        format="trino",
        timeout=session.timeout,
        max_staleness=session.max_staleness,
        min_snapshot=session.min_snapshot,
    )
    tree = found.query.tree
    if tree is None and not session.in_utc:
        columns = {table: head.columns for table, head in lake.heads.items()}
        if await asyncio.to_thread(depends_on_session_zone, ask.sql, columns):
            raise Faulty(
                "NOT_SUPPORTED",
                f"The answer depends on the time zone of the session, {sanitize(session.zone)}; "
                "time is counted in UTC here.",
                "SET TIME ZONE 'UTC', or connect with that zone.",
            )
    if found.end in {"plan", "json", "valid"}:
        plan = {"list": "from the catalog"} if tree else await router.explain(ask, caller)
        return _explained(plan, found.end)
    if tree is not None:
        listed = replace(ask, sql="", min_snapshot=None)
        answer = await _queued(lambda: router.answer_tree(tree, listed, caller))
    else:
        answer = await _queued(lambda: router.answer(ask, caller))
    return _answered(answer, found)


async def _queued(asking: Callable[[], Awaitable[Answer]]) -> Answer:
    """Wait for a turn, as clients of this protocol expect, where others would be turned away."""
    until = time.monotonic() + LONGEST_QUEUE
    while True:
        try:
            return await asking()
        except Busy:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(random.uniform(0.02, 0.1))  # noqa: S311  (so that not all come at once)


def read(text: str, session: Session, lake: Lake) -> Outcome | Asking:
    """What a statement asks for: an end that is known already, or something for the router."""
    try:
        return _read(text, session, lake)
    except RecursionError:
        raise Faulty(
            "QUERY_TEXT_TOO_LARGE", "The query is nested too deeply.", "Use WITH for inner queries."
        ) from None


def _read(text: str, session: Session, lake: Lake) -> Outcome | Asking:
    word, after = leading(text)
    match word:
        case "SHOW":
            return show.show(Words(word, after), session, lake)
        case "USE":
            return show.use(Words(word, after), session, lake)
        case "DESCRIBE" | "DESC":
            return _describe(Words(word, after), session, lake)
        case "SET" | "RESET":
            return _set(Words(word, after), word)
        case "PREPARE" | "DEALLOCATE" | "EXECUTE":
            return _prepared(Words(word, after), word, session, lake)
        case "EXPLAIN":
            return _explain(Words(word, after), session, lake)
        case "START" | "COMMIT" | "ROLLBACK":
            return _transaction(Words(word, after), word)
        case "VALUES":  # a query of its own for Trino only
            return Asking(resolve(parsed(tokens(text), text), None, session, lake))
        case "SELECT" | "WITH" | "TABLE" | "":
            return Asking(_query(text, session, lake))
    if word not in _OTHERS:
        raise Faulty("SYNTAX_ERROR", f"No statement begins with {sanitize(word)}.", "Mend the SQL.")
    guard(text, "trino")  # which says what is wrong with it
    raise Faulty("NOT_SUPPORTED", f"{sanitize(word)} cannot be used here.", "Send a SELECT.")


def _query(text: str, session: Session, lake: Lake) -> Resolved:
    """Dashboards send the same texts again and again, and most mean the same each time."""
    if len(text) <= _AT_ONCE and (kept := _lasting(text, session.catalog, session.schema)):
        return kept
    return resolve(parsed(tokens(text), text), text, session, lake)


@lru_cache(maxsize=2000)
def _lasting(text: str, catalog: str, schema: str | None) -> Resolved | None:
    nobody = sessions.Session(user="", catalog=catalog, schema=schema)
    found = resolve(parsed(tokens(text), text), text, nobody, Lake({}))
    return found if found.lasting else None


def _describe(words: Words, session: Session, lake: Lake) -> Outcome | Asking:
    if words.took("INPUT"):
        sql = _kept(words.name(), session)
        words.end()
        rows = [(place, "unknown") for place in range(bind.places(sql))]
        return outcome.table([("Position", "bigint"), ("Type", "varchar")], rows)
    if words.took("OUTPUT"):
        from sqlglot import exp

        sql = _kept(words.name(), session)
        words.end()
        tree = bind.bound(sql, [exp.null() for _ in range(bind.places(sql))])
        tree.set("limit", exp.Limit(expression=exp.Literal.number(0)))
        tree.set("offset", None)
        return Asking(resolve(tree, None, session, lake), "columns")
    return show.columns(words, session, lake)


def _set(words: Words, word: str) -> Outcome:
    if word == "SET" and words.took("TIME", "ZONE"):
        zone = "UTC" if words.took("LOCAL") else words.string()
        words.end()
        sessions.checked("time_zone_id", zone)
        return outcome.done("SET TIME ZONE", {"X-Trino-Set-Session": f"time_zone_id={zone}"})
    words.need("SESSION")
    name = ".".join(words.names(most=2))
    if word == "RESET":
        words.end()
        sessions.checked(name, sessions.PROPERTIES[name].default if name in sessions.PROPERTIES
                         else "")  # fmt: skip
        return outcome.done("RESET SESSION", {"X-Trino-Clear-Session": name})
    words.need("=")
    value = _constant(words.rest())
    sessions.checked(name, value)
    return outcome.done("SET SESSION", {"X-Trino-Set-Session": f"{name}={quote_plus(value)}"})


def _constant(text: str) -> str:
    """The text of one constant."""
    from sqlglot import exp

    values = bind.parameters(text)
    if len(values) == 1 and isinstance(values[0], exp.Literal):
        return values[0].name
    if len(values) == 1 and isinstance(values[0], exp.Boolean):
        return "true" if values[0].this else "false"
    raise Faulty("INVALID_SESSION_PROPERTY", "A property takes one constant.", "Write one.")


def _prepared(words: Words, word: str, session: Session, lake: Lake) -> Outcome | Asking:
    if word == "EXECUTE":
        if words.took("IMMEDIATE"):
            return _execute(words.string(), words, session, lake)
        return _execute(_kept(words.name(), session), words, session, lake)
    if word == "DEALLOCATE":
        words.need("PREPARE")
        name = words.name()
        words.end()
        _kept(name, session)
        headers = {"X-Trino-Deallocated-Prepare": quote_plus(name)}
        return outcome.done("DEALLOCATE", headers)
    name = words.name()
    words.need("FROM")
    sql = words.rest()
    _preparable(sql)
    headers = {"X-Trino-Added-Prepare": f"{quote_plus(name)}={quote_plus(sql)}"}
    return outcome.done("PREPARE", headers)


def _preparable(sql: str) -> str:
    """Refuse what could not be executed either: only queries and lists are kept."""
    word, _ = leading(sql)
    if word in {"SHOW", "DESCRIBE", "DESC"}:
        return word
    if word not in {"SELECT", "WITH", "VALUES", "TABLE", ""}:
        raise Faulty(
            "NOT_SUPPORTED", f"A {sanitize(word)} cannot be prepared.", "Prepare a SELECT."
        )
    from sqlglot import exp

    bind.bound(sql, [exp.null() for _ in range(bind.places(sql))])
    return "SELECT"


def _execute(sql: str, words: Words, session: Session, lake: Lake) -> Outcome | Asking:
    values: list[exp.Expr] = []
    if not words.ended:
        words.need("USING")
        values = bind.parameters(words.rest())
    if _preparable(sql) != "SELECT" and not values:
        return read(sql, session, lake)
    return Asking(resolve(bind.bound(sql, values), None, session, lake))


def _kept(name: str, session: Session) -> str:
    sql = session.prepared.get(name)
    if sql is None:
        raise Faulty(
            "NOT_FOUND", f"Prepared statement not found: {sanitize(name)}.", "PREPARE it first."
        )
    return sql


def _explain(words: Words, session: Session, lake: Lake) -> Asking:
    end: Literal["plan", "json", "valid"] = "plan"
    if words.took("("):
        while not words.took(")"):
            if words.took("TYPE", "VALIDATE"):
                end = "valid"
            elif words.took("FORMAT", "JSON"):
                end = "json"
            elif not (
                words.took("TYPE", "LOGICAL")
                or words.took("TYPE", "DISTRIBUTED")
                or words.took("FORMAT", "TEXT")
            ):
                raise Faulty("NOT_SUPPORTED", "This EXPLAIN has no answer here.", "EXPLAIN query.")
            words.took(",")
    sql = words.rest()
    if _preparable(sql) != "SELECT":
        raise Faulty("NOT_SUPPORTED", "Only a query can be explained.", "EXPLAIN a SELECT.")
    return Asking(resolve(parsed(tokens(sql), sql), sql, session, lake), end)


def _transaction(words: Words, word: str) -> Outcome:
    """A query reads what is committed; there is nothing that could be taken back."""
    if word == "START":
        words.need("TRANSACTION")
        if not words.ended:
            words.rest()  # of what kind it should be
        return outcome.done("START TRANSACTION", {"X-Trino-Started-Transaction-Id":
                                                  str(uuid.uuid4())})  # fmt: skip
    words.took("WORK")
    words.end()
    return outcome.done(word, {"X-Trino-Clear-Transaction-Id": "true"})


def _explained(found: dict[str, Any], end: str) -> Outcome:
    if end == "valid":
        return outcome.table([("Valid", "boolean")], [(True,)])
    if end == "json":
        text = json.dumps(found, default=str, indent=2)
    else:
        text = "\n".join(f"{key}: {_line(value)}" for key, value in found.items())
    return outcome.table([("Query Plan", "varchar")], [(text,)])


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _answered(answer: Answer, asked: Asking) -> Outcome:
    given = answer.rows.columns
    names = asked.query.names
    if len(names) != len(given):
        names = (None,) * len(given)
    columns = tuple((name or each.name, each.trino) for name, each in zip(names, given))
    if asked.end == "columns":
        return _output(columns, asked.query.names)
    return Outcome(columns, answer.rows.body, answer.rows.count)


def _output(columns: tuple[tuple[str, str], ...], names: tuple[str | None, ...]) -> Outcome:
    titles = [(title, "varchar") for title in ("Column Name", "Catalog", "Schema", "Table", "Type")]
    titles += [("Type Size", "bigint"), ("Aliased", "boolean")]
    return outcome.table(titles, [(name, "", "", "", kind, 0, False) for name, kind in columns])
