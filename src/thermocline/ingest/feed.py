"""A feed: a source that goes on, seen as positions; and the way of one batch of it into bronze.

No second state. Where to read on is the mark in the newest commit of the target table; the batch
that is read from there lands together with the next mark. Killed anywhere, the next start reads
the mark again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from thermocline.contract.definition import Contract, Drift
from thermocline.contract.types import Primitive
from thermocline.errors import Permanent, ThermoclineError
from thermocline.ingest import drift, marks
from thermocline.ingest.batch import Batch, Drifted, Landed, Provenance, Swift, land
from thermocline.ingest.judge import (
    EVENT_TIME,
    FILE,
    HEADERS,
    KEY,
    MESSAGE,
    PAYLOAD,
    POSITION,
    RAW,
    data_only,
    refusing_strays,
)
from thermocline.ingest.lines import FLAW
from thermocline.ingest.marks import Mark, Position
from thermocline.ingest.read import objects, typed
from thermocline.ingest.source import KINDS, Limits, Source
from thermocline.ingest.values import refuse_unwritable
from thermocline.lake import MainMoved
from thermocline.lake.names import new_run_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake

ATTEMPTS = 8
"""How often a batch is begun anew while maintenance moves the table under it."""

RECENT, FEW = 20, 10
"""The share of bad records is that of so many last batches, and a handful of them is no share: a
single poison record in a quiet hour does not stop a stream."""

FIRST_GUESS = 4096.0
"""How many bytes a record is taken to have before any was seen."""

LINES = (
    f"{FILE} int, {POSITION} long, {RAW} string, {FLAW} string, {KEY} binary, "
    f"{HEADERS} array<struct<key:string,value:binary>>, {EVENT_TIME} timestamp, {PAYLOAD} binary"
)
"""The columns of a pull's lines, as a Spark schema.

FILE is the number of the record's provenance, POSITION its place there. RAW is the record as JSON
text, or null for a tombstone; FLAW is why it cannot be read as such, else null. PAYLOAD are the
bytes as they came.
"""

_STRING = Primitive("string")


@dataclass(frozen=True)
class Pull:
    """What a feed has between two positions.

    `lines` gives the records in the columns of LINES, of all provenances or of some; it may be
    called again and must then give the same. `records` is how many there are, where the feed knows
    it exactly; `spans` are, for each provenance, its first position and the one behind its last,
    where positions count up and a second record at the same one would be wrong. `behind` is how
    many wait after these, as far as is known. `confirm` has the last word before anything becomes
    visible, as in `Batch`. `explain` tells trouble of the source from a failure to write, when
    reading goes on meanwhile. `swift` is as in `Batch`: a shorter way to the same rows.
    """

    origins: tuple[Provenance, ...]
    lines: Callable[[frozenset[int] | None], DataFrame]
    position: Position
    records: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    behind: int | None = None
    confirm: Callable[[], None] = lambda: None
    explain: Callable[[BaseException], ThermoclineError | None] = lambda failure: None
    swift: Swift | None = None


class Feed(Protocol):
    """One source that goes on. One thread uses it, from `begin` to `close`."""

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Get ready to read from a position; None is a first start.

        Gives the position to really read from, as a rule the same. Raises `LostData` when the
        source no longer has what follows the position, unless the loss is accepted.
        """

    def pull(self, position: Position | None, limits: Limits) -> Pull | None:
        """What is there from a position on, within limits; None when there is nothing new.

        Raises Transient when the source cannot be reached at the moment.
        """

    def landed(self, position: Position) -> None:
        """Everything before the position is published: the source need not keep it for us."""

    def close(self) -> None:
        """Let go of connections and processes."""


class LostData(Permanent):
    """A source no longer has records that were not read yet, or is not the one it was."""

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
class Taken:
    """One batch that has landed. `behind` records still wait, as far as is known."""

    source: str
    target: str
    rows: int
    quarantined: int
    snapshot: int
    sequence: int
    behind: int | None
    landed: Landed


def open_feed(lake: Lake, source: Source, contract: Contract) -> Feed:
    """The feed of a source, by its kind. Nothing is connected yet."""
    feed: Feed = import_module(KINDS[source.kind]).open_feed(lake, source, contract)
    return feed


class FeedIntake:
    """A feed on its way into one table, batch by batch."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        contract: Contract,
        feed: Feed,
        *,
        limits: Limits | None = None,
        accept_loss: bool = False,
    ) -> None:
        self.lake = lake
        self.source = source
        self.feed = feed
        self.limits = limits or source.limits
        self.stream = uuid4().hex
        self._contract = replace(data_only(replace(contract, messages=True)), messages=True)
        self._accept_loss = accept_loss
        self._began = False
        self._last: Mark | None = None
        """The mark that was there at the beginning, then the one that this stream left last."""
        self._start: Position | None = None
        self._row_bytes = FIRST_GUESS
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)

    def take(self) -> Taken | None:
        """Land one batch, or nothing when nothing is new.

        Maintenance may move the table meanwhile: the batch is then begun anew. When another
        stream does, OtherStream is raised. Either way nothing lands twice.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._take()
            except MainMoved:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Let go of the source."""
        self.feed.close()

    def _take(self) -> Taken | None:
        if not self._began:
            refuse_unwritable(self._contract)
            self.lake.ensure(drift.with_added(self.lake, self._contract))
        state = self.lake.state(self.source.target)
        position = self._position(
            marks.read(self.lake, state, self.source.name, lost=self._accept_loss)
        )
        pull = self.feed.pull(position, self._bounded())
        if pull is None:
            return None
        sequence = (self._last.sequence if self._last else 0) + 1
        ours = Mark(self.stream, sequence, pull.position)
        landed = self._land(pull, ours, state.head())
        self._last = ours
        self._learn_size(landed)
        self._recent.append((landed.quarantined, landed.rows + landed.quarantined))
        self.feed.landed(pull.position)
        return Taken(
            self.source.name, self.source.target, landed.rows, landed.quarantined,
            landed.snapshot, sequence, pull.behind, landed,
        )  # fmt: skip

    def _bounded(self) -> Limits:
        """The limits, with as many rows as the bytes will hold by what was seen so far."""
        rows = max(1, int(self.limits.bytes / self._row_bytes))
        return Limits(min(self.limits.rows, rows), self.limits.bytes)

    def _learn_size(self, landed: Landed) -> None:
        rows = landed.rows + landed.quarantined
        if rows and landed.bytes:
            # Larger ones are believed at once, smaller ones by and by.
            seen = landed.bytes / rows
            self._row_bytes = max(seen, 0.7 * self._row_bytes + 0.3 * seen, 1.0)

    def _position(self, mark: Mark | None) -> Position | None:
        """Where to read on, by the mark that is in the table now."""
        if not self._began or (mark != self._last and self._went_back(mark)):
            position = mark.position if mark else None
            self._start = self.feed.begin(position, accept_loss=self._accept_loss)
            self._began, self._last = True, mark
        elif mark != self._last:
            if mark is None or mark.stream != self.stream:
                raise OtherStream(self.source.name, self.source.target)
            self._last = mark  # ours, by a commit whose outcome was not known
        # Until a batch of ours has landed, the mark does not know where the feed wants to begin.
        is_ours = mark is not None and mark.stream == self.stream
        return mark.position if mark and is_ours else self._start

    def _went_back(self, mark: Mark | None) -> bool:
        """Whether the table was rolled back to an earlier batch of this same stream."""
        if mark is None or self._last is None or mark.stream != self.stream:
            return False
        return mark.sequence < self._last.sequence

    def _land(self, pull: Pull, mark: Mark, base: int | None) -> Landed:
        contract = drift.with_added(self.lake, self._contract)
        grown, rows = False, self.lake.beside is not None
        while True:
            batch = Batch(
                self.lake, self.source, contract, new_run_id(), pull.origins, _reader(pull),
                bookmark=marks.written(self.source.name, mark, beside=rows),
                consumed=marks.consumed(self.source.name, mark) if rows else None,
                expected=pull.records,
                spans=pull.spans,
                confirm=pull.confirm,
                swift=pull.swift,
                base=base,
                grown=grown,
                before=(sum(bad for bad, _ in self._recent), sum(n for _, n in self._recent)),
                few=FEW,
            )  # fmt: skip
            try:
                return land(batch)
            except Drifted as found:
                names = {name for each in found.fields.values() for name in each}
                contract, grown = drift.added(contract, dict.fromkeys(names, _STRING)), True
                self.lake.ensure(contract)
            except Permanent as error:
                if explained := pull.explain(error.__cause__ or error):
                    raise explained from error
                raise


def lines_of(lake: Lake, rows: Sequence[tuple[object, ...]]) -> DataFrame:
    """Records that were pulled into this process as lines; each row in the order of LINES."""
    return lake.spark.session.createDataFrame(list(rows), LINES)


def _reader(pull: Pull) -> Callable[[Contract, frozenset[int] | None], DataFrame]:
    def read(contract: Contract, only: frozenset[int] | None) -> DataFrame:
        found = replace(objects(pull.lines(only), contract), carried=tuple(MESSAGE.values()))
        judged = typed(found, contract, picking=only is not None)
        return refusing_strays(judged) if contract.drift is Drift.REFUSE else judged

    return read
