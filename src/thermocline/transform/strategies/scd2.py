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

from thermocline.engine.spark_types import ddl, quoted
from thermocline.errors import ContractError
from thermocline.transform.strategies import applying, ordering, tombstones
from thermocline.transform.strategies.applying import ACTION
from thermocline.transform.strategies.failures import explained
from thermocline.transform.strategies.merge import of_these_keys, surveyed
from thermocline.transform.strategies.shaping import DELETED, shaped, written_columns
from thermocline.transform.strategies.tombstones import KIND

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

    from thermocline.contract import Contract
    from thermocline.contract.definition import Column
    from thermocline.lake.draft import Draft

_AT = "_tc_at"  # the instant of an event
_WAS = "_tc_was"  # how it is held now: version, same or delete; null for a new event
_WAS_UNTIL = "_tc_was_until"  # the end of the version that is held now
_HELD = "_tc_held"  # how the instant's event is held now, whether or not that one still ranks first
_HELD_UNTIL = "_tc_held_until"
_IS = "_tc_is"  # how it is to be held
_UNTIL = "_tc_until"
_INSTANTS = ("date", "timestamp", "timestamptz")


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
    job = _Job(rows, contract, companion_of(contract), draft, bookmark, full)
    batch = _batch(rows, contract)
    tables = (contract.table, job.companion.table)
    if full or all(applying.holds_nothing(draft, table) for table in tables):
        return _commit(job, _canonical(_unheld(batch), contract))
    with applying.evaluated_once(batch) as kept:
        survey = surveyed(kept, contract, contract.order_by[:1])
        known = _resolved(_known(job, kept, survey.rows), contract)
        events = _held(kept.unionByName(known), contract)
        return _commit(job, _canonical(events, contract))


def _batch(rows: DataFrame, contract: Contract) -> DataFrame:
    """The new events, in the columns of an event. What a delete says of its key is dropped."""
    from pyspark.sql import functions as F

    events = shaped(rows, contract, deletes=True)
    if contract.delete_when is not None:
        names = [column.name for column in payload_of(contract)]
        there = ~F.col(DELETED)
        events = events.withColumns({n: F.when(there, F.col(quoted(n))) for n in names})
    return events.withColumns(
        {
            _AT: F.col(quoted(contract.order_by[0])).cast("timestamp"),
            _WAS: F.lit(None).cast("string"),
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
        _WAS: F.lit("version"),
        _WAS_UNTIL: F.col("_valid_to"),
    }
    table = applying.as_of_now(draft, contract.table)
    versions = of_these_keys(table, batch, contract.key, count).withColumns(version)
    stored = {column.name for column in companion.columns}
    absorbed = {c.name: F.lit(None).cast(ddl(c.type)) for c in columns if c.name not in stored}
    absorbed |= {
        DELETED: F.col(KIND) == "delete",
        _AT: F.col(quoted(contract.order_by[0])).cast("timestamp"),
        _WAS: F.col(KIND),
        _WAS_UNTIL: F.lit(None).cast("timestamp"),
    }
    table = applying.as_of_now(draft, companion.table)
    others = of_these_keys(table, batch, contract.key, count).withColumns(absorbed)
    names = [*(quoted(column.name) for column in columns), DELETED, _AT, _WAS, _WAS_UNTIL]
    return versions.select(*names).unionByName(others.select(*names))


def _resolved(known: DataFrame, contract: Contract) -> DataFrame:
    """Known events with their payload: a repetition says what the version around it says."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    payload = payload_of(contract)
    if not payload:
        return known
    whole = F.struct(*(quoted(column.name) for column in payload))
    latest = F.last(F.when(F.col(_WAS) == "version", whole), ignorenulls=True)
    around = latest.over(_by_time(contract).rowsBetween(Window.unboundedPreceding, 0))
    repeated = F.col(_WAS) == "same"
    said = known.withColumn("_tc_around", around)
    values = {
        column.name: F.when(repeated, F.col("_tc_around").getField(column.name)).otherwise(
            F.col(quoted(column.name))
        )
        for column in payload
    }
    return said.withColumns(values).drop("_tc_around")


def _held(events: DataFrame, contract: Contract) -> DataFrame:
    """Every event with what is held of its instant now, be it this event or another."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    instant = Window.partitionBy(*(quoted(name) for name in contract.key), _AT)
    return events.withColumns(
        {_HELD: F.max(_WAS).over(instant), _HELD_UNTIL: F.max(_WAS_UNTIL).over(instant)}
    )


def _unheld(events: DataFrame) -> DataFrame:
    """The same where nothing is held."""
    from pyspark.sql import functions as F

    return events.withColumns({_HELD: F.col(_WAS), _HELD_UNTIL: F.col(_WAS_UNTIL)})


def _canonical(events: DataFrame, contract: Contract) -> DataFrame:
    """One event an instant, each marked as version, same or delete, and until when it is true."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [quoted(name) for name in contract.key]
    ranked = Window.partitionBy(*key).orderBy(
        # Of two that say the same the one that is held already: it need not be written.
        F.col(_AT),
        *ordering.ascending(contract, skip=1),
        F.col(_WAS).isNotNull(),
    )
    following = events.withColumn("_tc_next", F.lead(_AT).over(ranked))
    winners = following.where(f"_tc_next is null or _tc_next > {_AT}")
    said = F.struct(*(F.expr(ordering.comparable(c)) for c in payload_of(contract)), F.col(DELETED))
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
    on_table = _action(version, f"{_HELD} = 'version'", f"not ({_UNTIL} <=> {_HELD_UNTIL})")
    beside = _action(f"not {version}", f"{_HELD} <> 'version'", f"{_IS} <> {_HELD}")
    content = [quoted(column.name) for column in written_columns(job.contract)]
    changed = events.selectExpr(
        *content, _AT, _UNTIL, _IS, f"{on_table} as _tc_on_table", f"{beside} as _tc_beside"
    )
    changed = changed.where("_tc_on_table is not null or _tc_beside is not null")
    with applying.evaluated_once(changed) as changes:
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


def _action(wanted: str, held: str, differs: str) -> str:
    """SQL for what one of the two tables has to do about an instant, null for nothing.

    An event that is held already and still ranks first is written only where it `differs`; a new
    one that took the instant over is written in any case.
    """
    held = f"coalesce({held}, false)"
    return (
        f"case when {wanted} and not {held} then 'insert' "
        f"when not {wanted} and {held} then 'delete' "
        f"when {wanted} and {held} and ({_WAS} is null or {differs}) then 'update' end"
    )


def _put(
    job: _Job, changes: DataFrame, contract: Contract, key: Sequence[str], bookmark: Any
) -> int:
    """Commit one table's part of the changes."""
    from pyspark.sql import functions as F

    columns = contract.table_columns
    present = {name.lower() for name in changes.columns}
    absent = [column for column in columns if column.name.lower() not in present]
    part = changes.where(f"{ACTION} is not null").withColumns(
        {column.name: F.lit(None).cast(ddl(column.type)) for column in absent}
    )

    def commit(target: str) -> None:
        with explained(job.rows, job.contract):
            if job.full:
                applying.replace(part.select(*(quoted(c.name) for c in columns)), target)
            else:
                applying.change(part, target, on=key, columns=[c.name for c in columns])

    return job.draft.commit(contract.table, commit, bookmark=bookmark, operation="scd2")


def companion_of(contract: Contract) -> Contract:
    companion = tombstones.contract_for(contract)
    instant = contract.column(contract.order_by[0]) if contract.order_by else None
    if companion is None or instant is None or str(instant.type) not in _INSTANTS:
        raise ContractError(
            [f"{contract.table}: scd2 needs orderBy to begin with a date or timestamp column."],
            "Name the column that says since when a row is true.",
        )
    return companion


def payload_of(contract: Contract) -> list[Column]:
    """What a version says of its key, apart from when."""
    return [
        column
        for column in ordering.content(contract)
        if column.name not in (*contract.key, *contract.order_by)
    ]


def _by_time(contract: Contract) -> WindowSpec:
    from pyspark.sql import Window

    return Window.partitionBy(*(quoted(name) for name in contract.key)).orderBy(_AT)
