"""Lanes: kinds of sources that events are sent to, each with its own tables and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput
from thermocline.torture.lanes.files import FilesLane
from thermocline.torture.lanes.kafka import KafkaLane
from thermocline.torture.lanes.lane import Lane
from thermocline.torture.lanes.postgres import PostgresLane
from thermocline.torture.workload import Workload

if TYPE_CHECKING:
    from thermocline.ingest.source import Source

__all__ = ["FilesLane", "KafkaLane", "Lane", "PostgresLane", "lanes_for"]


def lanes_for(
    sources: Iterable[Source], selected: Sequence[str], workload: Workload, name: str
) -> list[Lane]:
    """Return the selected lanes that a project's sources allow, by default all.

    Files are always possible; Kafka if a source names a broker, Postgres if one names a database.
    """
    connections: dict[str, Any] = {}
    for source in sources:
        connections.setdefault(source.kind, source.connection)
    makers: dict[str, Callable[[], Lane]] = {"files": lambda: FilesLane(workload)}
    if broker := connections.get("kafka"):
        makers["kafka"] = lambda: KafkaLane(
            workload, f"torture-{name}", broker.servers, broker.options
        )
    if database := connections.get("postgres"):
        makers["postgres"] = lambda: PostgresLane(workload.readable(), f"torture_{name}", database)
    unknown = [lane for lane in selected if lane not in makers]
    if unknown:
        raise BadInput(
            f"There is no lane {', '.join(unknown)} here.",
            f"There are: {', '.join(makers)}. Others need a source of their kind in the project.",
        )
    return [make() for lane, make in makers.items() if not selected or lane in selected]
