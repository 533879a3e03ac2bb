"""scd2: every version a key ever had, with the time in which it was true.

The history of a key is a function of its events: sorted by the first ordering column, at most one
event an instant (the one that ranks highest), an upsert that repeats the version before it opens
nothing, a delete closes and opens nothing. Table and companion together hold exactly the event of
each instant: versions in the table, deletes and repetitions in the companion. So a batch is
written by taking the events of its keys back out, adding the new ones, and writing the
difference: late rows need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.transform.spark import commits, ordering
from thermocline.transform.spark.conform import shaped
from thermocline.transform.spark.merge import of_these_keys, surveyed
from thermocline.transform.spark.write_errors import explained
from thermocline.transform.tombstones import KIND
from thermocline.transform.write_rules import (
    ACTION,
    DELETED,
    HELD_AS,
    is_empty,
    payload_columns,
    require_history_companion,
    version_action,
    written_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

    from thermocline.contract import Contract
    from thermocline.lake.draft import Draft

_AT = "_tc_at"  # the instant of an event
_WAS_UNTIL = "_tc_was_until"  # the end of the version that is held now
_HELD = "_tc_held"  # how the instant's event is held now, whether or not that one still ranks first
_HELD_UNTIL = "_tc_held_until"
_IS = "_tc_is"  # how it is to be held
_UNTIL = "_tc_until"


@dataclass(frozen=True)
class _Job:
    """One write: what is asked for, and where to."""

    rows: DataFrame
    contract: Contract
    companion: Contract
    draft: Draft
    bookmark: Any
    full: bool


def write(rows: DataFrame, contract: Contract, draft: Draft, *, bookmark: Any, full: bool) -> int:
    """Write rows that are events: the table becomes the canonical history of all events so far.

    Only the batch's keys are read, and only versions that really change are written. Both tables
    must be as the last whole write left them: a half-written draft is dropped, not continued.
    """
    job = _Job(rows, contract, require_history_companion(contract), draft, bookmark, full)
    batch = _batch(rows, contract)
    tables = (contract.table, job.companion.table)
    if full or all(is_empty(draft, table) for table in tables):
        return _commit(job, _canonical(_unheld(batch), contract))
    with commits.evaluated_once(batch) as kept:
        survey = surveyed(kept, contract, contract.order_by[:1])
        known = _resolved(_known(job, kept, survey.rows), contract)
        events = _held(kept.unionByName(known), contract)
        return _commit(job, _canonical(events, contract))


def _batch(rows: DataFrame, contract: Contract) -> DataFrame:
    """The new events, in the columns of an event. What a delete says of its key is dropped."""
    from pyspark.sql import functions as F

    events = shaped(rows, contract, deletes=True)
    if contract.delete_when is not None:
        names = [column.name for column in payload_columns(contract)]
        there = ~F.col(DELETED)
        events = events.withColumns({n: F.when(there, F.col(quote_identifier(n))) for n in names})
    return events.withColumns(
        {
            _AT: F.col(quote_identifier(contract.order_by[0])).cast("timestamp"),
            HELD_AS: F.lit(None).cast("string"),
            _WAS_UNTIL: F.lit(None).cast("timestamp"),
        }
    )


def _known(job: _Job, batch: DataFrame, count: int) -> DataFrame:
    """What the two tables hold of the batch's keys, in the columns of an event."""
    from pyspark.sql import functions as F

    contract, companion, draft = job.contract, job.companion, job.draft
    columns = written_columns(contract)
    version = {
        DELETED: F.lit(False),
        _AT: F.col("_valid_from"),
        HELD_AS: F.lit("version"),
        _WAS_UNTIL: F.col("_valid_to"),
    }
    table = commits.as_of_now(draft, contract.table)
    versions = of_these_keys(table, batch, contract.key, count).withColumns(version)
    stored = {column.name for column in companion.columns}
    absorbed = {c.name: F.lit(None).cast(to_ddl(c.type)) for c in columns if c.name not in stored}
    absorbed |= {
        DELETED: F.col(KIND) == "delete",
        _AT: F.col(quote_identifier(contract.order_by[0])).cast("timestamp"),
        HELD_AS: F.col(KIND),
        _WAS_UNTIL: F.lit(None).cast("timestamp"),
    }
    table = commits.as_of_now(draft, companion.table)
    others = of_these_keys(table, batch, contract.key, count).withColumns(absorbed)
    names = [
        *(quote_identifier(column.name) for column in columns),
        DELETED,
        _AT,
        HELD_AS,
        _WAS_UNTIL,
    ]
    return versions.select(*names).unionByName(others.select(*names))


def _resolved(known: DataFrame, contract: Contract) -> DataFrame:
    """Known events with their payload: a repetition says what the version around it says."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    payload = payload_columns(contract)
    if not payload:
        return known
    whole = F.struct(*(quote_identifier(column.name) for column in payload))
    latest = F.last(F.when(F.col(HELD_AS) == "version", whole), ignorenulls=True)
    around = latest.over(_by_time(contract).rowsBetween(Window.unboundedPreceding, 0))
    repeated = F.col(HELD_AS) == "same"
    said = known.withColumn("_tc_around", around)
    values = {
        column.name: F.when(repeated, F.col("_tc_around").getField(column.name)).otherwise(
            F.col(quote_identifier(column.name))
        )
        for column in payload
    }
    return said.withColumns(values).drop("_tc_around")


def _held(events: DataFrame, contract: Contract) -> DataFrame:
    """Every event with what is held of its instant now, be it this event or another."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    instant = Window.partitionBy(*(quote_identifier(name) for name in contract.key), _AT)
    return events.withColumns(
        {_HELD: F.max(HELD_AS).over(instant), _HELD_UNTIL: F.max(_WAS_UNTIL).over(instant)}
    )


def _unheld(events: DataFrame) -> DataFrame:
    """The same where nothing is held."""
    from pyspark.sql import functions as F

    return events.withColumns({_HELD: F.col(HELD_AS), _HELD_UNTIL: F.col(_WAS_UNTIL)})


def _canonical(events: DataFrame, contract: Contract) -> DataFrame:
    """One event an instant, each marked as version, same or delete, and until when it is true."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [quote_identifier(name) for name in contract.key]
    ranked = Window.partitionBy(*key).orderBy(
        # Of two that say the same the one that is held already: it need not be written.
        F.col(_AT),
        *ordering.ascending(contract, skip=1),
        F.col(HELD_AS).isNotNull(),
    )
    following = events.withColumn("_tc_next", F.lead(_AT).over(ranked))
    winners = following.where(f"_tc_next is null or _tc_next > {_AT}")
    said = F.struct(
        *(F.expr(ordering.comparable(c)) for c in payload_columns(contract)), F.col(DELETED)
    )
    repeats = F.coalesce(F.lag(said).over(_by_time(contract)) == said, F.lit(False))
    kind = F.when(F.col(DELETED), "delete").when(repeats, "same").otherwise("version")
    ends = F.expr(
        f"lead(if({_IS} <> 'same', {_AT}, null), 1) ignore nulls "
        f"over (partition by {', '.join(key)} order by {_AT})"
    )
    return winners.withColumn(_IS, kind).withColumn(_UNTIL, ends)


def _commit(job: _Job, events: DataFrame) -> int:
    """Commit the difference between what is held and what is to be held, companion first."""
    from pyspark.sql import functions as F

    version = f"{_IS} = 'version'"
    on_table = version_action(version, f"{_HELD} = 'version'", f"not ({_UNTIL} <=> {_HELD_UNTIL})")
    beside = version_action(f"not {version}", f"{_HELD} <> 'version'", f"{_IS} <> {_HELD}")
    content = [quote_identifier(column.name) for column in written_columns(job.contract)]
    changed = events.selectExpr(
        *content, _AT, _UNTIL, _IS, f"{on_table} as _tc_on_table", f"{beside} as _tc_beside"
    )
    changed = changed.where("_tc_on_table is not null or _tc_beside is not null")
    with commits.evaluated_once(changed) as changes:
        absorbed = not changes.where("_tc_beside is not null").isEmpty()
        if absorbed or job.full:
            marks = changes.withColumns({KIND: F.col(_IS), ACTION: F.col("_tc_beside")})
            _put(job, marks, job.companion, job.companion.key, None)
        history = {
            "_valid_from": F.col(_AT),
            "_valid_to": F.col(_UNTIL),
            "_is_current": F.col(_UNTIL).isNull(),
            ACTION: F.col("_tc_on_table"),
        }
        key = (*job.contract.key, "_valid_from")
        return _put(job, changes.withColumns(history), job.contract, key, job.bookmark)


def _put(
    job: _Job, changes: DataFrame, contract: Contract, key: Sequence[str], bookmark: Any
) -> int:
    """Commit one table's part of the changes."""
    from pyspark.sql import functions as F

    columns = contract.table_columns
    present = {name.lower() for name in changes.columns}
    absent = [column for column in columns if column.name.lower() not in present]
    part = changes.where(f"{ACTION} is not null").withColumns(
        {column.name: F.lit(None).cast(to_ddl(column.type)) for column in absent}
    )

    def commit(target: str) -> None:
        with explained(job.rows, job.contract):
            if job.full:
                commits.replace(part.select(*(quote_identifier(c.name) for c in columns)), target)
            else:
                commits.change(part, target, on=key, columns=[c.name for c in columns])

    return job.draft.commit(contract.table, commit, bookmark=bookmark, operation="scd2")


def _by_time(contract: Contract) -> WindowSpec:
    from pyspark.sql import Window

    return Window.partitionBy(*(quote_identifier(name) for name in contract.key)).orderBy(_AT)
