"""Parts of a target table, partitions or keys, identified by their column values."""

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

MAX_PARTS = 100_000
"""Tables with more partitions are not computed partition by partition."""
OLD = "_tc_old"
"""The column that is true for images of changed rows from before the change."""
CHANGED = "_tc_changed"
"""The schema in which a query reads images of a table's changed rows, with the column OLD."""
EITHER = "_tc_either"
"""The schema in which it reads the current rows and the old images of changed rows."""


@dataclass(frozen=True)
class TouchedParts:
    """The parts of the target that a change can touch, as values of its columns."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[str], values: Iterable[tuple[Any, ...]]) -> TouchedParts:
        """Return the parts, deduplicated and in a stable order."""
        return cls(tuple(columns), tuple(sorted(set(values), key=repr)))

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return each part as column → value."""
        return [dict(zip(self.columns, value, strict=True)) for value in self.values]


def part_columns(model: Model) -> list[str]:
    """Return the output columns that identify parts: those of the partitioning, or the key."""
    contract = model.contract
    if contract.write is WriteMode.PARTITIONS:
        fits = {"identity", "day"}
        if all(field.transform in fits for field in contract.partition):
            return [field.column for field in contract.partition]
        return []
    return list(contract.key) if contract.write is WriteMode.MERGE else []


def find_partitions(lake: Lake, table: str, snapshot: int) -> list[tuple[Any, ...]]:
    """Return the partitions of a table at a snapshot, as values of their columns."""
    from thermocline.lake.overwrite import live_partitions, partition_values

    iceberg = lake.iceberg(table)
    return [partition_values(iceberg, record) for record in live_partitions(iceberg, snapshot)]


def find_partition_blocker(model: Model) -> str | None:
    """Return why a model's partitions cannot be computed one by one; None if they can."""
    if not model.is_sql:
        return "it is a Python model"
    if model.contract.write is not WriteMode.PARTITIONS:
        return f"its contract says write: {model.contract.write}, not partitions"
    if not part_columns(model):
        return "its partitions are cut by more than values and days"
    return find_parts_blocker(model)


def is_event_based(model: Model) -> bool:
    """Return whether a table consists of events, each from one source row."""
    contract = model.contract
    return contract.write in {WriteMode.APPEND, WriteMode.SCD2} or (
        contract.write is WriteMode.MERGE and bool(contract.order_by)
    )


def find_incremental_blocker(model: Model) -> str | None:
    """Return why a SQL model cannot be computed incrementally; None if it can."""
    if is_event_based(model):
        return _find_row_blocker(model)
    if model.contract.write is WriteMode.REPLACE:
        return "its contract says write: replace"
    if not part_columns(model):
        return "its partitions are cut by more than values and days"
    return find_parts_blocker(model)


def _find_row_blocker(model: Model) -> str | None:
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


def find_parts_blocker(model: Model) -> str | None:
    """Return what in a model's query prevents computing only some parts; None if nothing."""
    from thermocline.transform.impact import Unsafe

    try:
        analyze_model(model)
    except Unsafe as unsafe:
        return unsafe.reason
    return None


def analyze_model(model: Model) -> Impact:
    """Analyze how changes of a model's sources reach its parts; raise Unsafe if unknown."""
    from thermocline.transform.impact import Unsafe

    columns = [model.contract.column(name) for name in part_columns(model)]
    target = tuple((column.name, str(column.type)) for column in columns if column is not None)
    days = tuple(name for name, _ in target if is_by_day(model, name))
    sources = tuple((name, tuple(found.items())) for name, found in model.columns.items())
    found = _analyze_cached(model.text, sources, target, days)
    if isinstance(found, str):
        raise Unsafe(found)
    return found


_Pairs = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def _analyze_cached(
    text: str, sources: tuple[tuple[str, _Pairs], ...], target: _Pairs, days: tuple[str, ...]
) -> Impact | str:
    """Return the impact of a query, or why it is unknown; cached, as a run needs it repeatedly."""
    from thermocline.transform import impact

    columns = {name: dict(found) for name, found in sources}
    try:
        return impact.analyze_query(parse_query(text), columns, dict(target), days)
    except impact.Unsafe as unsafe:
        return unsafe.reason


def is_by_day(model: Model, name: str) -> bool:
    """Return whether the table is partitioned by the day of a column."""
    field = next((f for f in model.contract.partition if f.column == name), None)
    return (
        model.contract.write is WriteMode.PARTITIONS
        and field is not None
        and field.transform == "day"
    )


def name_parts(values: pa.ChunkedArray, *, days: bool) -> set[tuple[Any, ...]] | None:
    """Return the parts that values name; None if Spark might represent them differently."""
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


def build_condition(model: Model, touched: TouchedParts) -> Column:
    """Build the Spark condition on a model's output that selects exactly the touched parts."""
    from functools import reduce
    from operator import and_, or_

    from pyspark.sql import functions as F

    if len(touched.columns) == 1 and not is_by_day(model, touched.columns[0]):
        name = touched.columns[0]
        known = [value for (value,) in touched.values if value is not None]
        build_condition = F.col(name).isin(known) if known else F.lit(False)
        return (
            build_condition | F.col(name).isNull()
            if len(known) < len(touched.values)
            else build_condition
        )

    def equal(name: str, value: Any) -> Column:
        if value is None:
            return F.col(name).isNull()
        if is_by_day(model, name):
            following = value + timedelta(days=1)
            return (F.col(name) >= F.lit(value)) & (F.col(name) < F.lit(following))
        return F.col(name) == F.lit(value)

    each = [
        reduce(and_, (equal(*item) for item in zip(touched.columns, value, strict=True)))
        for value in touched.values
    ]
    return reduce(or_, each, F.lit(False))


def build_source_filter(
    frame: DataFrame, name: str, values: Sequence[Any], days: bool
) -> Column | None:
    """Build the Spark condition that a source's column has one of the values or days.

    It compares in the column's own type, because Iceberg skips files only by such comparisons.
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

    spans = [(first, last + timedelta(days=1)) for first, last in merge_days(sorted(values))]
    return reduce(or_, ((column >= at(low)) & (column < at(high)) for low, high in spans))


def merge_days(sorted_days: Sequence[date]) -> list[tuple[date, date]]:
    """Merge consecutive days into ranges of first and last day."""
    ranges: list[tuple[date, date]] = []
    for day in sorted_days:
        if ranges and day - ranges[-1][1] <= timedelta(days=1):
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges
