"""scd2 on DuckDB: every version that a key ever had, with its period of validity.

The rules are those of `spark/scd2.py`, which explains them; this module writes them in DuckDB SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.transform import write_rules
from thermocline.transform.duck import ordering
from thermocline.transform.duck.commits import DraftTable
from thermocline.transform.duck.conform import conform_rows
from thermocline.transform.duck.merge import match_keys, require_values
from thermocline.transform.duck.session import Session
from thermocline.transform.tombstones import KIND
from thermocline.transform.write_rules import ACTION, DELETED, is_empty, written_columns

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

_STAMP = "TIMESTAMP WITH TIME ZONE"


def write(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Write events: the table becomes the canonical history of all events so far."""
    target = DraftTable(session, contract, draft, rows)
    companion = replace(target, contract=write_rules.require_history_companion(contract))
    batch = session.materialize(
        _build_batch(conform_rows(session, rows, contract, deletes=True), contract)
    )
    require_values(session, batch, contract, contract.order_by[:1])
    events = f"SELECT * FROM {batch}"
    fresh = full or all(is_empty(draft, t.contract.table) for t in (target, companion))
    if not fresh:
        known = _restore_payload(_read_stored_events(target, companion, batch), contract)
        events = f"({events}) UNION ALL BY NAME ({known})"
    return _commit_difference(
        target,
        companion,
        _build_history(_add_stored_state(events, contract), contract),
        bookmark,
        full,
    )


def _build_batch(events: str, contract: Contract) -> str:
    """Return the new events, in the columns of an event."""
    return (
        f"SELECT *, CAST({quote_identifier(contract.order_by[0])} AS {_STAMP}) AS _tc_at, "
        f"CAST(NULL AS VARCHAR) AS _tc_was, CAST(NULL AS {_STAMP}) AS _tc_was_until FROM ({events})"
    )


def _read_stored_events(target: DraftTable, companion: DraftTable, batch: str) -> str:
    """Read the batch's keys from both tables, in the columns of an event."""
    contract = target.contract
    columns = written_columns(contract)
    ours = f"SEMI JOIN {batch} AS s ON {match_keys(contract.key)}"
    named = ", ".join(quote_identifier(column.name) for column in columns)
    versions = (
        f"SELECT {named}, false AS {DELETED}, _valid_from AS _tc_at, 'version' AS _tc_was, "
        f"_valid_to AS _tc_was_until FROM ({target.rows_near(batch, contract.key)}) AS t {ours}"
    )
    stored = {column.name for column in companion.contract.columns}
    kept = companion.rows_near(batch, contract.key)
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


def _restore_payload(known: str, contract: Contract) -> str:
    """Restore the payload of stored events: a repetition has that of the version around it."""
    payload = write_rules.payload_columns(contract)
    if not payload:
        return known
    payload_struct = ", ".join(
        f"{quote_identifier(c.name)} := {quote_identifier(c.name)}" for c in payload
    )
    around = (
        f"last_value(CASE WHEN _tc_was = 'version' THEN struct_pack({payload_struct}) END "
        "IGNORE NULLS) "
        f"OVER ({_order_by_time(contract)} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    )
    values = ", ".join(
        f"CASE WHEN _tc_was = 'same' THEN _tc_around.{name} ELSE {name} END AS {name}"
        for name in (quote_identifier(c.name) for c in payload)
    )
    columns = f"SELECT *, {around} AS _tc_around FROM ({known})"
    return f"SELECT * EXCLUDE (_tc_around) REPLACE ({values}) FROM ({columns})"


def _add_stored_state(events: str, contract: Contract) -> str:
    """Add to every event what the tables store at its instant now: this event or another."""
    instant = f"OVER (PARTITION BY {_key_columns(contract)}, _tc_at)"
    return (
        f"SELECT *, max(_tc_was) {instant} AS _tc_held, "
        f"max(_tc_was_until) {instant} AS _tc_held_until FROM ({events})"
    )


def _build_history(events: str, contract: Contract) -> str:
    """Keep one event per instant, with its kind (version, same, delete) and its end of validity."""
    # Of two equal events the stored one wins: it need not be written.
    order = ", ".join(
        [*ordering.build_descending_order(contract, "e", skip=1), "_tc_was IS NOT NULL DESC"]
    )
    winners = (
        f"SELECT e.* FROM ({events}) AS e QUALIFY row_number() OVER "
        f"(PARTITION BY {_key_columns(contract)}, _tc_at ORDER BY {order}) = 1"
    )
    over = f"OVER ({_order_by_time(contract)})"
    columns = [*write_rules.payload_columns(contract)]
    agree = " AND ".join(
        [
            f"lag({DELETED}) {over} = {DELETED}",
            *(
                f"lag({name}) {over} IS NOT DISTINCT FROM {name}"
                for name in (quote_identifier(c.name) for c in columns)
            ),
        ]
    )
    kind = (
        f"CASE WHEN {DELETED} THEN 'delete' WHEN coalesce({agree}, false) THEN 'same' "
        f"ELSE 'version' END"
    )
    with_kind = f"SELECT *, {kind} AS _tc_is FROM ({winners})"
    until = f"lead(CASE WHEN _tc_is <> 'same' THEN _tc_at END IGNORE NULLS) {over}"
    return f"SELECT *, {until} AS _tc_until FROM ({with_kind})"


def _commit_difference(
    target: DraftTable, companion: DraftTable, events: str, bookmark: Any, full: bool
) -> int:
    """Commit the difference between the stored and the new history, companion first."""
    session, contract = target.session, target.contract
    version = "_tc_is = 'version'"
    until = "_tc_until IS DISTINCT FROM _tc_held_until"
    on_table = write_rules.version_action(version, "_tc_held = 'version'", until)
    absorbed = write_rules.version_action(
        f"NOT {version}", "_tc_held <> 'version'", "_tc_is <> _tc_held"
    )
    named = ", ".join(quote_identifier(column.name) for column in written_columns(contract))
    changed = (
        f"SELECT {named}, _tc_at, _tc_until, _tc_is, {on_table} AS _tc_on_table, "
        f"{absorbed} AS _tc_beside FROM ({events})"
    )
    kept = session.materialize(
        f"SELECT * FROM ({changed}) WHERE _tc_on_table IS NOT NULL OR _tc_beside IS NOT NULL"
    )
    marks = (
        f"SELECT *, _tc_is AS {KIND}, _tc_beside AS {ACTION} FROM {kept} "
        "WHERE _tc_beside IS NOT NULL"
    )
    if full or session.fetch(f"SELECT 1 FROM ({marks}) LIMIT 1"):
        _commit_table(companion, marks, companion.contract.key, None, full=full)
    history = (
        f"SELECT *, _tc_at AS _valid_from, _tc_until AS _valid_to, "
        f"_tc_until IS NULL AS _is_current, _tc_on_table AS {ACTION} FROM {kept} "
        "WHERE _tc_on_table IS NOT NULL"
    )
    return _commit_table(target, history, (*contract.key, "_valid_from"), bookmark, full=full)


def _commit_table(
    target: DraftTable, changes: str, key: Sequence[str], bookmark: Any, *, full: bool
) -> int:
    """Commit the changes of one of the two tables."""
    columns = [column.name for column in target.contract.table_columns]
    if full:
        named = ", ".join(quote_identifier(name) for name in columns)
        rows = f"SELECT {named} FROM ({changes})"
        return target.replace(rows, bookmark=bookmark, operation="scd2")
    kept = target.session.materialize(changes)
    return target.apply_actions(kept, on=key, columns=columns, bookmark=bookmark, operation="scd2")


def _key_columns(contract: Contract) -> str:
    return ", ".join(quote_identifier(name) for name in contract.key)


def _order_by_time(contract: Contract) -> str:
    return f"PARTITION BY {_key_columns(contract)} ORDER BY _tc_at"
