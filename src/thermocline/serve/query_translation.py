"""Translate a prepared query for the engine of an access path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from thermocline.engine.query_types import build_empty_select
from thermocline.engine.view_rewrite import private_view_name
from thermocline.serve.fleet.messages import TableVersion
from thermocline.serve.values import NO_SNAPSHOT, EngineName, LakeState
from thermocline.sql.translate import Engine, translate

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.serve.route import AccessPath
    from thermocline.sql.guard import GuardedQuery

DIALECTS: dict[EngineName, Engine] = {
    "hot": "duckdb", "direct": "duckdb", "spark": "spark", "trino": "trino",
}  # fmt: skip


class Translatable(Protocol):
    """A query and its cached translations by engine."""

    @property
    def query(self) -> GuardedQuery: ...
    @property
    def sql(self) -> dict[tuple[str, ...], str]: ...


def translate_query(
    prepared: Translatable, access_path: AccessPath, lake_state: LakeState, catalog: str
) -> tuple[str, Mapping[str, TableVersion]]:
    """Return the query in an engine's dialect, and the table versions behind its table names.

    `catalog` is the name of this lake's catalog in Trino. Raises Untranslatable.
    """
    heads = lake_state.table_heads
    hot_copies = lake_state.hot_copies.get(access_path.node or "", {})
    dialect = DIALECTS[access_path.engine]
    views: dict[str, TableVersion] = {}
    names: dict[str, exp.Expr | str] = {}
    for number, (table, snapshot) in enumerate(access_path.snapshots.items()):
        view = table if dialect == "duckdb" else private_view_name(f"asked_{number}")
        names[table] = view
        if snapshot == NO_SNAPSHOT:
            names[table] = build_empty_select(heads[table].columns)
            continue
        if dialect == "trino":
            names[table] = f"{catalog}.{table} FOR VERSION AS OF {snapshot}"
        since = (
            hot_copies[table].since if access_path.engine == "hot" and table in hot_copies else None
        )
        views[view] = TableVersion(table, snapshot, heads[table].metadata, since)
    snapshots = access_path.snapshots.items()
    columns: dict[str, Mapping[str, str]] | None
    columns = {t: found for t, each in snapshots if (found := heads[t].columns_at(each))}
    if len(columns) < len(access_path.snapshots):
        columns = None  # the schema was different then, so no types are known
    shapes = [] if columns is None else [heads[table].schema_fingerprint for table in columns]
    key = (dialect, *map(str, names.values()), *shapes)
    if key not in prepared.sql:
        prepared.sql.clear()
        prepared.sql[key] = translate(prepared.query, dialect, names, columns)
    return prepared.sql[key], views
