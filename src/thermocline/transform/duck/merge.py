"""Merge on DuckDB: one row per key, the newest, independent of the order of arrival.

The rules are those of `spark/merge.py`, which explains them; this module writes them in DuckDB
SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.transform import tombstones, write_rules
from thermocline.transform.duck import ordering
from thermocline.transform.duck.commits import DraftTable
from thermocline.transform.duck.conform import conform_rows
from thermocline.transform.duck.session import FILE, ROW, Session
from thermocline.transform.duck.write_errors import build_missing_key_error
from thermocline.transform.write_rules import ACTION, DELETED, is_empty, written_columns

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft


def write_events(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Write events: keep the newest event of each key by `order_by`, or its delete."""
    target = DraftTable(session, contract, draft, rows)
    companion = tombstones.derive_companion(contract)
    newest = ordering.select_newest(conform_rows(session, rows, contract, deletes=True), contract)
    if companion is None and (full or is_empty(draft, contract.table)):
        return _write_all(target, newest, bookmark, full=full)
    batch = session.materialize(newest)
    require_values(session, batch, contract)
    if companion is None:
        return _merge_batch(target, batch, bookmark)
    tombstone_table = replace(target, contract=companion)
    deletes = f"SELECT * FROM {batch} WHERE {DELETED}"
    tables = (contract.table, companion.table)
    if full or all(is_empty(draft, table) for table in tables):
        _write_all(tombstone_table, conform_rows(session, deletes, companion), None, full=full)
        return _write_all(target, f"SELECT * FROM {batch}", bookmark, full=full)
    if session.fetch(f"{deletes} LIMIT 1"):
        _merge_batch(
            tombstone_table, session.materialize(conform_rows(session, deletes, companion)), None
        )
    return _merge_batch(
        target, session.materialize(_remove_deleted(batch, target, tombstone_table)), bookmark
    )


def write_states(
    session: Session,
    rows: str,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    affected: str | None,
) -> int:
    """Write states: the rows replace the table's rows of the same keys.

    Keys in `affected` without a row are deleted. A key with two rows is an error.
    """
    target = DraftTable(session, contract, draft, rows)
    states = _require_one_per_key(
        conform_rows(session, rows, contract, deletes=True), contract, affected
    )
    if full:
        return _write_all(target, states, bookmark, full=True)
    batch = session.materialize(states)
    require_values(session, batch, contract)
    return _merge_batch(target, batch, bookmark)


def require_values(
    session: Session, batch: str, contract: Contract, needed: Sequence[str] = ()
) -> None:
    """Raise CheckFailed if rows lack a value in a key column or another `needed` column."""
    needed = (*contract.key, *needed)
    null = " OR ".join(f"{quote_identifier(name)} IS NULL" for name in needed)
    [(nulls,)] = session.fetch(f"SELECT count(*) FROM {batch} WHERE {null}")
    if nulls:
        broken = f"SELECT * FROM {batch} WHERE {null}"
        raise build_missing_key_error(session, broken, contract, needed, nulls)


def match_keys(key: Sequence[str]) -> str:
    """Return SQL that is true if two rows, t and s, have the same key."""
    return " AND ".join(f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in key)


def _require_one_per_key(rows: str, contract: Contract, affected: str | None) -> str:
    """Return the rows, and a delete for each affected key without a row; two rows per key fail."""
    key = ", ".join(quote_identifier(name) for name in contract.key)
    every = f"SELECT *, true AS _tc_stated FROM ({rows})"
    if affected is not None:
        keys = f"SELECT {key}, true AS {DELETED}, false AS _tc_stated FROM {affected}"
        every = f"({every}) UNION ALL BY NAME ({keys})"
    members = (f"{quote_identifier(n)} := {quote_identifier(n)}" for n in contract.key)
    key_json = f"to_json(struct_pack({', '.join(members)}))"
    message = f"{contract.table}: the model gives several rows for the key ".replace("'", "''")
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY _tc_stated DESC)"
    return (
        f"SELECT * EXCLUDE (_tc_stated, _tc_number) FROM (SELECT *, {number} AS _tc_number "
        f"FROM ({every})) WHERE CASE WHEN _tc_number = 1 THEN true WHEN _tc_stated "
        f"THEN error('{message}' || {key_json}) ELSE false END"
    )


def _remove_deleted(batch: str, target: DraftTable, tombstone_table: DraftTable) -> str:
    """Return the batch without rows older than a stored delete of their key; a delete wins ties."""
    if is_empty(target.draft, tombstone_table.contract.table):
        return f"SELECT * FROM {batch}"
    contract = target.contract
    # A LEFT JOIN on the key alone, which has one tombstone at most: DuckDB would not hash an
    # ANTI JOIN that also compares positions.
    survives = (
        f"s.{DELETED} OR t.{quote_identifier(contract.key[0])} IS NULL OR "
        f"{ordering.build_position(contract, 't')} < {ordering.build_position(contract, 's')}"
    )
    deletes = tombstone_table.rows_near(batch)
    joined = f"{batch} AS s LEFT JOIN ({deletes}) AS t ON {match_keys(contract.key)}"
    return f"SELECT s.* FROM {joined} WHERE {survives}"


def _merge_batch(target: DraftTable, batch: str, bookmark: Any) -> int:
    """Decide the action of each row of the batch, and commit the changes."""
    contract, session = target.contract, target.session
    if is_empty(target.draft, contract.table):
        return _write_all(target, f"SELECT * FROM {batch}", bookmark, full=False)
    found = target.find_rows(batch)
    near = (
        target.rows_near(batch)
        if found is None
        else f"SELECT * EXCLUDE ({FILE}, {ROW}) FROM {found}"
    )
    changes = session.materialize(_decide_actions(batch, near, contract))
    if session.fetch(f"SELECT 1 FROM {changes} WHERE {ACTION} = 'compare' LIMIT 1"):
        changes = session.materialize(_compare_contents(changes, near, contract))
    columns = [column.name for column in written_columns(contract)]
    return target.apply_actions(
        changes, on=contract.key, columns=columns, bookmark=bookmark, operation="merge", found=found
    )


def _decide_actions(batch: str, table: str, contract: Contract) -> str:
    """Return the batch with each row's action, decided from key and ordering columns alone.

    These are a small part of most tables. If they do not decide, the action is "compare"; in a
    table without other columns they always decide.
    """
    names = dict.fromkeys((*contract.key, *contract.order_by))
    narrow = f"SELECT {', '.join(quote_identifier(name) for name in names)} FROM ({table})"
    ours, theirs = ordering.build_position(contract, "s"), ordering.build_position(contract, "t")
    content = {column.name for column in write_rules.content_columns(contract)}
    undecided = "NULL" if content <= {*names} else "'compare'"
    action = (
        f"CASE WHEN t.{quote_identifier(contract.key[0])} IS NULL "
        f"THEN CASE WHEN s.{DELETED} THEN NULL ELSE 'insert' END "
        f"WHEN {ours} > {theirs} OR (s.{DELETED} AND {ours} = {theirs}) "
        f"THEN CASE WHEN s.{DELETED} THEN 'delete' ELSE 'update' END "
        f"WHEN {ours} = {theirs} THEN {undecided} END"
    )
    joined = f"{batch} AS s LEFT JOIN ({narrow}) AS t ON {match_keys(contract.key)}"
    decided = f"SELECT s.*, {action} AS {ACTION} FROM {joined}"
    return f"SELECT * FROM ({decided}) WHERE {ACTION} IS NOT NULL"


def _compare_contents(changes: str, table: str, contract: Contract) -> str:
    """Decide the action "compare" by content: the greater row stays, or the new one if the contract
    has no order."""
    if contract.order_by:
        differs = f"{ordering.build_rank(contract, 's')} > {ordering.build_rank(contract, 't')}"
    else:
        differs = f"NOT {ordering.build_equality(written_columns(contract), 's', 't')}"
    return (
        f"SELECT * FROM {changes} WHERE {ACTION} <> 'compare' UNION ALL BY NAME "
        f"SELECT s.* REPLACE ('update' AS {ACTION}) FROM {changes} AS s "
        f"JOIN ({table}) AS t ON {match_keys(contract.key)} "
        f"WHERE s.{ACTION} = 'compare' AND {differs}"
    )


def _write_all(target: DraftTable, batch: str, bookmark: Any, *, full: bool) -> int:
    """Write a batch into an empty table, or replace the whole table by it."""
    names = ", ".join(quote_identifier(column.name) for column in written_columns(target.contract))
    rows = f"SELECT {names} FROM ({batch}) WHERE NOT {DELETED}"
    write = target.replace if full else target.append
    return write(rows, bookmark=bookmark, operation="merge")
