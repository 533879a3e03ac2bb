"""Tables and types of the source, read from its system catalog for the capture worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thermocline.ingest.postgres.events import TableColumn, TableRelation
from thermocline.ingest.postgres.pgoutput import Relation
from thermocline.ingest.postgres.value_encoders import PgType, ValueEncoders


class SourceCatalog:
    """Tables and types of one database, queried over a separate connection."""

    def __init__(self, connection: Any, publication: str) -> None:
        self._connection = connection
        self._publication = publication
        self._encoders = ValueEncoders(self._read_type)

    def describe_relation(self, relation: Relation) -> TableRelation:
        """Return the table of a change; look up its types and its key."""
        columns = tuple(
            TableColumn(c.name, self._encoders.for_type(c.type, c.modifier), c.in_identity)
            for c in relation.columns
        )
        if relation.identity in {"d", "i"}:
            names = tuple(c.name for c in columns if c.in_identity)
            key = self._in_key_order(relation.schema, relation.name, names)
        else:
            key = self._primary_key(relation.schema, relation.name)
        return TableRelation(relation.schema, relation.name, columns, key)

    def describe_table(self, schema: str, name: str) -> tuple[TableRelation, str]:
        """Return the current table, and the row filter of the publication."""
        columns = self._query(_COLUMNS, (schema, name))
        published, rows = self._read_publication(schema, name)
        selected = [c for c in columns if (c[0] in published if published else not c[3])]
        identity = self._query(_IDENTITY, (schema, name))[0]
        key = tuple(identity[1] or ()) if identity[0] == "i" else self._primary_key(schema, name)
        encoded = tuple(TableColumn(c[0], self._encoders.for_type(c[1], c[2])) for c in selected)
        return TableRelation(schema, name, encoded, key), rows

    def _read_publication(self, schema: str, name: str) -> tuple[Sequence[str], str]:
        if self._connection.server_version < 150_000:
            return (), ""
        found = self._query(
            "select attnames::text[], coalesce(rowfilter, '') from pg_publication_tables "
            "where pubname = %s and schemaname = %s and tablename = %s",
            (self._publication, schema, name),
        )
        return found[0] if found else ((), "")

    def _primary_key(self, schema: str, name: str) -> tuple[str, ...]:
        found = self._query(_PRIMARY_KEY, (schema, name))
        return tuple(found[0][0] or ()) if found else ()

    def _in_key_order(self, schema: str, name: str, names: tuple[str, ...]) -> tuple[str, ...]:
        ordered = self._primary_key(schema, name)
        return ordered if set(ordered) == set(names) else names

    def _read_type(self, oid: int) -> PgType | None:
        found = self._query(_TYPE, (oid,))
        return PgType(*found[0]) if found else None

    def _query(self, statement: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows


def quote_name(*parts: str) -> str:
    """Quote the parts of a name as SQL identifiers, joined by dots."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


_NAMED = "from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s"  # noqa: E501

_COLUMNS = f"""
select a.attname::text, a.atttypid::int8, a.atttypmod, a.attgenerated <> ''
from pg_attribute a where a.attrelid = (select c.oid {_NAMED})
and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_PRIMARY_KEY = f"""
select array_agg(a.attname::text order by array_position(i.indkey::int2[], a.attnum))
from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
where i.indisprimary and i.indrelid = (select c.oid {_NAMED})
"""
_IDENTITY = f"""
select c.relreplident::text, (
    select array_agg(a.attname::text order by array_position(i.indkey::int2[], a.attnum))
    from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    where i.indisreplident and i.indrelid = c.oid)
{_NAMED}
"""
_TYPE = """
select t.typname::text, n.nspname = 'pg_catalog', t.typcategory::text,
    case when t.typlen = -1 then t.typelem else 0 end::int8, coalesce(e.typdelim, ',')::text,
    t.typbasetype::int8, t.typtypmod
from pg_type t join pg_namespace n on n.oid = t.typnamespace
left join pg_type e on e.oid = t.typelem where t.oid = %s
"""
