"""A prepared question in the words of the engine that a route names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from thermocline.engine.query_types import no_rows
from thermocline.engine.relations import private
from thermocline.serve.fleet.messages import Reading
from thermocline.serve.terms import NO_SNAPSHOT, EngineName, Lookout
from thermocline.sql.translate import Engine, translate

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.serve.route import Way
    from thermocline.sql.guard import Question

DIALECTS: dict[EngineName, Engine] = {
    "hot": "duckdb", "direct": "duckdb", "spark": "spark", "trino": "trino",
}  # fmt: skip


class Phrasable(Protocol):
    """A question, and its translations by engine as far as they were asked for."""

    @property
    def question(self) -> Question: ...
    @property
    def sql(self) -> dict[tuple[str, ...], str]: ...


def phrased(
    prepared: Phrasable, way: Way, lookout: Lookout, catalog: str
) -> tuple[str, Mapping[str, Reading]]:
    """Return the query in an engine's words, and what its table names stand for.

    `catalog` is how Trino calls this lake. Raises Unfaithful.
    """
    heads = lookout.heads
    held = lookout.held.get(way.node or "", {})
    dialect = DIALECTS[way.engine]
    views: dict[str, Reading] = {}
    names: dict[str, exp.Expr | str] = {}
    for number, (table, snapshot) in enumerate(way.snapshots.items()):
        view = table if dialect == "duckdb" else private(f"asked_{number}")
        names[table] = view
        if snapshot == NO_SNAPSHOT:
            names[table] = no_rows(heads[table].columns)
            continue
        if dialect == "trino":
            names[table] = f"{catalog}.{table} FOR VERSION AS OF {snapshot}"
        since = held[table].since if way.engine == "hot" and table in held else None
        views[view] = Reading(table, snapshot, heads[table].metadata, since)
    asked = way.snapshots.items()
    columns: dict[str, Mapping[str, str]] | None
    columns = {t: found for t, each in asked if (found := heads[t].columns_at(each))}
    if len(columns) < len(way.snapshots):
        columns = None  # it was another table then, and nothing is concluded of it
    shapes = [] if columns is None else [heads[table].shape for table in columns]
    key = (dialect, *map(str, names.values()), *shapes)
    if key not in prepared.sql:
        prepared.sql.clear()
        prepared.sql[key] = translate(prepared.question, dialect, names, columns)
    return prepared.sql[key], views
