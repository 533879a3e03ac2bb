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
from thermocline.check.compiler import find_references
from thermocline.check.rules import list_rules
from thermocline.errors import CheckFailed, EngineUnavailable
from thermocline.lake import bookmark as bookmarks
from thermocline.transform.target_parts import find_partition_blocker

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
    """Return one asset per model, with its upstream tables and its contract's rules as checks.

    A model whose contract partitions by hour, day or month gets these partitions, starting at the
    date `since`. Steps run in one process, so that they share one Spark session.
    """
    lakehouse = api.open(project, profile)
    models = lakehouse.models
    outside = {source for model in models.values() for source in model.sources} - set(models)
    parents = _find_parents(models)
    return dg.Definitions(
        assets=[
            *(
                dg.AssetSpec(asset_key(t), description=_table_description(lakehouse, t))
                for t in sorted(outside)
            ),
            *(_build_asset(lakehouse, model, parents[t], since) for t, model in models.items()),
        ],
        executor=dg.in_process_executor,
    )


def asset_key(table: str) -> dg.AssetKey:
    """Return the asset key of a table: its layer, then its name."""
    return dg.AssetKey(table.split("."))


def partitions_definition(
    contract: Contract, since: str = SINCE
) -> dg.TimeWindowPartitionsDefinition | None:
    """Return the time windows that a contract's table is partitioned by, if any."""
    for field in contract.partition:
        column = contract.column(field.column)
        is_day = field.transform == "identity" and column and str(column.type) == "date"
        window = "day" if is_day else field.transform
        if window in _WINDOWS:
            start = f"{since}-00:00" if window == "hour" else since
            return _WINDOWS[window](start, fmt=_FORMATS[window], timezone="UTC")
    return None


def _table_description(lakehouse: Lakehouse, table: str) -> str | None:
    return lakehouse.contracts[table].description or None if table in lakehouse.contracts else None


def _find_parents(models: Mapping[str, Model]) -> dict[str, set[str]]:
    """Return what each table depends on: what its model reads, and what its rules refer to.

    Two tables may refer to each other. Then the one that is listed first is built first.
    """
    parents = {table: set(model.sources) for table, model in models.items()}

    def find_ancestors(table: str) -> set[str]:
        found = set(parents.get(table, ()))
        return found.union(*(find_ancestors(each) for each in found))

    for table, model in models.items():
        for other in set(find_references(model.contract)) & set(models):
            if other != table and table not in find_ancestors(other):
                parents[table].add(other)
    return parents


def _build_asset(
    lakehouse: Lakehouse, model: Model, parents: Collection[str], since: str
) -> dg.AssetsDefinition:
    contract = model.contract
    checks = check_names(list_rules(contract))

    # Dagster compares the annotation of `context` with its classes; ours are strings.
    def compute(context) -> Iterator[Any]:  # type: ignore[no-untyped-def]
        try:
            if context.has_partition_key:
                compute_window(lakehouse, model.table, context.partition_time_window)
            else:
                lakehouse.run([model.table])
        except CheckFailed as failed:
            (report,) = failed.details["reports"]
            yield from _check_results(model.table, checks, report["outcomes"])
            raise dg.Failure(str(failed), allow_retries=False) from failed
        (found,) = lakehouse.check([model.table])
        yield from _check_results(model.table, checks, found.as_dict()["outcomes"])
        yield _materialize_result(lakehouse, model.table)

    asset: dg.AssetsDefinition = dg.asset(
        key=asset_key(model.table),
        deps=[asset_key(parent) for parent in sorted(parents)],
        group_name=contract.layer,
        description=contract.description or None,
        tags=dict.fromkeys(model.tags, ""),
        kinds={"iceberg", "spark"},
        partitions_def=partitions_definition(contract, since),
        check_specs=[dg.AssetCheckSpec(name, asset=asset_key(model.table)) for name in checks],
    )(compute)
    return asset


def compute_window(lakehouse: Lakehouse, table: str, window: tuple[datetime, datetime]) -> None:
    """Compute the rows of one time window.

    A run updates everything stale, including the window. When nothing was stale, the caller wants a
    recomputation: a backfill recomputes the window, if the model can be computed by partition.
    """
    if not lakehouse.run([table]).steps and find_partition_blocker(lakehouse.models[table]) is None:
        first, end = window
        last = max(first, end - timedelta(days=1))
        lakehouse.backfill(table, first.date().isoformat(), last.date().isoformat())


def check_names(found: Sequence[Rule]) -> list[str]:
    """Return a unique name that Dagster accepts for each rule."""
    names: list[str] = []
    for rule in found:
        base = re.sub(r"\W+", "_", rule.title, flags=re.ASCII).strip("_") or rule.kind
        duplicates = sum(1 for name in names if name.partition("__")[0] == base)
        names.append(f"{base}__{duplicates + 1}" if duplicates else base)
    return names


def _check_results(
    table: str, checks: Sequence[str], outcomes: Sequence[Mapping[str, Any]]
) -> Iterator[dg.AssetCheckResult]:
    for name, outcome in zip(checks, outcomes, strict=True):
        severity = dg.AssetCheckSeverity
        yield dg.AssetCheckResult(
            passed=outcome["holds"],
            asset_key=asset_key(table),
            check_name=name,
            severity=severity.ERROR if outcome["severity"] == "error" else severity.WARN,
            description=outcome["message"],
        )


def _materialize_result(lakehouse: Lakehouse, table: str) -> dg.MaterializeResult:
    """Return the current state of the table; its snapshot is the asset's data version."""
    state = lakehouse.lake.state(table)
    head = state.head()
    assert head is not None, f"{table} was just published"
    snapshot = state.snapshot(head)
    return dg.MaterializeResult(
        asset_key=asset_key(table),
        data_version=dg.DataVersion(str(head)),
        metadata={
            "snapshot": str(head),
            "run": snapshot.summary.get(bookmarks.RUN, ""),
            "dagster/row_count": snapshot.count("total-records")
            - snapshot.count("total-position-deletes"),
            "bytes": snapshot.count("total-files-size"),
        },
    )
