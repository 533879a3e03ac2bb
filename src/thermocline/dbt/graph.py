"""A dbt project's graph as values: the nodes of dbt's manifest, and what reads what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_EPHEMERAL, _VIEW = "ephemeral", "view"
_STATEFUL = {"incremental", "snapshot"}
_EXTERNAL = ("external_location", "plugin")
_RELATIONS = {"model", "seed", "snapshot", "source"}


@dataclass(frozen=True)
class DbtNode:
    """One model, seed, snapshot, source or test. `table` is the lake's table with its rows."""

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
    is_external: bool = False

    @property
    def has_relation(self) -> bool:
        """Whether dbt creates or finds a relation for it."""
        return self.kind in _RELATIONS and self.materialized != _EPHEMERAL

    @property
    def is_view(self) -> bool:
        """Whether it is a model materialized as a view."""
        return self.kind == "model" and self.materialized == _VIEW

    @property
    def is_stateful(self) -> bool:
        """Whether the next run works on the rows that the last one left."""
        return self.materialized in _STATEFUL

    def is_rebuilt(self, full_refresh: bool) -> bool:
        """Return whether it is rebuilt from scratch. Its own setting wins; snapshots never are."""
        if self.kind == "snapshot":
            return False
        return full_refresh if self.full_refresh is None else self.full_refresh


class DbtGraph:
    """All nodes of a project, by id."""

    def __init__(self, nodes: Iterable[DbtNode]) -> None:
        self.nodes = {node.id: node for node in nodes}

    def relations(self) -> list[DbtNode]:
        """Return the nodes that have a relation."""
        return [node for node in self.nodes.values() if node.has_relation]

    def find_writer(self, source: DbtNode) -> DbtNode | None:
        """Return the project's seed, model or snapshot that writes a source's table, if any."""
        made = (node for node in self.relations() if node.kind != "source")
        return next((node for node in made if node.relation == source.relation), None)

    def seeds_read_as_sources(self, selected: Collection[str]) -> list[DbtNode]:
        """Return the selected seeds whose tables the selection reads as sources."""
        read = {node.id: node for i in selected for node in self.reads(i) if node.kind == "source"}
        found = {w.id: w for node in read.values() if (w := self.find_writer(node)) is not None}
        return [node for node in found.values() if node.kind == "seed" and node.id in selected]

    def upstream_views(self, selected: Collection[str]) -> list[DbtNode]:
        """Return views outside a selection that it reads, directly or through each other.

        They are rebuilt before the selection runs: a view must show its sources' current rows, not
        the rows of the time when it last landed.
        """
        found: dict[str, DbtNode] = {}
        for node_id in selected:
            for parent in self._ancestors(node_id, lambda node: node.is_view):
                if parent.is_view and parent.id not in selected:
                    found[parent.id] = parent
        return list(found.values())

    def reads(self, node_id: str, through: Collection[str] = ()) -> list[DbtNode]:
        """Return the nearest relations that a node reads, skipping those in `through`."""
        found = self._ancestors(node_id, lambda node: node.id in through)
        unique = {node.id: node for node in found if node.has_relation and node.id not in through}
        return list(unique.values())

    def _ancestors(self, node_id: str, passes: Any) -> Iterator[DbtNode]:
        """Yield parents, and the parents of those that have no relation or that `passes` skips."""
        waiting, seen = list(self.nodes[node_id].parents), set()
        while waiting:
            parent = self.nodes.get(waiting.pop(0))
            if parent is None or parent.id in seen:
                continue
            seen.add(parent.id)
            yield parent
            if not parent.has_relation or passes(parent):
                waiting += parent.parents


def read_manifest(manifest: Any) -> DbtGraph:
    """Return the graph of a dbt manifest."""
    everything = {**manifest.nodes, **manifest.sources, **manifest.unit_tests}
    return DbtGraph(_node(node) for node in everything.values())


def _node(node: Any) -> DbtNode:
    kind = str(node.resource_type)
    parents = tuple(getattr(node, "depends_on_nodes", ()))
    if kind not in _RELATIONS:
        return DbtNode(node.unique_id, kind, node.name, ".".join(node.fqn), parents=parents)
    name = node.identifier if kind == "source" else node.alias
    return DbtNode(
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
        is_external=kind == "source" and _is_external(node),
    )


def _is_external(source: Any) -> bool:
    """Return whether dbt-duckdb reads a source itself: from files, or through another plugin."""
    meta = {**source.source_meta, **source.meta, **(source.config.get("meta") or {})}
    return any(source.config.get(name) or meta.get(name) for name in _EXTERNAL)
