"""Which offsets come next, and whether the topic is still the one that was read before.

Nothing here talks to a broker: positions and what the broker said go in, spans come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thermocline.ingest.marks import Position


@dataclass(frozen=True)
class PartitionOffsets:
    """The offsets that a partition holds: the start_position, and the one behind the last."""

    begin: int
    end: int


@dataclass(frozen=True)
class Topic:
    """A topic as the broker describes it. Its id is new when it is deleted and made again."""

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
        """What a person calls the partition."""
        return f"{self.topic}/{self.partition}"


def make_position(ids: Mapping[str, str], following: Mapping[str, Mapping[int, int]]) -> Position:
    """A position: of each topic its id and the next offset of every partition."""
    return {
        "topics": {
            topic: {"id": ids[topic], "next": {str(p): o for p, o in sorted(next_offsets.items())}}
            for topic, next_offsets in sorted(following.items())
        }
    }


def start_position(topics: Mapping[str, Topic], *, at_end: bool) -> Position:
    """Where a start_position start begins."""
    return make_position(
        {name: topic.id for name, topic in topics.items()},
        {
            name: {p: e.end if at_end else e.begin for p, e in topic.partitions.items()}
            for name, topic in topics.items()
        },
    )


def find_losses(position: Position, topics: Mapping[str, Topic]) -> list[str]:
    """What a reader at a position has missed, or may have: a sentence each; empty if nothing."""
    found = []
    for name, topic in topics.items():
        known = position["topics"].get(name)
        if known is None:
            continue  # a topic that was added to the source
        if known["id"] != topic.id:
            read = sum(known["next"].values())
            found.append(
                f"the topic {name} was deleted and made again after {read:,} of its records were "
                "read; what the old one had beyond them is gone"
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
    """The position, with what is gone left out and what is new from its beginning."""
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
    """What to read next: all that is there, or `rows` of it, shared fairly by the partitions."""
    waiting = []
    for name, topic in topics.items():
        following = _next_offsets(position["topics"][name])
        for number, offsets in sorted(topic.partitions.items()):
            if offsets.end > following[number]:
                waiting.append(OffsetRange(name, number, following[number], offsets.end))
    chosen = []
    left = rows
    # Those with the least start_position: what they leave of their share goes to the others.
    waiting.sort(key=lambda part: part.end - part.start)
    for index, part in enumerate(waiting):
        share = -(-left // (len(waiting) - index))
        size = min(part.end - part.start, share)
        left -= size
        if size:
            chosen.append(OffsetRange(part.topic, part.partition, part.start, part.start + size))
    return sorted(chosen, key=lambda part: (part.topic, part.partition))


def advance_position(position: Position, read: list[OffsetRange]) -> Position:
    """The position behind what was read."""
    following = {name: _next_offsets(known) for name, known in position["topics"].items()}
    for part in read:
        following[part.topic][part.partition] = part.end
    return make_position({n: known["id"] for n, known in position["topics"].items()}, following)


def count_lag(position: Position, topics: Mapping[str, Topic]) -> int:
    """How many offsets lie between a position and the end."""
    return sum(part.end - part.start for part in plan_ranges(position, topics, 1 << 62))


def _next_offsets(known: Mapping[str, Any] | None) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in (known or {"next": {}})["next"].items()}
