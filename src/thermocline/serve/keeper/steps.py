"""What is sent to a node for one table: a step of a copy that is there, or a new copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.serve.keeper import reading
from thermocline.serve.keeper.copies import Copy, can_follow, fits, is_there, next_since
from thermocline.serve.keeper.link import Link, Refused
from thermocline.serve.wire.frame import Lost, Malformed

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.serve.keeper.goals import Goal, Want


class Unfed(Exception):
    """A table cannot be brought to a node: it cannot be read, or there is no room for it."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True)
class Step:
    """A copy's way to the look. `taken` is called when the node has gone it."""

    before: Copy
    want: Want
    found: reading.Difference
    after: Copy

    def taken(self) -> None:
        """Know the files as the node now does."""
        assert self.after.files is not None
        self.after.files.take(self.found)


@dataclass(frozen=True)
class Build:
    """A copy that is being made, beside what is served."""

    want: Want
    after: Copy
    change: str
    batches: Iterator[pa.RecordBatch]


def step(copy: Copy, want: Want) -> Step | None:
    """What a copy needs to be at the look; None when it is, or cannot be brought there."""
    head, since = want.sight.head, next_since(copy, want)
    if is_there(copy, want) or not can_follow(copy, want.sight):
        return None
    assert copy.files is not None
    with or_unfed(head.table):
        found = reading.difference(want.sight, copy.snapshot, since, copy.files)
    after = replace(
        copy,
        snapshot=head.snapshot,
        since=since,
        stale=copy.stale or not fits(copy, want),
    )
    return Step(copy, replace(want, since=since), found, after)


def send(link: Link, change: str, step: Step) -> None:
    """Stage a step."""
    head = step.want.sight.head
    with or_unfed(head.table):
        link.advance(change, step.before.snapshot, step.want, step.found)
        for batch in step.found.rows():
            link.rows(change, head.table, batch)


def begin(link: Link, want: Want) -> Build:
    """Start a new copy; its rows are still to be sent."""
    head = want.sight.head
    with or_unfed(head.table):
        files = reading.Numbers()
        found = reading.difference(want.sight, None, want.since, files)
        files.take(found)
        change = link.begin()
        try:
            link.new(change, want)
        except Refused:
            link.abandon(change)
            raise
    after = Copy(head.snapshot, want.since, head.uuid, want.sight.shape, files)
    return Build(want, after, change, found.rows())


def is_wanted(build: Build, goal: Goal) -> bool:
    """Whether a copy that is being made will be of use when it is done."""
    want = goal.wants.get(build.want.sight.head.table)
    return want is not None and can_follow(build.after, want.sight)


def heaviest(of: Sequence[Step]) -> str | None:
    """The table that brings most: the one to leave out when all together do not fit."""
    found = max(of, key=lambda each: each.found.bytes, default=None)
    return found.want.sight.head.table if found else None


@contextmanager
def or_unfed(table: str | None) -> Iterator[None]:
    """Whatever goes wrong with a table, but for losing the node, is that table's matter alone."""
    try:
        yield
    except (Lost, Malformed, Unfed):
        raise
    except Exception as error:
        if table is None:
            raise
        raise Unfed(table) from error
