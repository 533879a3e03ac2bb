"""A feed: a continuous source that is read by position, and lands batch by batch in bronze.

There is no separate state. The mark in the newest commit of the target table says where to
continue, and each batch lands together with the next mark. After a crash at any point, the next
start reads the mark again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from thermocline.contract.definition import Contract, DriftMode
from thermocline.contract.types import Primitive
from thermocline.errors import Permanent, ThermoclineError
from thermocline.ingest import drift, marks
from thermocline.ingest.batch import Batch, BatchResult, OpenFastRead, Provenance, SchemaDrift, land
from thermocline.ingest.lines import FLAW
from thermocline.ingest.marks import Mark, Position
from thermocline.ingest.record_reader import convert_and_validate, parse_objects
from thermocline.ingest.source import KINDS, BatchLimits, Source
from thermocline.ingest.validation import (
    EVENT_TIME,
    FILE,
    HEADERS,
    KEY,
    MESSAGE,
    PAYLOAD,
    POSITION,
    RAW,
    reject_unknown_fields,
    strip_provenance,
)
from thermocline.ingest.value_expressions import refuse_unwritable_types
from thermocline.lake.naming import new_run_id
from thermocline.lake.retries import retry_moved_main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake

RECENT_BATCHES, TOLERATED_BAD = 20, 10
"""The share of bad records is computed over this many recent batches, and a few bad records are
always tolerated: a single poison record in a quiet hour does not stop a stream."""

FIRST_ROW_BYTES = 4096.0
"""The assumed size of a record before the first batch."""

LINES_SCHEMA = (
    f"{FILE} int, {POSITION} long, {RAW} string, {FLAW} string, {KEY} binary, "
    f"{HEADERS} array<struct<key:string,value:binary>>, {EVENT_TIME} timestamp, {PAYLOAD} binary"
)
"""The columns of a pull's lines, as a Spark schema.

FILE is the number of the record's provenance, POSITION its position there. RAW is the record as
JSON text, or null for a tombstone. FLAW says why it cannot be read, or is null. PAYLOAD has the
original bytes.
"""

_STRING = Primitive("string")


@dataclass(frozen=True)
class Pull:
    """The records of a feed between two positions.

    `lines` returns the records with the columns of LINES_SCHEMA, of all provenances or of some; it
    may be called again and must return the same. `records` is their number if the feed knows it
    exactly. `position_ranges` has, for each provenance, its first position and the one after its
    last, if positions increase and must be unique. `behind` is how many records remain after these,
    if known. `confirm` is called before anything becomes visible, as in `Batch`. `explain`
    translates a failure of the source that occurs while a batch is written. `fast_path` is as in
    `Batch`.
    """

    origins: tuple[Provenance, ...]
    lines: Callable[[frozenset[int] | None], DataFrame]
    position: Position
    records: int | None = None
    position_ranges: tuple[tuple[int, int], ...] = ()
    behind: int | None = None
    confirm: Callable[[], None] = lambda: None
    explain: Callable[[BaseException], ThermoclineError | None] = lambda failure: None
    fast_path: OpenFastRead | None = None


class Feed(Protocol):
    """One continuous source. Not thread-safe."""

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Prepare to read from a position; None means a first start.

        Return the position to start from, usually the same. Raise `LostData` if the source no
        longer has what follows the position, unless the loss is accepted.
        """

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """Return what follows a position, within limits; None if there is nothing new.

        Raise Transient if the source cannot be reached at the moment.
        """

    def acknowledge(self, position: Position) -> None:
        """Acknowledge that everything before the position is published and need not be kept."""

    def close(self) -> None:
        """Close connections and processes."""


class LostData(Permanent):
    """The source lost records that were not read yet, or was replaced by another one."""

    code = "lost-data"

    def __init__(self, source: str, what: str) -> None:
        super().__init__(
            f"{source}: {what}",
            f"Data may be missing. To go on without it: thermo stream {source} --accept-loss.",
            source=source,
        )


class OtherStream(Permanent):
    """Another process reads the same source into the same table."""

    code = "other-stream"

    def __init__(self, source: str, table: str) -> None:
        super().__init__(
            f"Another stream took over {source} into {table}; this one stops.",
            "Nothing was lost or landed twice. Let only one of them run.",
            source=source,
            table=table,
        )


@dataclass(frozen=True)
class StreamBatch:
    """One batch that has landed. `behind` is how many records remain, if known."""

    source: str
    target: str
    rows: int
    quarantined: int
    snapshot: int
    sequence: int
    behind: int | None
    landed: BatchResult


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """Return the feed of a source, by its kind. It does not connect yet."""
    feed: Feed = import_module(KINDS[source.kind]).open_feed(lake, source, contract)
    return feed


class FeedIngester:
    """Lands a feed in one table, batch by batch."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        contract: Contract,
        feed: Feed,
        *,
        limits: BatchLimits | None = None,
        accept_loss: bool = False,
    ) -> None:
        self.lake = lake
        self.source = source
        self.feed = feed
        self.limits = limits or source.limits
        self.stream = uuid4().hex
        self._contract = replace(strip_provenance(replace(contract, messages=True)), messages=True)
        self._accept_loss = accept_loss
        self._has_begun = False
        self._last_mark: Mark | None = None
        """The mark at the start; later, the last mark that this stream wrote."""
        self._start_position: Position | None = None
        self._row_bytes = FIRST_ROW_BYTES
        self._recent_counts: deque[tuple[int, int]] = deque(maxlen=RECENT_BATCHES)

    def ingest_batch(self) -> StreamBatch | None:
        """Land one batch, or return None if nothing is new.

        If maintenance commits to the table concurrently, the batch is retried. If another stream
        does, OtherStream is raised. In both cases nothing lands twice.
        """
        return retry_moved_main(self._ingest_batch)

    def close(self) -> None:
        """Close the feed."""
        self.feed.close()

    def _ingest_batch(self) -> StreamBatch | None:
        if not self._has_begun:
            refuse_unwritable_types(self._contract)
            self.lake.ensure(drift.include_added_columns(self.lake, self._contract))
        state = self.lake.state(self.source.target)
        position = self._next_position(
            marks.read(self.lake, state, self.source.name, accept_loss=self._accept_loss)
        )
        pull = self.feed.pull(position, self._batch_limits())
        if pull is None:
            return None
        sequence = (self._last_mark.sequence if self._last_mark else 0) + 1
        next_mark = Mark(self.stream, sequence, pull.position)
        landed = self._land(pull, next_mark, state.head())
        self._last_mark = next_mark
        self._learn_size(landed)
        self._recent_counts.append((landed.quarantined, landed.rows + landed.quarantined))
        self.feed.acknowledge(pull.position)
        return StreamBatch(
            self.source.name, self.source.target, landed.rows, landed.quarantined,
            landed.snapshot, sequence, pull.behind, landed,
        )  # fmt: skip

    def _batch_limits(self) -> BatchLimits:
        """Return the limits; the rows are reduced to the number that should fit the bytes."""
        rows = max(1, int(self.limits.bytes / self._row_bytes))
        return BatchLimits(min(self.limits.rows, rows), self.limits.bytes)

    def _learn_size(self, landed: BatchResult) -> None:
        rows = landed.rows + landed.quarantined
        if rows and landed.bytes:
            # A larger size applies at once, a smaller one gradually.
            row_bytes = landed.bytes / rows
            self._row_bytes = max(row_bytes, 0.7 * self._row_bytes + 0.3 * row_bytes, 1.0)

    def _next_position(self, mark: Mark | None) -> Position | None:
        """Return where to continue, based on the table's current mark."""
        if not self._has_begun or (mark != self._last_mark and self._was_rolled_back(mark)):
            position = mark.position if mark else None
            self._start_position = self.feed.begin(position, accept_loss=self._accept_loss)
            self._has_begun, self._last_mark = True, mark
        elif mark != self._last_mark:
            if mark is None or mark.stream != self.stream:
                raise OtherStream(self.source.name, self.source.target)
            self._last_mark = mark  # written by our own commit, whose outcome was unknown
        # Until this stream has landed a batch, start where `begin` returned.
        is_ours = mark is not None and mark.stream == self.stream
        return mark.position if mark and is_ours else self._start_position

    def _was_rolled_back(self, mark: Mark | None) -> bool:
        """Whether the table was rolled back to an earlier batch of this same stream."""
        if mark is None or self._last_mark is None or mark.stream != self.stream:
            return False
        return mark.sequence < self._last_mark.sequence

    def _land(self, pull: Pull, mark: Mark, base: int | None) -> BatchResult:
        contract = drift.include_added_columns(self.lake, self._contract)
        columns_added = False
        while True:
            batch = Batch(
                self.lake,
                self.source,
                contract,
                new_run_id(),
                pull.origins,
                _make_reader(pull),
                bookmark=marks.to_bookmark(self.source.name, mark),
                consumed=marks.to_consumed(self.source.name, mark),
                expected=pull.records,
                position_ranges=pull.position_ranges,
                confirm=pull.confirm,
                fast_path=pull.fast_path,
                base=base,
                columns_added=columns_added,
                earlier_counts=(
                    sum(bad for bad, _ in self._recent_counts),
                    sum(rows for _, rows in self._recent_counts),
                ),
                tolerated_bad=TOLERATED_BAD,
            )
            try:
                return land(batch)
            except SchemaDrift as found:
                names = {name for each in found.fields.values() for name in each}
                contract, columns_added = (
                    drift.add_columns(contract, dict.fromkeys(names, _STRING)),
                    True,
                )
                self.lake.ensure(contract)
            except Permanent as error:
                if explained := pull.explain(error.__cause__ or error):
                    raise explained from error
                raise


def make_lines(lake: Lake, rows: Sequence[tuple[object, ...]]) -> DataFrame:
    """Return records of this process as lines; each row in the order of LINES_SCHEMA."""
    return lake.spark.session.createDataFrame(list(rows), LINES_SCHEMA)


def _make_reader(pull: Pull) -> Callable[[Contract, frozenset[int] | None], DataFrame]:
    def read(contract: Contract, only: frozenset[int] | None) -> DataFrame:
        found = replace(
            parse_objects(pull.lines(only), contract), passthrough=tuple(MESSAGE.values())
        )
        validated = convert_and_validate(found, contract, will_filter=only is not None)
        return reject_unknown_fields(validated) if contract.drift is DriftMode.REFUSE else validated

    return read
