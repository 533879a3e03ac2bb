"""What a monitoring system can see: answers by engine, freshness of hot copies, state of tables.

All names are in one registry of our own and are there from the start, so that a rule or panel that
mentions one is right on a server that was asked nothing yet. Values of labels are engines, nodes
and tables of the lake; nothing that a caller writes becomes one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from thermocline.serve.file_sums import SMALL_FILE
from thermocline.serve.values import LakeState, TableHead

ENGINES = ("hot", "cache", "direct", "trino", "spark", "none")
"""`none` stands for questions that reached no engine."""

OUTCOMES = ("answered", "fell_back", "refused", "failed", "late", "left")
"""fell_back: answered, though not by the engine that was to answer; left: the caller went away.

A question that nobody answered counts once under `none`, and as failed for each engine that was
asked: so `none` tells how callers fare, and the others how engines do.
"""

MANY_SMALL_FILES = 20
"""Tables with more small files than this wait for compaction."""

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
    """The measurements of one server."""

    def __init__(self, mismatches: Callable[[], int] = lambda: 0) -> None:
        """`mismatches` says how many hot answers were found wrong so far."""
        self._found_wrong = mismatches
        self._counted_wrong = 0
        self.registry = registry = CollectorRegistry()
        self._latency = Histogram(
            "shadow_warehouse_query_latency_seconds",
            "From a question to its answer, by the engine that gave it.",
            ["engine"], buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._queries = Counter(
            "shadow_warehouse_queries_total",
            "Questions by the engine that was asked and what became of them; none: by nobody.",
            ["engine", "outcome"], registry=registry,
        )  # fmt: skip
        self._cache_hits = Counter(
            "thermocline_cache_hits_total", "Answers that had been given before.",
            registry=registry,
        )  # fmt: skip
        self._overdue = Counter(
            "thermocline_overdue_total",
            "Answers that are older than they should be, as a newer one was not to be had.",
            registry=registry,
        )  # fmt: skip
        self._mismatches = Counter(
            "thermocline_mismatch_total", "Hot answers that differed from the cold one.",
            registry=registry,
        )  # fmt: skip
        self._queue = Gauge(
            "thermocline_queue_depth",
            f"Queries being worked on; tables with more than {MANY_SMALL_FILES} small files, "
            "which wait for compaction.",
            ["queue"], registry=registry,
        )  # fmt: skip
        self._memory = Gauge(
            "thermocline_node_memory_bytes", "Resident memory of a hot node.",
            ["node"], registry=registry,
        )  # fmt: skip
        self._versions = Gauge(
            "iceberg_metadata_version", "How many times a table's metadata was written.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._small_files = Gauge(
            "s3_small_file_count", f"Data files of a table under {SMALL_FILE:,} bytes.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._lag = Gauge(
            "thermocline_refresh_lag_seconds",
            "How long a hot table's newest commit waits for a node, or waited when it came.",
            ["table"], registry=registry,
        )  # fmt: skip
        self._lags = Lags()
        self._heads: Mapping[str, TableHead] = {}
        self._due: set[str] = set()
        """Tables that wait for compaction."""
        self._nodes: set[str] = set()
        self._scrape = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        """Have every series whose labels are known: a rate needs a first value to grow from."""
        self._seconds = {engine: self._latency.labels(engine) for engine in ENGINES}
        self._counts = {
            (engine, outcome): self._queries.labels(engine, outcome)
            for engine in ENGINES
            for outcome in OUTCOMES
        }
        self._running = self._queue.labels("queries")
        self._compaction = self._queue.labels("compaction")

    def finished(self, engine: str, outcome: str, seconds: float) -> None:
        """A question came to its end."""
        engine = engine if engine in ENGINES else "none"
        self._counts[engine, outcome].inc()
        if outcome in ("answered", "fell_back"):
            self._seconds[engine].observe(seconds)
            if engine == "cache":
                self._cache_hits.inc()

    def overdue(self) -> None:
        """An answer was older than it should be."""
        self._overdue.inc()

    def failed(self, engine: str) -> None:
        """An engine was asked and could not answer; somebody else may have."""
        self._counts[engine if engine in ENGINES else "none", "failed"].inc()

    def running(self, count: int) -> None:
        """So many questions are being worked on."""
        self._running.set(count)

    def look(self, lake_state: LakeState) -> None:
        """Take in what is known of the lake. Costs what changed since the last time."""
        for table, seconds in self._lags.look(lake_state).items():
            self._lag.labels(table).set(seconds)
        before, heads = self._heads, lake_state.table_heads
        if heads is before:
            return
        self._heads = heads
        for table, head in heads.items():
            if before.get(table) is head:
                continue
            small = head.files.total.small
            (self._due.add if small > MANY_SMALL_FILES else self._due.discard)(table)
            self._small_files.labels(table).set(small)
            self._versions.labels(table).set(_version(head))
        for gone in before.keys() - heads.keys():
            self._due.discard(gone)
            for gauge in (self._small_files, self._versions, self._lag):
                _forget(gauge, gone)
        self._compaction.set(len(self._due))

    def nodes(self, memory: Mapping[str, int]) -> None:
        """Take in how many bytes of memory each node has."""
        for name, size in memory.items():
            self._memory.labels(name).set(size)
        for gone in self._nodes - memory.keys():
            _forget(self._memory, gone)
        self._nodes = set(memory)

    def exposition(self, tables: Collection[str] | None = None) -> bytes:
        """All of it in Prometheus' text format, or without tables other than these."""
        with self._scrape:
            total = self._found_wrong()
            self._mismatches.inc(max(0, total - self._counted_wrong))
            self._counted_wrong = max(total, self._counted_wrong)
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
    """A label's value as the text format has it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").encode()


class Lags:
    """How long each table's newest commit has been, or was, on its way to a node."""

    def __init__(self) -> None:
        self._heads: Mapping[str, TableHead] = {}
        self._waiting: set[str] = set()
        """Hot tables whose newest commit is not known to have come to a node."""
        self._first: dict[str, tuple[int, datetime]] = {}
        self._caught: dict[str, tuple[int, float]] = {}

    def look(self, lake_state: LakeState) -> dict[str, float]:
        """The lag of every table that is to be hot and whose lag may be another than before."""
        before, heads = self._heads, lake_state.table_heads
        if heads is not before:
            self._heads = heads
            self._waiting |= {
                table for table, head in heads.items() if before.get(table) is not head
            }
            self._waiting |= before.keys() - heads.keys()
        found = {}
        for table in sorted(self._waiting):
            head = heads.get(table)
            if head is None or head.hot is None:
                for known in (self._first, self._caught):
                    known.pop(table, None)
                self._waiting.discard(table)
                continue
            found[table] = self._of(head, lake_state)
            if self._caught.get(table, (None,))[0] == head.snapshot:
                self._waiting.discard(table)
        return found

    def _of(self, head: TableHead, lake_state: LakeState) -> float:
        caught = self._caught.get(head.table)
        if caught is not None and caught[0] == head.snapshot:
            return caught[1]
        first = self._first.get(head.table)
        if first is None:
            # What was committed before anybody looked did not wait for us until now.
            first = (head.snapshot, max(head.committed_at, lake_state.polled_at))
        elif first[0] != head.snapshot:
            first = (head.snapshot, head.committed_at)
        self._first[head.table] = first
        held = any(
            (copy := copies.get(head.table)) is not None and copy.snapshot == head.snapshot
            for copies in lake_state.hot_copies.values()
        )
        until = lake_state.polled_at if held else max(lake_state.polled_at, datetime.now(UTC))
        lag = max(0.0, (until - first[1]).total_seconds())
        if held:
            self._caught[head.table] = (head.snapshot, lag)
        return lag


def _version(head: TableHead) -> int:
    """00012-….metadata.json and v12.metadata.json → 12; another name says nothing."""
    match = _VERSION.search(head.metadata)
    return int(match[1]) if match else 0


def _forget(gauge: Gauge, label: str) -> None:
    gauge.remove(label)
