"""A project's models as Dagster assets.

definitions.py of a Dagster code location:

    from thermocline.dagster import definitions

    defs = definitions("shop")
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from thermocline import api
from thermocline.check.compile import references
from thermocline.check.rules import rules
from thermocline.errors import CheckFailed, EngineUnavailable
from thermocline.lake import bookmark as bookmarks
from thermocline.transform.parts import unfit

if TYPE_CHECKING:
    from datetime import datetime

    from thermocline.api import Lakehouse
    from thermocline.contract import Contract, Rule
    from thermocline.transform.models import Model

try:
    import dagster as dg
except ImportError as error:
    raise EngineUnavailable(
        "Dagster is not installed.", "Install it: pip install 'thermocline[dagster]'."
    ) from error

SINCE = "2020-01-01"
_WINDOWS: Mapping[str, Callable[..., Any]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}
_FORMATS = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m-%d"}


def definitions(
    project: str | os.PathLike[str] = ".", profile: str | None = None, *, since: str = SINCE
) -> dg.Definitions:
    """One asset a model, after what it reads or refers to, with the contract's rules as checks.

    A model whose contract partitions by hour, day or month has these partitions, from the date
    `since` on. Steps run in one process, so that they share one Spark session.
    """
    house = api.open(project, profile)
    models = house.models
    outside = {source for model in models.values() for source in model.sources} - set(models)
    parents = _parents(models)
    return dg.Definitions(
        assets=[
            *(dg.AssetSpec(key(t), description=_described(house, t)) for t in sorted(outside)),
            *(_asset(house, model, parents[t], since) for t, model in models.items()),
        ],
        executor=dg.in_process_executor,
    )


def key(table: str) -> dg.AssetKey:
    """The asset of a table: its layer, then its name."""
    return dg.AssetKey(table.split("."))


def partitions(contract: Contract, since: str = SINCE) -> dg.TimeWindowPartitionsDefinition | None:
    """The windows of time that a contract's table is partitioned by, if it is by such."""
    for field in contract.partition:
        column = contract.column(field.column)
        is_day = field.transform == "identity" and column and str(column.type) == "date"
        window = "day" if is_day else field.transform
        if window in _WINDOWS:
            start = f"{since}-00:00" if window == "hour" else since
            return _WINDOWS[window](start, fmt=_FORMATS[window], timezone="UTC")
    return None


def _described(house: Lakehouse, table: str) -> str | None:
    return house.contracts[table].description or None if table in house.contracts else None


def _parents(models: Mapping[str, Model]) -> dict[str, set[str]]:
    """What must be there before a table: what its model reads, and what its rules refer to.

    Two tables may refer to each other. Then the one that was named first goes first.
    """
    parents = {table: set(model.sources) for table, model in models.items()}

    def above(table: str) -> set[str]:
        found = set(parents.get(table, ()))
        return found.union(*(above(each) for each in found))

    for table, model in models.items():
        for other in set(references(model.contract)) & set(models):
            if other != table and table not in above(other):
                parents[table].add(other)
    return parents


def _asset(
    house: Lakehouse, model: Model, parents: Collection[str], since: str
) -> dg.AssetsDefinition:
    contract = model.contract
    checks = check_names(rules(contract))

    # Dagster compares the annotation of `context` with its classes, and ours are texts.
    def compute(context) -> Iterator[Any]:  # type: ignore[no-untyped-def]
        try:
            if context.has_partition_key:
                compute_window(house, model.table, context.partition_time_window)
            else:
                house.run([model.table])
        except CheckFailed as failed:
            (report,) = failed.details["reports"]
            yield from _verdicts(model.table, checks, report["outcomes"])
            raise dg.Failure(str(failed), allow_retries=False) from failed
        (found,) = house.check([model.table])
        yield from _verdicts(model.table, checks, found.as_dict()["outcomes"])
        yield _materialised(house, model.table)

    asset: dg.AssetsDefinition = dg.asset(
        key=key(model.table),
        deps=[key(parent) for parent in sorted(parents)],
        group_name=contract.layer,
        description=contract.description or None,
        tags=dict.fromkeys(model.tags, ""),
        kinds={"iceberg", "spark"},
        partitions_def=partitions(contract, since),
        check_specs=[dg.AssetCheckSpec(name, asset=key(model.table)) for name in checks],
    )(compute)
    return asset


def compute_window(house: Lakehouse, table: str, window: tuple[datetime, datetime]) -> None:
    """Have the rows of one window of time computed: the one place that knows how.

    A run brings all that is stale up to date, and the window with it. Where nothing was stale, the
    window is asked for once more: it is computed anew, if that can be done for it alone.
    """
    if not house.run([table]).steps and unfit(house.models[table]) is None:
        first, end = window
        last = max(first, end - timedelta(days=1))
        house.backfill(table, first.date().isoformat(), last.date().isoformat())


def check_names(found: Sequence[Rule]) -> list[str]:
    """A name that Dagster takes for each rule, no two alike."""
    names: list[str] = []
    for rule in found:
        plain = re.sub(r"\W+", "_", rule.title, flags=re.ASCII).strip("_") or rule.kind
        alike = sum(1 for name in names if name.partition("__")[0] == plain)
        names.append(f"{plain}__{alike + 1}" if alike else plain)
    return names


def _verdicts(
    table: str, checks: Sequence[str], outcomes: Sequence[Mapping[str, Any]]
) -> Iterator[dg.AssetCheckResult]:
    for name, outcome in zip(checks, outcomes, strict=True):
        severity = dg.AssetCheckSeverity
        yield dg.AssetCheckResult(
            passed=outcome["holds"],
            asset_key=key(table),
            check_name=name,
            severity=severity.ERROR if outcome["severity"] == "error" else severity.WARN,
            description=outcome["message"],
        )


def _materialised(house: Lakehouse, table: str) -> dg.MaterializeResult:
    """The table as it is now: its snapshot is the version of the asset's data."""
    state = house.lake.state(table)
    head = state.head()
    assert head is not None, f"{table} was just published"
    snapshot = state.snapshot(head)
    return dg.MaterializeResult(
        asset_key=key(table),
        data_version=dg.DataVersion(str(head)),
        metadata={
            "snapshot": str(head),
            "run": snapshot.summary.get(bookmarks.RUN, ""),
            "dagster/row_count": snapshot.count("total-records")
            - snapshot.count("total-position-deletes"),
            "bytes": snapshot.count("total-files-size"),
        },
    )
