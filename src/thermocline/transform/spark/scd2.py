"""scd2 on Spark: every version that a key ever had, with its period of validity.

The history of a key is a function of its events. They are sorted by the first ordering column, with
at most one event per instant (the one that ranks highest). An upsert that repeats the version
before it opens no version; a delete closes the version and opens none. Table and companion together
store exactly the event of each instant: versions in the table, deletes and repetitions in the
companion. So a write reads the events of the batch's keys back, adds the new ones, and writes the
difference: late rows need no special rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.transform import write_rules
from thermocline.transform.spark import commits, ordering
from thermocline.transform.spark.conform import conform_rows
from thermocline.transform.spark.merge import count_batch, filter_by_keys
from thermocline.transform.spark.write_errors import explain_errors
from thermocline.transform.tombstones import KIND
from thermocline.transform.write_rules import ACTION, DELETED, STORED_AS, is_empty, written_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

_AT = "_tc_at"  # the instant of an event
_WAS_UNTIL = "_tc_was_until"  # the end of the version that is stored now
_STORED = "_tc_held"  # the kind of event stored at the instant, even if it no longer ranks first
_STORED_UNTIL = "_tc_held_until"
_IS = "_tc_is"  # the kind to store
_UNTIL = "_tc_until"


@dataclass(frozen=True)
class _HistoryWrite:
    """One write of events to an scd2 table and its companion."""

    rows: DataFrame
    contract: Contract
    companion: Contract
    draft: Draft
    bookmark: Any
    full: bool


def write(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool) -> int:
    """Write events: the table becomes the canonical history of all events so far.

    It reads only the batch's keys, and writes only versions that change. Both tables must be as the
    last complete write left them: a half-written draft is dropped, not resumed.
    """
    request = _HistoryWrite(
        rows, contract, write_rules.require_history_companion(contract), draft, bookmark, full
    )
    batch = _build_batch(rows, contract)
    tables = (contract.table, request.companion.table)
    if full or all(is_empty(draft, table) for table in tables):
        return _commit_difference(request, _build_history(_add_empty_state(batch), contract))
    with commits.evaluate_once(batch) as kept:
        counts = count_batch(kept, contract, contract.order_by[:1])
        known = _restore_payload(_read_stored_events(request, kept, counts.rows), contract)
        events = _add_stored_state(kept.unionByName(known), contract)
        return _commit_difference(request, _build_history(events, contract))


def _build_batch(rows: DataFrame, contract: Contract) -> DataFrame:
    """Return the new events, in the columns of an event. Deletes lose their payload."""
    from pyspark.sql import functions as F

    events = conform_rows(rows, contract, deletes=True)
    if contract.delete_when is not None:
        names = [column.name for column in write_rules.payload_columns(contract)]
        there = ~F.col(DELETED)
        events = events.withColumns({n: F.when(there, F.col(quote_identifier(n))) for n in names})
    return events.withColumns(
        {
            _AT: F.col(quote_identifier(contract.order_by[0])).cast("timestamp"),
            STORED_AS: F.lit(None).cast("string"),
            _WAS_UNTIL: F.lit(None).cast("timestamp"),
        }
    )


def _read_stored_events(request: _HistoryWrite, batch: DataFrame, count: int) -> DataFrame:
    """Read the batch's keys from both tables, in the columns of an event."""
    from pyspark.sql import functions as F

    contract, companion, draft = request.contract, request.companion, request.draft
    columns = written_columns(contract)
    version = {
        DELETED: F.lit(False),
        _AT: F.col("_valid_from"),
        STORED_AS: F.lit("version"),
        _WAS_UNTIL: F.col("_valid_to"),
    }
    table = commits.read_head(draft, contract.table)
    versions = filter_by_keys(table, batch, contract.key, count).withColumns(version)
    stored = {column.name for column in companion.columns}
    absorbed = {c.name: F.lit(None).cast(to_ddl(c.type)) for c in columns if c.name not in stored}
    absorbed |= {
        DELETED: F.col(KIND) == "delete",
        _AT: F.col(quote_identifier(contract.order_by[0])).cast("timestamp"),
        STORED_AS: F.col(KIND),
        _WAS_UNTIL: F.lit(None).cast("timestamp"),
    }
    table = commits.read_head(draft, companion.table)
    others = filter_by_keys(table, batch, contract.key, count).withColumns(absorbed)
    names = [
        *(quote_identifier(column.name) for column in columns),
        DELETED,
        _AT,
        STORED_AS,
        _WAS_UNTIL,
    ]
    return versions.select(*names).unionByName(others.select(*names))


def _restore_payload(known: DataFrame, contract: Contract) -> DataFrame:
    """Restore the payload of stored events: a repetition has that of the version around it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    payload = write_rules.payload_columns(contract)
    if not payload:
        return known
    payload_struct = F.struct(*(quote_identifier(column.name) for column in payload))
    latest = F.last(F.when(F.col(STORED_AS) == "version", payload_struct), ignorenulls=True)
    around = latest.over(_order_by_time(contract).rowsBetween(Window.unboundedPreceding, 0))
    repeated = F.col(STORED_AS) == "same"
    with_payload = known.withColumn("_tc_around", around)
    values = {
        column.name: F.when(repeated, F.col("_tc_around").getField(column.name)).otherwise(
            F.col(quote_identifier(column.name))
        )
        for column in payload
    }
    return with_payload.withColumns(values).drop("_tc_around")


def _add_stored_state(events: DataFrame, contract: Contract) -> DataFrame:
    """Add to every event what the tables store at its instant now: this event or another."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    instant = Window.partitionBy(*(quote_identifier(name) for name in contract.key), _AT)
    return events.withColumns(
        {_STORED: F.max(STORED_AS).over(instant), _STORED_UNTIL: F.max(_WAS_UNTIL).over(instant)}
    )


def _add_empty_state(events: DataFrame) -> DataFrame:
    """Add the same columns if nothing is stored."""
    from pyspark.sql import functions as F

    return events.withColumns({_STORED: F.col(STORED_AS), _STORED_UNTIL: F.col(_WAS_UNTIL)})


def _build_history(events: DataFrame, contract: Contract) -> DataFrame:
    """Keep one event per instant, with its kind (version, same, delete) and its end of validity."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [quote_identifier(name) for name in contract.key]
    ranked = Window.partitionBy(*key).orderBy(
        # Of two equal events the stored one wins: it need not be written.
        F.col(_AT),
        *ordering.build_ascending_order(contract, skip=1),
        F.col(STORED_AS).isNotNull(),
    )
    following = events.withColumn("_tc_next", F.lead(_AT).over(ranked))
    winners = following.where(f"_tc_next is null or _tc_next > {_AT}")
    content = F.struct(
        *(F.expr(ordering.build_comparable(c)) for c in write_rules.payload_columns(contract)),
        F.col(DELETED),
    )
    repeats = F.coalesce(F.lag(content).over(_order_by_time(contract)) == content, F.lit(False))
    kind = F.when(F.col(DELETED), "delete").when(repeats, "same").otherwise("version")
    ends = F.expr(
        f"lead(if({_IS} <> 'same', {_AT}, null), 1) ignore nulls "
        f"over (partition by {', '.join(key)} order by {_AT})"
    )
    return winners.withColumn(_IS, kind).withColumn(_UNTIL, ends)


def _commit_difference(request: _HistoryWrite, events: DataFrame) -> int:
    """Commit the difference between the stored and the new history, companion first."""
    from pyspark.sql import functions as F

    version = f"{_IS} = 'version'"
    on_table = write_rules.version_action(
        version, f"{_STORED} = 'version'", f"not ({_UNTIL} <=> {_STORED_UNTIL})"
    )
    companion = write_rules.version_action(
        f"not {version}", f"{_STORED} <> 'version'", f"{_IS} <> {_STORED}"
    )
    content = [quote_identifier(column.name) for column in written_columns(request.contract)]
    changed = events.selectExpr(
        *content, _AT, _UNTIL, _IS, f"{on_table} as _tc_on_table", f"{companion} as _tc_beside"
    )
    changed = changed.where("_tc_on_table is not null or _tc_beside is not null")
    with commits.evaluate_once(changed) as changes:
        absorbed = not changes.where("_tc_beside is not null").isEmpty()
        if absorbed or request.full:
            marks = changes.withColumns({KIND: F.col(_IS), ACTION: F.col("_tc_beside")})
            _commit_table(request, marks, request.companion, request.companion.key, None)
        history = {
            "_valid_from": F.col(_AT),
            "_valid_to": F.col(_UNTIL),
            "_is_current": F.col(_UNTIL).isNull(),
            ACTION: F.col("_tc_on_table"),
        }
        key = (*request.contract.key, "_valid_from")
        return _commit_table(
            request, changes.withColumns(history), request.contract, key, request.bookmark
        )


def _commit_table(
    request: _HistoryWrite,
    changes: DataFrame,
    contract: Contract,
    key: Sequence[str],
    bookmark: Any,
) -> int:
    """Commit the changes of one of the two tables."""
    from pyspark.sql import functions as F

    columns = contract.table_columns
    present = {name.lower() for name in changes.columns}
    absent = [column for column in columns if column.name.lower() not in present]
    part = changes.where(f"{ACTION} is not null").withColumns(
        {column.name: F.lit(None).cast(to_ddl(column.type)) for column in absent}
    )

    def commit(target: str) -> None:
        with explain_errors(request.rows, request.contract):
            if request.full:
                commits.replace(part.select(*(quote_identifier(c.name) for c in columns)), target)
            else:
                commits.apply_actions(part, target, on=key, columns=[c.name for c in columns])

    return request.draft.commit(contract.table, commit, bookmark=bookmark, operation="scd2")


def _order_by_time(contract: Contract) -> WindowSpec:
    from pyspark.sql import Window

    return Window.partitionBy(*(quote_identifier(name) for name in contract.key)).orderBy(_AT)
