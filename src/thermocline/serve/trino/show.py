"""SHOW, DESCRIBE and USE: answered from the catalog view, without an engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from thermocline.serve.trino.catalog_tables import CATALOGS, CatalogListing
from thermocline.serve.trino.client_session import PROPERTIES, ClientSession
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.serve.trino.like_pattern import LikePattern
from thermocline.serve.trino.name_resolution import check_catalog, qualify_name
from thermocline.serve.trino.statement_parser import StatementReader
from thermocline.serve.trino.statement_result import StatementResult, session_result, table_result
from thermocline.sql import allowlist
from thermocline.sql.guard import CATALOG_NAME, sanitize


def show(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult:
    """Answer a SHOW statement; `reader` is positioned after SHOW."""
    if reader.accept("CATALOGS"):
        return _list_names(reader, "Catalog", list(CATALOGS))
    if reader.accept_any("SCHEMAS", "DATABASES"):
        catalog = reader.read_name() if reader.accept_any("FROM", "IN") else session.catalog
        return _list_names(reader, "Schema", listing.schemas(check_catalog(catalog)))
    if reader.accept("TABLES"):
        catalog, schema = _schema(reader, session, listing)
        names = [name for of, name, _ in listing.tables(catalog) if of == schema]
        return _list_names(reader, "Table", names)
    if reader.accept("COLUMNS"):
        if not reader.accept_any("FROM", "IN"):
            raise reader.error("FROM is missing")
        return describe_table(reader, session, listing)
    if reader.accept("CREATE", "TABLE"):
        return _definition(reader, session, listing)
    if reader.accept("FUNCTIONS"):
        return _functions(reader)
    if reader.accept("SESSION"):
        return _session(reader, session)
    raise TrinoError(
        "NOT_SUPPORTED",
        "This SHOW is not supported.",
        "There are SHOW CATALOGS, SCHEMAS, TABLES, COLUMNS, CREATE TABLE, FUNCTIONS and SESSION.",
    )


def describe_table(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult:
    """Answer DESCRIBE and SHOW COLUMNS for the table whose name is next."""
    _, found = _read_table_name(reader, session, listing)
    matches = _read_filter(reader)
    return table_result(
        [(each, "varchar") for each in ("Column", "Type", "Extra", "Comment")],
        [(each, kind, "", "") for each, kind in found.items() if matches(each)],
    )


def _definition(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult:
    """Answer SHOW CREATE TABLE with the columns; storage details are not shown to clients."""
    parts, found = _read_table_name(reader, session, listing)
    reader.expect_end()
    names = ".".join(_quoted(part) for part in parts)
    columns = ",\n".join(f"   {_quoted(each)} {kind}" for each, kind in found.items())
    text = f"CREATE TABLE {names} (\n{columns}\n)"
    return table_result([("Create Table", "varchar")], [(text,)])


def _quoted(name: str) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def _read_table_name(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> tuple[tuple[str, str, str], Mapping[str, str]]:
    """Read a table name; return it and the columns of the table."""
    catalog, schema, name = qualify_name(reader.read_names(max_parts=3), session)
    found = listing.columns(catalog, schema, name)
    if found is None:
        _check_schema(catalog, schema, listing)
        raise TrinoError(
            "TABLE_NOT_FOUND",
            f"Table '{sanitize(f'{catalog}.{schema}.{name}')}' does not exist.",
            f"SHOW TABLES FROM {sanitize(schema)} lists those that do.",
        )
    return (catalog, schema, name), found


def use_schema(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> StatementResult:
    """Answer USE: set the client's schema, and its catalog if one is named."""
    parts = reader.read_names(max_parts=2)
    reader.expect_end()
    catalog = check_catalog(parts[0]) if len(parts) == 2 else session.catalog
    schema = _check_schema(check_catalog(catalog), parts[-1], listing)
    headers = {"X-Trino-Set-Catalog": catalog, "X-Trino-Set-Schema": schema}
    return session_result("USE", headers)


def _schema(
    reader: StatementReader, session: ClientSession, listing: CatalogListing
) -> tuple[str, str]:
    parts = reader.read_names(max_parts=2) if reader.accept_any("FROM", "IN") else []
    schema = parts[-1] if parts else session.schema
    if schema is None:
        raise TrinoError(
            "MISSING_SCHEMA_NAME",
            "Schema must be specified when session schema is not set.",
            "Write SHOW TABLES FROM a layer, or USE one first.",
        )
    catalog = check_catalog(parts[0] if len(parts) == 2 else session.catalog)
    return catalog, _check_schema(catalog, schema, listing)


def _check_schema(catalog: str, schema: str, listing: CatalogListing) -> str:
    if schema not in listing.schemas(catalog):
        raise TrinoError(
            "SCHEMA_NOT_FOUND",
            f"Schema '{sanitize(schema)}' does not exist.",
            f"SHOW SCHEMAS FROM {CATALOG_NAME} lists those that do.",
        )
    return schema


def _read_filter(reader: StatementReader) -> Callable[[str], bool]:
    """Read an optional LIKE; return the filter of names."""
    if not reader.accept("LIKE"):
        reader.expect_end()
        return lambda name: True
    pattern = reader.read_string()
    escape = reader.read_string() if reader.accept("ESCAPE") else None
    reader.expect_end()
    return LikePattern(pattern, escape).matches


def _list_names(reader: StatementReader, title: str, names: list[str]) -> StatementResult:
    matches = _read_filter(reader)
    return table_result([(title, "varchar")], [(name,) for name in names if matches(name)])


def _session(reader: StatementReader, session: ClientSession) -> StatementResult:
    matches = _read_filter(reader)
    titles = ("Name", "Value", "Default", "Type", "Description")
    rows = [
        (name, session.properties.get(name, each.default), each.default, each.kind,
         each.description)
        for name, each in sorted(PROPERTIES.items())
        if matches(name)
    ]  # fmt: skip
    return table_result([(title, "varchar") for title in titles], rows)


def _functions(reader: StatementReader) -> StatementResult:
    from sqlglot import exp

    if reader.accept_any("FROM", "IN"):
        reader.read_names(max_parts=2)
    matches = _read_filter(reader)
    found = dict.fromkeys(allowlist.ANONYMOUS_FUNCTIONS, "scalar")
    for kind in allowlist.FUNCTIONS:
        node = getattr(exp, kind, None)
        if node is not None:
            sort = "aggregate" if issubclass(node, exp.AggFunc) else "scalar"
            found.update(dict.fromkeys((name.lower() for name in node.sql_names()), sort))
    titles = [("Function", "varchar"), ("Return Type", "varchar"), ("Argument Types", "varchar"),
              ("Function Type", "varchar"), ("Deterministic", "boolean"),
              ("Description", "varchar")]  # fmt: skip
    rows = [(name, "", "", sort, True, "") for name, sort in sorted(found.items()) if matches(name)]
    return table_result(titles, rows)
