"""Plan which offsets to read next, and detect lost records and recreated topics.

This module does not talk to a broker: it computes offset ranges from positions and the broker's
description of the topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thermocline.ingest.marks import Position


@dataclass(frozen=True)
class PartitionOffsets:
    """The offsets that a partition holds: the first one, and the one after the last."""

    begin: int
    end: int


@dataclass(frozen=True)
class Topic:
    """A topic as the broker describes it. A topic that is created again has a new id."""

    id: str
    partitions: Mapping[int, PartitionOffsets]


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """The partition as topic/number."""
        return f"{self.topic}/{self.partition}"


def make_position(ids: Mapping[str, str], following: Mapping[str, Mapping[int, int]]) -> Position:
    """Return a position: the id of each topic, and the next offset of each partition."""
    return {
        "topics": {
            topic: {"id": ids[topic], "next": {str(p): o for p, o in sorted(next_offsets.items())}}
            for topic, next_offsets in sorted(following.items())
        }
    }


def start_position(topics: Mapping[str, Topic], *, at_end: bool) -> Position:
    """Return the position of a first start."""
    return make_position(
        {name: topic.id for name, topic in topics.items()},
        {
            name: {p: e.end if at_end else e.begin for p, e in topic.partitions.items()}
            for name, topic in topics.items()
        },
    )


def find_losses(position: Position, topics: Mapping[str, Topic]) -> list[str]:
    """Describe each loss, certain or possible, of a reader at a position; empty if none."""
    found = []
    for name, topic in topics.items():
        known = position["topics"].get(name)
        if known is None:
            continue  # a topic that was added to the source
        if known["id"] != topic.id:
            read = sum(known["next"].values())
            found.append(
                f"the topic {name} was deleted and created again after {read:,} of its records "
                "were read; its unread records are gone"
            )
            continue
        found += _explain_lost_offsets(name, _next_offsets(known), topic)
    return found


def _explain_lost_offsets(name: str, following: Mapping[int, int], topic: Topic) -> Iterator[str]:
    for number, offsets in topic.partitions.items():
        at = following.get(number, 0)
        if at < offsets.begin:
            yield (
                f"offsets {at:,} to {offsets.begin - 1:,} of {name}/{number} were deleted "
                "before they were read"
            )
        elif at > offsets.end:
            yield (
                f"{name}/{number} ends at offset {offsets.end:,}, though {at:,} were read: the "
                "broker lost records, and may have given their offsets to others"
            )
    for number in sorted(following.keys() - topic.partitions.keys()):
        yield f"the partition {name}/{number} is gone"


def reconcile_position(position: Position, topics: Mapping[str, Topic]) -> Position:
    """Return the position without removed partitions, and with new ones at their beginning."""
    following: dict[str, dict[int, int]] = {}
    for name, topic in topics.items():
        known = position["topics"].get(name)
        same = known is not None and known["id"] == topic.id
        before = _next_offsets(known) if same else {}
        following[name] = {
            number: min(max(before.get(number, offsets.begin), offsets.begin), offsets.end)
            for number, offsets in topic.partitions.items()
        }
    return make_position({name: topic.id for name, topic in topics.items()}, following)


def plan_ranges(position: Position, topics: Mapping[str, Topic], rows: int) -> list[OffsetRange]:
    """Return the ranges to read next: everything, or `rows` shared fairly by the partitions."""
    waiting = []
    for name, topic in topics.items():
        following = _next_offsets(position["topics"][name])
        for number, offsets in sorted(topic.partitions.items()):
            if offsets.end > following[number]:
                waiting.append(OffsetRange(name, number, following[number], offsets.end))
    chosen = []
    left = rows
    # The smallest first: the unused part of their share goes to the others.
    waiting.sort(key=lambda part: part.end - part.start)
    for index, part in enumerate(waiting):
        share = -(-left // (len(waiting) - index))
        size = min(part.end - part.start, share)
        left -= size
        if size:
            chosen.append(OffsetRange(part.topic, part.partition, part.start, part.start + size))
    return sorted(chosen, key=lambda part: (part.topic, part.partition))


def advance_position(position: Position, read: list[OffsetRange]) -> Position:
    """Return the position after the ranges that were read."""
    following = {name: _next_offsets(known) for name, known in position["topics"].items()}
    for part in read:
        following[part.topic][part.partition] = part.end
    return make_position({n: known["id"] for n, known in position["topics"].items()}, following)


def count_lag(position: Position, topics: Mapping[str, Topic]) -> int:
    """Count the offsets between a position and the end."""
    return sum(part.end - part.start for part in plan_ranges(position, topics, 1 << 62))


def _next_offsets(known: Mapping[str, Any] | None) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in (known or {"next": {}})["next"].items()}
