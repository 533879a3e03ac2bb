"""Metrics of the maintenance service, from the status that it writes; empty until it has run.

They are read when somebody asks for metrics, so that they cost nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from thermocline.maintain.service_status import ServiceStatus, TableStatus

_OF_TABLES: dict[str, tuple[str, Callable[[TableStatus], float]]] = {
    "iceberg_small_files_count": (
        "Data files of a table below three quarters of the target size.",
        lambda table: table.small_files,
    ),
    "iceberg_partition_small_files_count": (
        "Small files in the partition of a table that has the most.",
        lambda table: table.most_small_files,
    ),
    "iceberg_snapshot_count": ("Snapshots of a table.", lambda table: table.snapshots),
    "iceberg_read_amplification": (
        "Cost of a full scan over the least possible cost.",
        lambda table: table.read_amplification,
    ),
    "iceberg_file_group_delta_bytes": (
        "Bytes of delete files in the partition of a table that has the most.",
        lambda table: table.most_delete_bytes,
    ),
}


class MaintenanceCollector(Collector):
    """Reads the status of the maintenance service when metrics are collected."""

    def __init__(self, read_status: Callable[[], ServiceStatus | None]) -> None:
        self._read_status = read_status

    def describe(self) -> list[GaugeMetricFamily]:
        """Return no metrics: the registry must not read a status to learn their names."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all metrics; without a status, only that the service never reported."""
        status = self._read_status()
        for name, (text, value) in _OF_TABLES.items():
            family = GaugeMetricFamily(name, text, labels=["table"])
            for table, found in (status.tables if status else {}).items():
                family.add_metric([table], value(found))
            yield family
        yield from _service_families(status)


def _service_families(status: ServiceStatus | None) -> Iterator[GaugeMetricFamily]:
    last = status.last_success if status else None
    values = (
        ("queue_depth", "Maintenance tasks that are due.", status.queued_tasks if status else 0),
        (
            "backlog_seconds",
            "CPU seconds that the due tasks are expected to take.",
            status.queued_cpu_seconds if status else 0,
        ),
        (
            "report_timestamp_seconds",
            "When the maintenance service reported last; 0: never.",
            status.at.timestamp() if status else 0,
        ),
        (
            "success_timestamp_seconds",
            "When the last complete pass of the maintenance service ended; 0: never.",
            last.timestamp() if last else 0,
        ),
    )
    for name, text, value in values:
        yield GaugeMetricFamily(f"thermocline_maintenance_{name}", text, value=value)
