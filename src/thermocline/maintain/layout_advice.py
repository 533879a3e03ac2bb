"""Advice on a table's contract, with its numbers: nothing here is applied without the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.lake.clustering import CLUSTER_PROPERTY, parse_cluster
from thermocline.lake.row_counts import count_rows
from thermocline.maintain.maintenance_policy import OPEN_COST_BYTES, MaintenancePolicy

if TYPE_CHECKING:
    from thermocline.lake.metadata import Snapshot, TableState
    from thermocline.lake.read_log import ReadRate
    from thermocline.maintain.table_health import TableHealth

UPDATE_DAYS = 7
"""Updates are rates over so many days, or over the snapshots that are kept if these are fewer."""
MIN_SHARE, MIN_CLUSTER_SHARE = 0.5, 0.25
"""The share of scans that filter by a column from which on an order by it is advised."""
MIN_COMMITS = 3
MIN_GAIN = 2.0
MIN_SAVED_BYTES = 100 << 20
"""Bytes a day below which no change of the update mode is advised."""
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class UpdateRates:
    """Commits per day that change or remove rows, and what they write."""

    commits: float = 0.0
    rows: float = 0.0
    rewritten_bytes: float = 0.0
    """Bytes of data files that they replaced."""
    delete_files: float = 0.0
    observed: int = 0
    """The number of such commits that the rates come from."""


@dataclass(frozen=True)
class UpdateCosts:
    """What each update mode costs per day in bytes, one of them estimated, and the mode in use."""

    mode: str
    copy_on_write: float
    merge_on_read: float


def measure_updates(state: TableState, now_ms: int) -> UpdateRates:
    """Return the rates of updates to main, from the summaries of its snapshots."""
    since = now_ms - UPDATE_DAYS * _DAY_MS
    recent = [each for each in state.ancestry(state.head()) if each.timestamp_ms >= since]
    if not recent:
        return UpdateRates()
    days = max(1.0, (now_ms - recent[-1].timestamp_ms) / _DAY_MS)
    updates = [each for each in recent if _is_update(each)]
    counts = [count_rows(each) for each in updates]
    return UpdateRates(
        commits=len(updates) / days,
        rows=sum(each.changed + each.removed for each in counts) / days,
        rewritten_bytes=sum(each.count("removed-files-size") for each in updates) / days,
        delete_files=sum(each.count("added-delete-files") for each in updates) / days,
        observed=len(updates),
    )


def _is_update(snapshot: Snapshot) -> bool:
    changes = ("deleted-records", "added-position-deletes", "added-equality-deletes")
    return snapshot.operation != "replace" and any(map(snapshot.count, changes))


def compare_update_modes(
    state: TableState,
    health: TableHealth,
    updates: UpdateRates,
    rate: ReadRate,
    policy: MaintenancePolicy,
) -> UpdateCosts:
    """Return the bytes per day that updates cost, with each way to apply them.

    Copy-on-write rewrites the files with changed rows. Merge-on-read makes each scan open delete
    files, until maintenance applies them.
    """
    mode = state.properties.get("write.merge.mode", "copy-on-write")
    size = health.files.bytes / max(1, health.files.files)
    if mode == "merge-on-read":
        per_commit = updates.rows / max(updates.commits, 1e-9)
        rewritten = updates.commits * min(health.files.bytes, per_commit * size)
        opened = float(health.files.delete_files)
    else:
        rewritten = updates.rewritten_bytes
        opened = min(updates.commits, float(policy.max_delete_files))
    return UpdateCosts(mode, rewritten, rate.scans * opened * OPEN_COST_BYTES)


def advise_updates(updates: UpdateRates, costs: UpdateCosts, rate: ReadRate) -> str | None:
    """Return the advice to use the other update mode; None unless it is clearly cheaper."""
    now, other, name = costs.copy_on_write, costs.merge_on_read, "merge-on-read"
    if costs.mode == "merge-on-read":
        now, other, name = costs.merge_on_read, costs.copy_on_write, "copy-on-write"
    is_clear = now >= MIN_GAIN * other and now - other >= MIN_SAVED_BYTES
    if updates.observed < MIN_COMMITS or not is_clear:
        return None
    return (
        f"updates: {name} in the contract would cost {_megabytes(other)} instead of"
        f" {_megabytes(now)} a day, at {updates.commits:,.1f} updating commits and"
        f" {rate.scans:,.1f} scans a day"
    )


def advise_order(
    state: TableState, health: TableHealth, rate: ReadRate, policy: MaintenancePolicy
) -> str | None:
    """Return the advice to order a table by what its scans filter by; None if it is, or is small.

    Columns of the partitioning are left out: they prune files already.
    """
    if rate.scans < 1 or health.files.bytes <= policy.target_bytes:
        return None
    pruning = _source_names(state, state.partition_fields)
    shares = {
        name: count / rate.scans
        for name, count in sorted(rate.columns.items(), key=lambda item: (-item[1], item[0]))
        if name not in pruning
    }
    wanted = [name for name, share in shares.items() if share >= MIN_CLUSTER_SHARE][:4]
    current = parse_cluster(state.properties.get(CLUSTER_PROPERTY, ""))
    current = current or tuple(_source_names(state, state.sort_fields)[:1])
    if not wanted or set(wanted) <= set(current):
        return None
    if len(wanted) == 1 and shares[wanted[0]] < MIN_SHARE:
        return None
    declared = f"[{wanted[0]}]" if len(wanted) == 1 else f'"zorder({", ".join(wanted)})"'
    counted = ", ".join(f"{name} in {shares[name]:.0%}" for name in wanted)
    ordered = f"ordered by {', '.join(current)}" if current else "not ordered"
    return (
        f"sortBy: {declared} in the contract: of {rate.scans:,.0f} scans a day, {counted} filter by"
        f" it; the files are {ordered}"
    )


def _source_names(state: TableState, fields: list[Mapping[str, Any]]) -> list[str]:
    names = {field["id"]: field["name"] for field in state.schema["fields"]}
    return [names[field["source-id"]] for field in fields if field["source-id"] in names]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
