"""Merge on DuckDB: one row a key, the newest, whatever the order of arrival.

The rules are those of `strategies.merge`, which says why; here they are said in DuckDB's SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier
from thermocline.transform import tombstones
from thermocline.transform.duck import ordering
from thermocline.transform.duck.commits import Target
from thermocline.transform.duck.conform import shaped
from thermocline.transform.duck.session import FILE, ROW, Session
from thermocline.transform.duck.write_errors import without
from thermocline.transform.write_rules import (
    ACTION,
    DELETED,
    content_columns,
    is_empty,
    written_columns,
)

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft


def events(
    session: Session, rows: str, contract: Contract, draft: Draft, *, bookmark: Any, full: bool
) -> int:
    """Write rows that are events: of each key the newest by `order_by` stays, or its delete."""
    target = Target(session, contract, draft, rows)
    companion = tombstones.contract_for(contract)
    newest = ordering.newest(shaped(session, rows, contract, deletes=True), contract)
    if companion is None and (full or is_empty(draft, contract.table)):
        return _filled(target, newest, bookmark, full=full)
    kept = session.keep(newest)
    require_values(session, kept, contract)
    if companion is None:
        return _settle(target, kept, bookmark)
    graves = replace(target, contract=companion)
    deletes = f"SELECT * FROM {kept} WHERE {DELETED}"
    tables = (contract.table, companion.table)
    if full or all(is_empty(draft, table) for table in tables):
        _filled(graves, shaped(session, deletes, companion), None, full=full)
        return _filled(target, f"SELECT * FROM {kept}", bookmark, full=full)
    if session.rows(f"{deletes} LIMIT 1"):
        _settle(graves, session.keep(shaped(session, deletes, companion)), None)
    return _settle(target, session.keep(_not_buried(kept, target, graves)), bookmark)


def state(
    session: Session,
    rows: str,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Any,
    full: bool,
    affected: str | None,
) -> int:
    """Write rows that are the state of some keys: what is there becomes what the rows say.

    Keys in `affected` that have no row are deleted. A key with two rows is an error.
    """
    target = Target(session, contract, draft, rows)
    states = _one_each(shaped(session, rows, contract, deletes=True), contract, affected)
    if full:
        return _filled(target, states, bookmark, full=True)
    kept = session.keep(states)
    require_values(session, kept, contract)
    return _settle(target, kept, bookmark)


def require_values(
    session: Session, kept: str, contract: Contract, needed: Sequence[str] = ()
) -> None:
    """Raise CheckFailed where rows have no key, or no value in another column that is `needed`."""
    needed = (*contract.key, *needed)
    null = " OR ".join(f"{quote_identifier(name)} IS NULL" for name in needed)
    [(nulls,)] = session.rows(f"SELECT count(*) FROM {kept} WHERE {null}")
    if nulls:
        broken = f"SELECT * FROM {kept} WHERE {null}"
        raise without(session, broken, contract, needed, nulls)


def equal(key: Sequence[str]) -> str:
    """SQL that holds when two rows, t and s, have the same key."""
    return " AND ".join(f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in key)


def _one_each(rows: str, contract: Contract, affected: str | None) -> str:
    """The rows, and a delete for each affected key without one. Two rows of a key fail."""
    key = ", ".join(quote_identifier(name) for name in contract.key)
    every = f"SELECT *, true AS _tc_stated FROM ({rows})"
    if affected is not None:
        keys = f"SELECT {key}, true AS {DELETED}, false AS _tc_stated FROM {affected}"
        every = f"({every}) UNION ALL BY NAME ({keys})"
    shown = f"to_json(struct_pack({', '.join(f'{quote_identifier(n)} := {quote_identifier(n)}' for n in contract.key)}))"
    said = f"{contract.table}: the model gives several rows for the key ".replace("'", "''")
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY _tc_stated DESC)"
    return (
        f"SELECT * EXCLUDE (_tc_stated, _tc_number) FROM (SELECT *, {number} AS _tc_number "
        f"FROM ({every})) WHERE CASE WHEN _tc_number = 1 THEN true WHEN _tc_stated "
        f"THEN error('{said}' || {shown}) ELSE false END"
    )


def _not_buried(batch: str, target: Target, graves: Target) -> str:
    """The batch without rows that a remembered delete outdoes; a tie is the delete's."""
    if is_empty(target.draft, graves.contract.table):
        return f"SELECT * FROM {batch}"
    contract = target.contract
    # A LEFT JOIN by the key alone, of which there is one grave at most: DuckDB would not hash an
    # ANTI JOIN that also compares places.
    stands = (
        f"s.{DELETED} OR t.{quote_identifier(contract.key[0])} IS NULL OR "
        f"{ordering.place(contract, 't')} < {ordering.place(contract, 's')}"
    )
    joined = f"{batch} AS s LEFT JOIN ({graves.beside(batch)}) AS t ON {equal(contract.key)}"
    return f"SELECT s.* FROM {joined} WHERE {stands}"


def _settle(target: Target, batch: str, bookmark: Any) -> int:
    """Decide what each row of the batch does to the table, and commit that."""
    contract, session = target.contract, target.session
    if is_empty(target.draft, contract.table):
        return _filled(target, f"SELECT * FROM {batch}", bookmark, full=False)
    found = target.found(batch)
    near = (
        target.beside(batch) if found is None else f"SELECT * EXCLUDE ({FILE}, {ROW}) FROM {found}"
    )
    changes = session.keep(_decided(batch, near, contract))
    if session.rows(f"SELECT 1 FROM {changes} WHERE {ACTION} = 'compare' LIMIT 1"):
        changes = session.keep(_compared(changes, near, contract))
    columns = [column.name for column in written_columns(contract)]
    return target.change(
        changes, on=contract.key, columns=columns, bookmark=bookmark, operation="merge", found=found
    )


def _decided(batch: str, table: str, contract: Contract) -> str:
    """The batch with each row's action, from key and ordering columns alone.

    Those are a small part of most tables. Where they leave it open, the action is "compare";
    a table that has no other columns leaves nothing open.
    """
    names = dict.fromkeys((*contract.key, *contract.order_by))
    narrow = f"SELECT {', '.join(quote_identifier(name) for name in names)} FROM ({table})"
    ours, theirs = ordering.place(contract, "s"), ordering.place(contract, "t")
    undecided = "NULL" if {c.name for c in content_columns(contract)} <= {*names} else "'compare'"
    action = (
        f"CASE WHEN t.{quote_identifier(contract.key[0])} IS NULL "
        f"THEN CASE WHEN s.{DELETED} THEN NULL ELSE 'insert' END "
        f"WHEN {ours} > {theirs} OR (s.{DELETED} AND {ours} = {theirs}) "
        f"THEN CASE WHEN s.{DELETED} THEN 'delete' ELSE 'update' END "
        f"WHEN {ours} = {theirs} THEN {undecided} END"
    )
    joined = f"{batch} AS s LEFT JOIN ({narrow}) AS t ON {equal(contract.key)}"
    decided = f"SELECT s.*, {action} AS {ACTION} FROM {joined}"
    return f"SELECT * FROM ({decided}) WHERE {ACTION} IS NOT NULL"


def _compared(changes: str, table: str, contract: Contract) -> str:
    """The changes with what was open decided by content: the greater row stays, or the new one
    where the contract knows no order."""
    if contract.order_by:
        differs = f"{ordering.rank(contract, 's')} > {ordering.rank(contract, 't')}"
    else:
        differs = f"NOT {ordering.same(written_columns(contract), 's', 't')}"
    return (
        f"SELECT * FROM {changes} WHERE {ACTION} <> 'compare' UNION ALL BY NAME "
        f"SELECT s.* REPLACE ('update' AS {ACTION}) FROM {changes} AS s "
        f"JOIN ({table}) AS t ON {equal(contract.key)} WHERE s.{ACTION} = 'compare' AND {differs}"
    )


def _filled(target: Target, batch: str, bookmark: Any, *, full: bool) -> int:
    """Put a batch into an empty table, or in the place of everything there is."""
    names = ", ".join(quote_identifier(column.name) for column in written_columns(target.contract))
    rows = f"SELECT {names} FROM ({batch}) WHERE NOT {DELETED}"
    put = target.replace if full else target.append
    return put(rows, bookmark=bookmark, operation="merge")
