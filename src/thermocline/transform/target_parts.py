"""Parts of a target, partitions or keys, by the values of the columns that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import WriteMode
from thermocline.transform.models import Model, parse_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from thermocline.lake import Lake
    from thermocline.transform.impact import Impact

MOST_PARTS = 100_000
"""A table of more partitions is not looked at partition by partition."""
OLD = "_tc_old"
"""Names the column that says whether a changed row is the image from before the change."""
CHANGED = "_tc_changed"
"""The schema under which a query reads the images of a table's changed rows, with a column OLD."""
EITHER = "_tc_either"
"""The schema under which it reads the rows of now, and the old images of those that changed."""


@dataclass(frozen=True)
class Touched:
    """The parts of the target that a change can touch: values of the target's columns."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[str], values: Iterable[tuple[Any, ...]]) -> Touched:
        """The same parts in the same order, whoever found them."""
        return cls(tuple(columns), tuple(sorted(set(values), key=repr)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Each part as column → value."""
        return [dict(zip(self.columns, value, strict=True)) for value in self.values]


def touched_columns(model: Model) -> list[str]:
    """The output columns by which touched parts are named: the partition's, or the key's."""
    contract = model.contract
    if contract.write is WriteMode.PARTITIONS:
        fits = {"identity", "day"}
        if all(field.transform in fits for field in contract.partition):
            return [field.column for field in contract.partition]
        return []
    return list(contract.key) if contract.write is WriteMode.MERGE else []


def standing(lake: Lake, table: str, snapshot: int) -> list[tuple[Any, ...]]:
    """The partitions that a table has at a snapshot, by the values of their columns."""
    from thermocline.lake.overwrite import standing_partitions, values_of

    iceberg = lake.iceberg(table)
    return [values_of(iceberg, record) for record in standing_partitions(iceberg, snapshot)]


def unfit(model: Model) -> str | None:
    """Why a model's partitions cannot be computed one by one; None if they can."""
    if not model.is_sql:
        return "it is a Python model"
    if model.contract.write is not WriteMode.PARTITIONS:
        return f"its contract says write: {model.contract.write}, not partitions"
    if not touched_columns(model):
        return "its partitions are cut by more than values and days"
    return not_by_parts(model)


def by_events(model: Model) -> bool:
    """Whether a table is made of the events in its sources' rows, each of which counts once."""
    contract = model.contract
    return contract.write in {WriteMode.APPEND, WriteMode.SCD2} or (
        contract.write is WriteMode.MERGE and bool(contract.order_by)
    )


def not_incremental(model: Model) -> str | None:
    """Why a SQL model's table cannot follow its sources' changes alone; None if it can."""
    if by_events(model):
        return _not_by_rows(model)
    if model.contract.write is WriteMode.REPLACE:
        return "its contract says write: replace"
    if not touched_columns(model):
        return "its partitions are cut by more than values and days"
    return not_by_parts(model)


def _not_by_rows(model: Model) -> str | None:
    from thermocline.transform import impact

    contract = model.contract
    clocks = [
        c.name for c in contract.columns if c.load_time and contract.write is WriteMode.APPEND
    ]
    try:
        impact.require_row_by_row(model.query(), model.columns, clocks)
    except impact.Unsafe as unsafe:
        return unsafe.reason
    return None


def not_by_parts(model: Model) -> str | None:
    """What in a model's query stands against computing only some parts; None if nothing does."""
    from thermocline.transform.impact import Unsafe

    try:
        impact_of(model)
    except Unsafe as unsafe:
        return unsafe.reason
    return None


def impact_of(model: Model) -> Impact:
    """How changes of a model's sources reach the parts of its target; Unsafe if not known."""
    from thermocline.transform.impact import Unsafe

    columns = [model.contract.column(name) for name in touched_columns(model)]
    target = tuple((column.name, str(column.type)) for column in columns if column is not None)
    days = tuple(name for name, _ in target if by_day(model, name))
    sources = tuple((name, tuple(found.items())) for name, found in model.columns.items())
    found = _impact(model.text, sources, target, days)
    if isinstance(found, str):
        raise Unsafe(found)
    return found


_Pairs = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def _impact(
    text: str, sources: tuple[tuple[str, _Pairs], ...], target: _Pairs, days: tuple[str, ...]
) -> Impact | str:
    """The impact of a query, or why it is not known: a run asks more than once."""
    from thermocline.transform import impact

    columns = {name: dict(found) for name, found in sources}
    try:
        return impact.impact_of(parse_query(text), columns, dict(target), days)
    except impact.Unsafe as unsafe:
        return unsafe.reason


def by_day(model: Model, name: str) -> bool:
    """Whether a column names partitions by its day."""
    field = next((f for f in model.contract.partition if f.column == name), None)
    return (
        model.contract.write is WriteMode.PARTITIONS
        and field is not None
        and field.transform == "day"
    )


def named(values: pa.ChunkedArray, *, days: bool) -> set[tuple[Any, ...]] | None:
    """The parts that values name, as Spark would spell them; None where that may differ."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if days:
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            return None
        values = values.cast(pa.date32())
    elif not any(
        fits(kind)
        for fits in (
            pa.types.is_date,
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_large_string,
        )
    ):
        return None
    return {(value,) for value in pc.unique(values).to_pylist()}


def condition(model: Model, touched: Touched) -> Column:
    """The condition on a model's output that selects exactly the touched parts."""
    from functools import reduce
    from operator import and_, or_

    from pyspark.sql import functions as F

    if len(touched.columns) == 1 and not by_day(model, touched.columns[0]):
        name = touched.columns[0]
        known = [value for (value,) in touched.values if value is not None]
        condition = F.col(name).isin(known) if known else F.lit(False)
        return condition | F.col(name).isNull() if len(known) < len(touched.values) else condition

    def equal(name: str, value: Any) -> Column:
        if value is None:
            return F.col(name).isNull()
        if by_day(model, name):
            following = value + timedelta(days=1)
            return (F.col(name) >= F.lit(value)) & (F.col(name) < F.lit(following))
        return F.col(name) == F.lit(value)

    each = [
        reduce(and_, (equal(*item) for item in zip(touched.columns, value, strict=True)))
        for value in touched.values
    ]
    return reduce(or_, each, F.lit(False))


def within(frame: DataFrame, name: str, values: Sequence[Any], days: bool) -> Column | None:
    """The condition that a source's column has one of the values, or lies in one of the days.

    In the column's own type, because Iceberg skips files only by comparisons with it.
    """
    from functools import reduce
    from operator import or_

    from pyspark.sql import functions as F

    type_ = frame.schema[name].dataType.typeName() if name in frame.columns else ""
    if None in values or (days and type_ not in {"date", "timestamp", "timestamp_ntz"}):
        return None
    column = F.col(f"`{name}`")
    if not days:
        return column.isin(list(values))

    def at(day: date) -> Column:
        return F.lit(day).cast(type_)

    spans = [(first, last + timedelta(days=1)) for first, last in runs(sorted(values))]
    return reduce(or_, ((column >= at(low)) & (column < at(high)) for low, high in spans))


def runs(sorted_days: Sequence[date]) -> list[tuple[date, date]]:
    """First and last day of each unbroken row of days."""
    runs: list[tuple[date, date]] = []
    for day in sorted_days:
        if runs and day - runs[-1][1] <= timedelta(days=1):
            runs[-1] = (runs[-1][0], day)
        else:
            runs.append((day, day))
    return runs
