"""Which offsets come next, and whether the topic is still the one that was read before.

Nothing here talks to a broker: positions and what the broker said go in, spans come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thermocline.ingest.marks import Position


@dataclass(frozen=True)
class Extent:
    """The offsets that a partition holds: the first, and the one behind the last."""

    begin: int
    end: int


@dataclass(frozen=True)
class Topic:
    """A topic as the broker describes it. Its id is new when it is deleted and made again."""

    id: str
    partitions: Mapping[int, Extent]


@dataclass(frozen=True)
class Span:
    """Offsets of one partition: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """What a person calls the partition."""
        return f"{self.topic}/{self.partition}"


def position_of(ids: Mapping[str, str], following: Mapping[str, Mapping[int, int]]) -> Position:
    """A position: of each topic its id and the next offset of every partition."""
    return {
        "topics": {
            topic: {"id": ids[topic], "next": {str(p): o for p, o in sorted(offsets.items())}}
            for topic, offsets in sorted(following.items())
        }
    }


def first(topics: Mapping[str, Topic], *, at_end: bool) -> Position:
    """Where a first start begins."""
    return position_of(
        {name: topic.id for name, topic in topics.items()},
        {
            name: {p: e.end if at_end else e.begin for p, e in topic.partitions.items()}
            for name, topic in topics.items()
        },
    )


def losses(position: Position, topics: Mapping[str, Topic]) -> list[str]:
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
        found += _lost_offsets(name, _following(known), topic)
    return found


def _lost_offsets(name: str, following: Mapping[int, int], topic: Topic) -> Iterator[str]:
    for number, extent in topic.partitions.items():
        at = following.get(number, 0)
        if at < extent.begin:
            yield (
                f"offsets {at:,} to {extent.begin - 1:,} of {name}/{number} were deleted "
                "before they were read"
            )
        elif at > extent.end:
            yield (
                f"{name}/{number} ends at offset {extent.end:,}, though {at:,} were read: the "
                "broker lost records, and may have given their offsets to others"
            )
    for number in sorted(following.keys() - topic.partitions.keys()):
        yield f"the partition {name}/{number} is gone"


def resumed(position: Position, topics: Mapping[str, Topic]) -> Position:
    """The position, with what is gone left out and what is new from its beginning."""
    following: dict[str, dict[int, int]] = {}
    for name, topic in topics.items():
        known = position["topics"].get(name)
        same = known is not None and known["id"] == topic.id
        before = _following(known) if same else {}
        following[name] = {
            number: min(max(before.get(number, extent.begin), extent.begin), extent.end)
            for number, extent in topic.partitions.items()
        }
    return position_of({name: topic.id for name, topic in topics.items()}, following)


def spans(position: Position, topics: Mapping[str, Topic], rows: int) -> list[Span]:
    """What to read next: all that is there, or `rows` of it, shared fairly by the partitions."""
    waiting = []
    for name, topic in topics.items():
        following = _following(position["topics"][name])
        for number, extent in sorted(topic.partitions.items()):
            if extent.end > following[number]:
                waiting.append(Span(name, number, following[number], extent.end))
    chosen = []
    left = rows
    # Those with the least first: what they leave of their share goes to the others.
    waiting.sort(key=lambda span: span.end - span.start)
    for index, span in enumerate(waiting):
        share = -(-left // (len(waiting) - index))
        size = min(span.end - span.start, share)
        left -= size
        if size:
            chosen.append(Span(span.topic, span.partition, span.start, span.start + size))
    return sorted(chosen, key=lambda span: (span.topic, span.partition))


def after(position: Position, read: list[Span]) -> Position:
    """The position behind what was read."""
    following = {name: _following(known) for name, known in position["topics"].items()}
    for span in read:
        following[span.topic][span.partition] = span.end
    return position_of({n: known["id"] for n, known in position["topics"].items()}, following)


def waiting(position: Position, topics: Mapping[str, Topic]) -> int:
    """How many offsets lie between a position and the end."""
    return sum(span.end - span.start for span in spans(position, topics, 1 << 62))


def _following(known: Mapping[str, Any] | None) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in (known or {"next": {}})["next"].items()}
