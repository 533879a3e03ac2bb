"""Prometheus metrics: queries by engine, freshness of hot copies, state of tables.

All names are in a registry of our own and exist from the start, so that rules and panels work
before the first query. Label values are engines, nodes and tables of the lake, never input of a
caller.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from thermocline.maintain.service_status import ServiceStatus
from thermocline.serve.file_sums import SMALL_FILE
from thermocline.serve.http.maintenance_metrics import MaintenanceCollector
from thermocline.serve.values import LakeState, TableHead

ENGINES = ("hot", "cache", "direct", "trino", "spark", "none")
"""`none` stands for queries that reached no engine."""

OUTCOMES = ("answered", "fell_back", "refused", "failed", "late", "left")
"""fell_back: another engine than the first one answered; left: the caller disconnected.

A query without an answer counts once under `none`, and as failed for each engine that was tried: so
`none` measures the service, the others measure the engines.
"""

COMPACTION_THRESHOLD = 20
"""Tables with more small files than this need compaction."""

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS = (
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.012,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)
_TABLE = re.compile(rb'\{table="((?:[^"\\]|\\.)*)"\}')
_VERSION = re.compile(r"(?:^|/)v?([0-9]{1,15})(?:-[^/]*)?\.(?:gz\.)?metadata\.json(?:\.gz)?$")


class Metrics:
    """The metrics of one server."""

    def __init__(
        self,
        mismatches: Callable[[], int] = lambda: 0,
        maintenance: Callable[[], ServiceStatus | None] = lambda: None,
    ) -> None:
        """`mismatches` returns how many hot answers were found wrong so far.

        `maintenance` returns what the maintenance service reported last; None: nothing yet.
        """
        self._count_mismatches = mismatches
        self._reported_mismatches = 0
        self.registry = registry = CollectorRegistry()
        registry.register(MaintenanceCollector(maintenance))
        self._latency = Histogram(
            "shadow_warehouse_query_latency_seconds",
            "Latency of answered queries, by the engine that answered.",
            ["engine"], buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._queries = Counter(
            "shadow_warehouse_queries_total",
            "Queries by engine and outcome; none: no engine.",
            ["engine", "outcome"], registry=registry,
        )  # fmt: skip
        self._cache_hits = Counter(
            "thermocline_cache_hits_total", "Answers from the result cache.",
            registry=registry,
        )  # fmt: skip
        self._overdue = Counter(
            "thermocline_overdue_total",
            "Stale answers, given because a newer one was not available in time.",
            registry=registry,
        )  # fmt: skip
        self._mismatches = Counter(
            "thermocline_mismatch_total", "Hot answers that differed from the lake when verified.",
            registry=registry,
        )  # fmt: skip
        self._queue = Gauge(
            "thermocline_queue_depth",
            f"Running queries; tables with more than {COMPACTION_THRESHOLD} small files, "
            "which need compaction.",
            ["queue"], registry=registry,
        )  # fmt: skip
        self._memory = Gauge(
            "thermocline_node_memory_bytes", "Resident memory of a hot node.",
            ["node"], registry=registry,
        )  # fmt: skip
        self._versions = Gauge(
            "iceberg_metadata_version", "The version of a table's metadata.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._small_files = Gauge(
            "s3_small_file_count", f"Data files of a table under {SMALL_FILE:,} bytes.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._lag = Gauge(
            "thermocline_refresh_lag_seconds",
            "How long the newest commit of a hot table waits, or waited, for a node.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._lags = RefreshLags()
        self._heads: Mapping[str, TableHead] = {}
        self._due: set[str] = set()
        """Tables that need compaction."""
        self._nodes: set[str] = set()
        self._scrape = threading.Lock()
        self._create_series()

    def _create_series(self) -> None:
        """Create every series with known labels: a rate needs a first value."""
        self._parse_seconds = {engine: self._latency.labels(engine) for engine in ENGINES}
        self._counts = {
            (engine, outcome): self._queries.labels(engine, outcome)
            for engine in ENGINES
            for outcome in OUTCOMES
        }
        self._running = self._queue.labels("queries")
        self._compaction = self._queue.labels("compaction")

    def record_query(self, engine: str, outcome: str, seconds: float) -> None:
        """Record the end of a query."""
        engine = engine if engine in ENGINES else "none"
        self._counts[engine, outcome].inc()
        if outcome in ("answered", "fell_back"):
            self._parse_seconds[engine].observe(seconds)
            if engine == "cache":
                self._cache_hits.inc()

    def record_overdue(self) -> None:
        """Record an overdue answer."""
        self._overdue.inc()

    def record_engine_failure(self, engine: str) -> None:
        """Record that an engine failed; another may have answered."""
        self._counts[engine if engine in ENGINES else "none", "failed"].inc()

    def set_running(self, count: int) -> None:
        """Set the number of running queries."""
        self._running.set(count)

    def update_state(self, lake_state: LakeState) -> None:
        """Update the metrics of tables. The cost follows what changed since the last call."""
        for table, seconds in self._lags.update(lake_state).items():
            self._lag.labels(table).set(seconds)
        before, heads = self._heads, lake_state.table_heads
        if heads is before:
            return
        self._heads = heads
        for table, head in heads.items():
            if before.get(table) is head:
                continue
            small = head.files.total.small
            (self._due.add if small > COMPACTION_THRESHOLD else self._due.discard)(table)
            self._small_files.labels(table).set(small)
            self._versions.labels(table).set(_version(head))
        for gone in before.keys() - heads.keys():
            self._due.discard(gone)
            for gauge in (self._small_files, self._versions, self._lag):
                _remove_series(gauge, gone)
        self._compaction.set(len(self._due))

    def set_node_memory(self, memory: Mapping[str, int]) -> None:
        """Set the resident memory of each node."""
        for name, size in memory.items():
            self._memory.labels(name).set(size)
        for gone in self._nodes - memory.keys():
            _remove_series(self._memory, gone)
        self._nodes = set(memory)

    def exposition(self, tables: Collection[str] | None = None) -> bytes:
        """Return all metrics in Prometheus' text format, or only those of `tables`."""
        with self._scrape:
            total = self._count_mismatches()
            self._mismatches.inc(max(0, total - self._reported_mismatches))
            self._reported_mismatches = max(total, self._reported_mismatches)
        text = generate_latest(self.registry)
        if tables is None or self._heads.keys() <= set(tables):
            return text
        shown = {_label(table) for table in tables}
        return b"".join(
            line
            for line in text.splitlines(keepends=True)
            if b'table="' not in line or ((of := _TABLE.search(line)) and of[1] in shown)
        )


def _label(text: str) -> bytes:
    """Return a label value, escaped for the text format."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").encode()


class RefreshLags:
    """How long each table's newest commit waits, or waited, for a node."""

    def __init__(self) -> None:
        self._heads: Mapping[str, TableHead] = {}
        self._pending: set[str] = set()
        """Hot tables whose newest commit has not reached a node, as far as is known."""
        self._waiting_since: dict[str, tuple[int, datetime]] = {}
        self._arrived: dict[str, tuple[int, float]] = {}

    def update(self, lake_state: LakeState) -> dict[str, float]:
        """Return the lag of every hot table whose lag may have changed."""
        before, heads = self._heads, lake_state.table_heads
        if heads is not before:
            self._heads = heads
            self._pending |= {
                table for table, head in heads.items() if before.get(table) is not head
            }
            self._pending |= before.keys() - heads.keys()
        found = {}
        for table in sorted(self._pending):
            head = heads.get(table)
            if head is None or head.hot is None:
                for known in (self._waiting_since, self._arrived):
                    known.pop(table, None)
                self._pending.discard(table)
                continue
            found[table] = self._of(head, lake_state)
            if self._arrived.get(table, (None,))[0] == head.snapshot:
                self._pending.discard(table)
        return found

    def _of(self, head: TableHead, lake_state: LakeState) -> float:
        arrived = self._arrived.get(head.table)
        if arrived is not None and arrived[0] == head.snapshot:
            return arrived[1]
        first = self._waiting_since.get(head.table)
        if first is None:
            # What was committed before the first poll has not waited for this server.
            first = (head.snapshot, max(head.committed_at, lake_state.polled_at))
        elif first[0] != head.snapshot:
            first = (head.snapshot, head.committed_at)
        self._waiting_since[head.table] = first
        held = any(
            (copy := copies.get(head.table)) is not None and copy.snapshot == head.snapshot
            for copies in lake_state.hot_copies.values()
        )
        until = lake_state.polled_at if held else max(lake_state.polled_at, datetime.now(UTC))
        lag = max(0.0, (until - first[1]).total_seconds())
        if held:
            self._arrived[head.table] = (head.snapshot, lag)
        return lag


def _version(head: TableHead) -> int:
    """Return 12 for 00012-….metadata.json and v12.metadata.json, 0 for other names."""
    match = _VERSION.search(head.metadata)
    return int(match[1]) if match else 0


def _remove_series(gauge: Gauge, label: str) -> None:
    gauge.remove(label)
