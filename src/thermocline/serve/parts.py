"""Questions that come again after every commit: what is older than today is counted once.

A dashboard asks the same of a table that grows at its end. Split at midnight, the older part of a
question has the same answer for as long as the files that hold its rows are the same, and only the
newer part, which is hot, is counted anew. See `question.split` for which questions that is true of.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.errors import ThermoclineError
from thermocline.serve.failures import TooMuch
from thermocline.serve.filesums import day_after, day_of
from thermocline.serve.fleet.messages import Allowance, Moved
from thermocline.serve.phrasing import Phrasable
from thermocline.serve.prepare import NODE_BYTES, Prepared
from thermocline.serve.provenance import Given
from thermocline.serve.question.split import Split, split
from thermocline.serve.route import Way
from thermocline.serve.terms import Ask, Caller, Head, Held, Lookout, Rows

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.fleet.messages import Reading
    from thermocline.serve.question.span import Span
    from thermocline.serve.results import Results
    from thermocline.sql.guard import Question

MOST_ROWS = 500
"""So many rows of an older part are sent along with the question; with more it is not split."""
MOST_WASTED = 3
"""A table whose older rows change with so many commits in a row is counted whole for the day."""
WORTH_ROWS = 200_000
"""With fewer rows before the boundary, counting them anew is as good."""


@dataclass(frozen=True)
class Boundary:
    """Where a question is split: a table's time, and a node that holds all from then on."""

    table: str
    head: Head
    node: str
    at: datetime
    """In UTC, without a zone."""

    @property
    def version(self) -> Hashable:
        """Two looks at a table with the same have the same rows before the boundary.

        Files never change: they come and go. A file that begins on a day after the boundary has no
        row before it; nor does a row without a time count as one.
        """
        older = self.head.files.begun_before(day_after(self.at))
        return self.head.uuid, self.head.deletes, older, self.head.shape


def boundary(
    prepared: Prepared,
    lookout: Lookout,
    nodes: Mapping[str, int],
    now: datetime,
    worth: int = WORTH_ROWS,
) -> Boundary | None:
    """Where a question may be split, if that is worth it. `nodes` are those that can be asked."""
    if len(prepared.tables) != 1 or prepared.question.dialect != "duckdb":
        return None
    (table,) = prepared.tables
    head = lookout.heads[table]
    if head.time is None:
        return None
    span = prepared.spans(lookout.heads)[table]
    if span.start is None:
        return None  # rows without a time may matter, and are in neither part
    held = {n: copies[table] for n in nodes if table in (copies := lookout.held.get(n, {}))}
    newest = [n for n, copy in held.items() if copy.snapshot == head.snapshot]
    if not newest:
        return None
    node = min(newest, key=lambda each: nodes[each])
    at = _midnight(now, held[node])
    if not _divides(at, span) or _rows_before(at, span, head) < worth:
        return None
    return Boundary(table, head, node, at)


@dataclass
class Together:
    """The question that is left once its older part was answered, in the words of engines.

    An older part is hundreds of constants: the texts that they make are kept, and no tree.
    """

    split: Split
    older: Rows
    sql: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def question(self) -> Question:
        """The question as a tree, made whenever somebody needs it."""
        found = self.split.together(self.older)
        assert found is not None, "an older part that could not be put together was taken"
        return found


@dataclass
class Parted:
    """A question split at a boundary, and both parts of it ready to be asked."""

    key: Hashable
    split: Split | None
    """None, when it cannot be split after all."""
    older: Prepared
    wasted: int = 0
    """How often in a row the older part had to be read again."""
    _together: Together | None = None

    @property
    def bytes(self) -> int:
        """About how much memory it takes: the older part, the newer, and the whole of both."""
        size = self.older.bytes + (2 * NODE_BYTES * self.older.nodes if self.split else 0)
        if (both := self._together) is None:
            return size
        return size + len(both.older.body) + sum(map(len, both.sql.values()))

    def together(self, older: Given) -> Together | None:
        """The question that is left once the older part was answered, worked out once."""
        if self._together is None or self._together.older is not older.rows:
            if self.split is None or self.split.together(older.rows) is None:
                return None
            self._together = Together(self.split, older.rows)
        return self._together


class Parts:
    """Answers questions in parts. `first` gives the older part, `reading` says how one is asked."""

    def __init__(
        self,
        fleet: Fleet,
        results: Results[Given],
        first: Callable[[Prepared, Ask, int, float], Awaitable[Given]],
        reading: Callable[[Phrasable, Way], tuple[str, Mapping[str, Reading]]],
    ) -> None:
        self._fleet = fleet
        self._results = results
        self._first = first
        self._reading = reading

    async def given(
        self, prepared: Prepared, ask: Ask, caller: Caller, where: Boundary, allowed: Allowance
    ) -> Given | None:
        """The answer, split there; None when it cannot be had so. Raises Moved."""
        split_ = parted(prepared, where)
        if split_ is None:
            return None
        deadline = time.perf_counter() + allowed.seconds
        try:
            older, kept = await self._older(split_.older, where, caller, deadline)
            split_.wasted = 0 if kept else split_.wasted + 1
            together = split_.together(older)
            if together is None or split_.wasted > MOST_WASTED:
                prepared.parted = replace(split_, split=None, _together=None)
                return None
            told = "kept" if kept else f"read by {older.way.engine}"
            because = (
                f"{where.node} holds {where.table} from {where.at:%Y-%m-%d} on",
                f"what is older was {told}, and is the same at this snapshot",
            )
            way = Way("hot", where.node, {where.table: where.head.snapshot}, because)
            sql, views = self._reading(together, way)
            left = deadline - time.perf_counter()
            allowed = replace(allowed, seconds=max(left, 0.001))
            rows = await self._fleet.ask(way, sql, views, ask.format, allowed)
        except Moved:
            raise
        except TooMuch:
            prepared.parted = replace(split_, split=None, _together=None)
            return None
        except (ThermoclineError, TimeoutError):
            return None  # whoever answers it whole may have more to say of it
        return Given(rows, way, older.failures, (0, 0) if kept else older.scanned)

    async def _older(
        self, prepared: Prepared, where: Boundary, caller: Caller, deadline: float
    ) -> tuple[Given, bool]:
        async def make() -> Given:
            given = await self._first(prepared, Ask(prepared.text), where.head.snapshot, deadline)
            if given.rows.count > MOST_ROWS:
                raise TooMuch(f"The older part has more than {MOST_ROWS} rows.")
            return given

        question = ("older part", prepared.text, caller.policy)
        return await self._results.of(question, where.version, make)


def parted(prepared: Prepared, where: Boundary) -> Parted | None:
    """The question split there, worked out once; None where it cannot be."""
    key = (where.at, where.head.shape)
    known = prepared.parted
    if known is None or known.key != key:
        assert where.head.time is not None
        found = split(prepared.question, where.head.time, where.at, where.head.columns)
        known = Parted(key, found, _ready(prepared, found.older if found else prepared.question))
        prepared.parted = known
    return known if known.split is not None else None


def _ready(prepared: Prepared, part: Question) -> Prepared:
    """A part of a question, ready to be routed."""
    text = part.tree.sql(dialect=part.dialect, comments=False)
    return Prepared(part, text, prepared.clock, prepared.day, prepared.now)


def _midnight(now: datetime, copy: Held) -> datetime:
    """The beginning of the day; later, where a node's copy begins later."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    latest = today if copy.since is None else max(today, copy.since.astimezone(UTC))
    return latest.replace(tzinfo=None)


def _divides(at: datetime, span: Span) -> bool:
    """Whether a question sees rows on both sides."""
    assert span.start is not None
    return span.start < at and (span.end is None or span.end >= at)


def _rows_before(at: datetime, span: Span, head: Head) -> int:
    """About how many rows of a question lie before a moment."""
    assert span.start is not None
    return head.files.within(day_of(span.start), day_after(at) - 1).rows
