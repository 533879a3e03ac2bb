"""A dbt project's graph as values: what dbt's manifest says of each node, and who reads what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_EPHEMERAL, _VIEW = "ephemeral", "view"
_STATEFUL = {"incremental", "snapshot"}
_EXTERNAL = ("external_location", "plugin")
_RELATIONS = {"model", "seed", "snapshot", "source"}


@dataclass(frozen=True)
class Node:
    """One model, seed, snapshot, source or test. `table` is where its rows are in the lake."""

    id: str
    kind: str
    name: str
    path: str
    table: str = ""
    relation: tuple[str, str, str] = ("", "", "")
    materialized: str = ""
    parents: tuple[str, ...] = ()
    description: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    full_refresh: bool | None = None
    external: bool = False

    @property
    def stored(self) -> bool:
        """Whether dbt makes or finds a relation for it."""
        return self.kind in _RELATIONS and self.materialized != _EPHEMERAL

    @property
    def is_view(self) -> bool:
        """Whether it only shows what it reads."""
        return self.kind == "model" and self.materialized == _VIEW

    @property
    def stateful(self) -> bool:
        """Whether the next run works on the rows that the last one left."""
        return self.materialized in _STATEFUL

    def rebuilt(self, full_refresh: bool) -> bool:
        """Whether it is made from nothing. Its own setting wins; a snapshot keeps its history."""
        if self.kind == "snapshot":
            return False
        return full_refresh if self.full_refresh is None else self.full_refresh


class Graph:
    """All nodes of a project by id."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}

    def relations(self) -> list[Node]:
        """The nodes whose rows are somewhere."""
        return [node for node in self.nodes.values() if node.stored]

    def writer_of(self, source: Node) -> Node | None:
        """The seed, model or snapshot of the project that makes a source's table, if one does."""
        made = (node for node in self.relations() if node.kind != "source")
        return next((node for node in made if node.relation == source.relation), None)

    def seeds_read_as_sources(self, selected: Collection[str]) -> list[Node]:
        """The selected seeds whose tables the selection reads as sources, by the same names."""
        read = {node.id: node for i in selected for node in self.reads(i) if node.kind == "source"}
        found = {w.id: w for node in read.values() if (w := self.writer_of(node)) is not None}
        return [node for node in found.values() if node.kind == "seed" and node.id in selected]

    def live_views(self, selected: Collection[str]) -> list[Node]:
        """Views outside a selection that it reads, directly or through each other.

        They are made anew before the selection runs: a view shows its sources as they are now,
        and not as they were when it last landed.
        """
        found: dict[str, Node] = {}
        for node_id in selected:
            for parent in self._above(node_id, lambda node: node.is_view):
                if parent.is_view and parent.id not in selected:
                    found[parent.id] = parent
        return list(found.values())

    def reads(self, node_id: str, through: Collection[str] = ()) -> list[Node]:
        """The nearest relations that a node reads, looking through those in `through`."""
        found = self._above(node_id, lambda node: node.id in through)
        unique = {node.id: node for node in found if node.stored and node.id not in through}
        return list(unique.values())

    def _above(self, node_id: str, passes: Any) -> Iterator[Node]:
        """Parents, and the parents of those that hold no rows or that `passes` looks through."""
        waiting, seen = list(self.nodes[node_id].parents), set()
        while waiting:
            parent = self.nodes.get(waiting.pop(0))
            if parent is None or parent.id in seen:
                continue
            seen.add(parent.id)
            yield parent
            if not parent.stored or passes(parent):
                waiting += parent.parents


def read(manifest: Any) -> Graph:
    """The graph in a manifest of dbt."""
    everything = {**manifest.nodes, **manifest.sources, **manifest.unit_tests}
    return Graph(_node(node) for node in everything.values())


def _node(node: Any) -> Node:
    kind = str(node.resource_type)
    parents = tuple(getattr(node, "depends_on_nodes", ()))
    if kind not in _RELATIONS:
        return Node(node.unique_id, kind, node.name, ".".join(node.fqn), parents=parents)
    name = node.identifier if kind == "source" else node.alias
    return Node(
        id=node.unique_id,
        kind=kind,
        name=node.name,
        path=".".join(node.fqn),
        table=f"{node.schema}.{name}",
        relation=(node.database or "", node.schema, name),
        materialized=kind if kind in {"source", "seed"} else node.config.materialized,
        parents=parents,
        description=" ".join(node.description.split()),
        columns={c.name.lower(): " ".join(c.description.split()) for c in node.columns.values()},
        full_refresh=getattr(node.config, "full_refresh", None),
        external=kind == "source" and _is_external(node),
    )


def _is_external(source: Any) -> bool:
    """Whether dbt-duckdb reads a source itself: from files, or by another plugin."""
    said = {**source.source_meta, **source.meta, **(source.config.get("meta") or {})}
    return any(source.config.get(name) or said.get(name) for name in _EXTERNAL)
