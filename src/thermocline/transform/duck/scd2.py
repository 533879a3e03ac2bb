"""scd2 on DuckDB: every version a key ever had, with the time in which it was true.

The rules are those of `strategies.scd2`, which says why; here they are said in DuckDB's SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.transform.duck import ordering
from thermocline.transform.duck.commits import Target
from thermocline.transform.duck.conform import shaped
from thermocline.transform.duck.merge import equal, require_values
from thermocline.transform.duck.session import Session
from thermocline.transform.tombstones import KIND
from thermocline.transform.write_rules import (
    ACTION,
    DELETED,
    is_empty,
    payload_columns,
    require_history_companion,
    version_action,
    written_columns,
)

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

_STAMP = "TIMESTAMP WITH TIME ZONE"


def write(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Write rows that are events: the table becomes the canonical history of all events so far."""
    target = Target(session, contract, draft, rows)
    beside = replace(target, contract=require_history_companion(contract))
    batch = session.keep(_batch(shaped(session, rows, contract, deletes=True), contract))
    require_values(session, batch, contract, contract.order_by[:1])
    events = f"SELECT * FROM {batch}"
    fresh = full or all(is_empty(draft, t.contract.table) for t in (target, beside))
    if not fresh:
        known = _resolved(_known(target, beside, batch), contract)
        events = f"({events}) UNION ALL BY NAME ({known})"
    return _commit(target, beside, _canonical(_held(events, contract), contract), bookmark, full)


def _batch(events: str, contract: Contract) -> str:
    """The new events, in the columns of an event."""
    return (
        f"SELECT *, CAST({quote_identifier(contract.order_by[0])} AS {_STAMP}) AS _tc_at, "
        f"CAST(NULL AS VARCHAR) AS _tc_was, CAST(NULL AS {_STAMP}) AS _tc_was_until FROM ({events})"
    )


def _known(target: Target, beside: Target, batch: str) -> str:
    """What the two tables hold of the batch's keys, in the columns of an event."""
    contract = target.contract
    columns = written_columns(contract)
    ours = f"SEMI JOIN {batch} AS s ON {equal(contract.key)}"
    named = ", ".join(quote_identifier(column.name) for column in columns)
    versions = (
        f"SELECT {named}, false AS {DELETED}, _valid_from AS _tc_at, 'version' AS _tc_was, "
        f"_valid_to AS _tc_was_until FROM ({target.beside(batch, contract.key)}) AS t {ours}"
    )
    stored = {column.name for column in beside.contract.columns}
    kept = beside.beside(batch, contract.key)
    absorbed = ", ".join(
        quote_identifier(c.name)
        if c.name in stored
        else f"CAST(NULL AS {to_ddl(c.type)}) AS {quote_identifier(c.name)}"
        for c in columns
    )
    others = (
        f"SELECT {absorbed}, {KIND} = 'delete' AS {DELETED}, "
        f"CAST({quote_identifier(contract.order_by[0])} AS {_STAMP}) AS _tc_at, {KIND} AS _tc_was, "
        f"CAST(NULL AS {_STAMP}) AS _tc_was_until FROM ({kept}) AS t {ours}"
    )
    return f"({versions}) UNION ALL BY NAME ({others})"


def _resolved(known: str, contract: Contract) -> str:
    """Known events with their payload: a repetition says what the version around it says."""
    payload = payload_columns(contract)
    if not payload:
        return known
    whole = ", ".join(f"{quote_identifier(c.name)} := {quote_identifier(c.name)}" for c in payload)
    around = (
        f"last_value(CASE WHEN _tc_was = 'version' THEN struct_pack({whole}) END IGNORE NULLS) "
        f"OVER ({_by_time(contract)} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    )
    values = ", ".join(
        f"CASE WHEN _tc_was = 'same' THEN _tc_around.{quote_identifier(c.name)} ELSE {quote_identifier(c.name)} END "
        f"AS {quote_identifier(c.name)}"
        for c in payload
    )
    said = f"SELECT *, {around} AS _tc_around FROM ({known})"
    return f"SELECT * EXCLUDE (_tc_around) REPLACE ({values}) FROM ({said})"


def _held(events: str, contract: Contract) -> str:
    """Every event with what is held of its instant now, be it this event or another."""
    instant = f"OVER (PARTITION BY {_key(contract)}, _tc_at)"
    return (
        f"SELECT *, max(_tc_was) {instant} AS _tc_held, "
        f"max(_tc_was_until) {instant} AS _tc_held_until FROM ({events})"
    )


def _canonical(events: str, contract: Contract) -> str:
    """One event an instant, each marked as version, same or delete, and until when it is true."""
    # Of two that say the same the one that is held already: it need not be written.
    order = ", ".join([*ordering.descending(contract, "e", skip=1), "_tc_was IS NOT NULL DESC"])
    winners = (
        f"SELECT e.* FROM ({events}) AS e QUALIFY row_number() OVER "
        f"(PARTITION BY {_key(contract)}, _tc_at ORDER BY {order}) = 1"
    )
    over = f"OVER ({_by_time(contract)})"
    said = [*payload_columns(contract)]
    agree = " AND ".join(
        [
            f"lag({DELETED}) {over} = {DELETED}",
            *(
                f"lag({quote_identifier(c.name)}) {over} IS NOT DISTINCT FROM {quote_identifier(c.name)}"
                for c in said
            ),
        ]
    )
    kind = (
        f"CASE WHEN {DELETED} THEN 'delete' WHEN coalesce({agree}, false) THEN 'same' "
        f"ELSE 'version' END"
    )
    marked = f"SELECT *, {kind} AS _tc_is FROM ({winners})"
    until = f"lead(CASE WHEN _tc_is <> 'same' THEN _tc_at END IGNORE NULLS) {over}"
    return f"SELECT *, {until} AS _tc_until FROM ({marked})"


def _commit(target: Target, beside: Target, events: str, bookmark: Any, full: bool) -> int:
    """Commit the difference between what is held and what is to be held, companion first."""
    session, contract = target.session, target.contract
    version = "_tc_is = 'version'"
    until = "_tc_until IS DISTINCT FROM _tc_held_until"
    on_table = version_action(version, "_tc_held = 'version'", until)
    absorbed = version_action(f"NOT {version}", "_tc_held <> 'version'", "_tc_is <> _tc_held")
    named = ", ".join(quote_identifier(column.name) for column in written_columns(contract))
    changed = (
        f"SELECT {named}, _tc_at, _tc_until, _tc_is, {on_table} AS _tc_on_table, "
        f"{absorbed} AS _tc_beside FROM ({events})"
    )
    kept = session.keep(
        f"SELECT * FROM ({changed}) WHERE _tc_on_table IS NOT NULL OR _tc_beside IS NOT NULL"
    )
    marks = (
        f"SELECT *, _tc_is AS {KIND}, _tc_beside AS {ACTION} FROM {kept} "
        "WHERE _tc_beside IS NOT NULL"
    )
    if full or session.rows(f"SELECT 1 FROM ({marks}) LIMIT 1"):
        _put(beside, marks, beside.contract.key, None, full=full)
    history = (
        f"SELECT *, _tc_at AS _valid_from, _tc_until AS _valid_to, "
        f"_tc_until IS NULL AS _is_current, _tc_on_table AS {ACTION} FROM {kept} "
        "WHERE _tc_on_table IS NOT NULL"
    )
    return _put(target, history, (*contract.key, "_valid_from"), bookmark, full=full)


def _put(target: Target, changes: str, key: Sequence[str], bookmark: Any, *, full: bool) -> int:
    """Commit one table's part of the changes."""
    columns = [column.name for column in target.contract.table_columns]
    if full:
        named = ", ".join(quote_identifier(name) for name in columns)
        rows = f"SELECT {named} FROM ({changes})"
        return target.replace(rows, bookmark=bookmark, operation="scd2")
    kept = target.session.keep(changes)
    return target.change(kept, on=key, columns=columns, bookmark=bookmark, operation="scd2")


def _key(contract: Contract) -> str:
    return ", ".join(quote_identifier(name) for name in contract.key)


def _by_time(contract: Contract) -> str:
    return f"PARTITION BY {_key(contract)} ORDER BY _tc_at"
