"""SHOW and DESCRIBE: lists that are answered from what is known, without any engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from thermocline.serve.trino import outcome
from thermocline.serve.trino.catalog_tables import CATALOGS, Lake
from thermocline.serve.trino.faults import Faulty
from thermocline.serve.trino.likeness import Like
from thermocline.serve.trino.outcome import Outcome
from thermocline.serve.trino.resolve import known, location
from thermocline.serve.trino.sessions import PROPERTIES, Session
from thermocline.serve.trino.words import Words
from thermocline.sql import allowlist
from thermocline.sql.guard import CATALOG_NAME, sanitize


def show(words: Words, session: Session, lake: Lake) -> Outcome:
    """Answer a SHOW, whose words after the first are given."""
    if words.took("CATALOGS"):
        return _listed(words, "Catalog", list(CATALOGS))
    if words.took_one("SCHEMAS", "DATABASES"):
        catalog = words.name() if words.took_one("FROM", "IN") else session.catalog
        return _listed(words, "Schema", lake.schemas(known(catalog)))
    if words.took("TABLES"):
        catalog, schema = _schema(words, session, lake)
        names = [name for of, name, _ in lake.tables(catalog) if of == schema]
        return _listed(words, "Table", names)
    if words.took("COLUMNS"):
        if not words.took_one("FROM", "IN"):
            raise words.wrong("FROM is missing")
        return columns(words, session, lake)
    if words.took("CREATE", "TABLE"):
        return _definition(words, session, lake)
    if words.took("FUNCTIONS"):
        return _functions(words)
    if words.took("SESSION"):
        return _session(words, session)
    raise Faulty(
        "NOT_SUPPORTED",
        "This SHOW cannot be answered here.",
        "There are SHOW CATALOGS, SCHEMAS, TABLES, COLUMNS, CREATE TABLE, FUNCTIONS and SESSION.",
    )


def columns(words: Words, session: Session, lake: Lake) -> Outcome:
    """The columns of the table whose name is next: DESCRIBE, and SHOW COLUMNS."""
    _, found = _named_table(words, session, lake)
    wanted = _wanted(words)
    return outcome.table(
        [(each, "varchar") for each in ("Column", "Type", "Extra", "Comment")],
        [(each, kind, "", "") for each, kind in found.items() if wanted(each)],
    )


def _definition(words: Words, session: Session, lake: Lake) -> Outcome:
    """SHOW CREATE TABLE: its columns; how and where it is kept is not for clients to know."""
    parts, found = _named_table(words, session, lake)
    words.end()
    names = ".".join(_quoted(part) for part in parts)
    columns = ",\n".join(f"   {_quoted(each)} {kind}" for each, kind in found.items())
    text = f"CREATE TABLE {names} (\n{columns}\n)"
    return outcome.table([("Create Table", "varchar")], [(text,)])


def _quoted(name: str) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def _named_table(
    words: Words, session: Session, lake: Lake
) -> tuple[tuple[str, str, str], Mapping[str, str]]:
    """The table whose name is next, and its columns."""
    catalog, schema, name = location(words.names(most=3), session)
    found = lake.columns(catalog, schema, name)
    if found is None:
        _existing(catalog, schema, lake)
        raise Faulty(
            "TABLE_NOT_FOUND",
            f"Table '{sanitize(f'{catalog}.{schema}.{name}')}' does not exist.",
            f"SHOW TABLES FROM {sanitize(schema)} lists those that do.",
        )
    return (catalog, schema, name), found


def use(words: Words, session: Session, lake: Lake) -> Outcome:
    """USE: the client is to remember a schema, and the catalog if one is named."""
    parts = words.names(most=2)
    words.end()
    catalog = known(parts[0]) if len(parts) == 2 else session.catalog
    schema = _existing(known(catalog), parts[-1], lake)
    headers = {"X-Trino-Set-Catalog": catalog, "X-Trino-Set-Schema": schema}
    return outcome.done("USE", headers)


def _schema(words: Words, session: Session, lake: Lake) -> tuple[str, str]:
    parts = words.names(most=2) if words.took_one("FROM", "IN") else []
    schema = parts[-1] if parts else session.schema
    if schema is None:
        raise Faulty(
            "MISSING_SCHEMA_NAME",
            "Schema must be specified when session schema is not set.",
            "Write SHOW TABLES FROM a layer, or USE one first.",
        )
    catalog = known(parts[0] if len(parts) == 2 else session.catalog)
    return catalog, _existing(catalog, schema, lake)


def _existing(catalog: str, schema: str, lake: Lake) -> str:
    if schema not in lake.schemas(catalog):
        raise Faulty(
            "SCHEMA_NOT_FOUND",
            f"Schema '{sanitize(schema)}' does not exist.",
            f"SHOW SCHEMAS FROM {CATALOG_NAME} lists those that do.",
        )
    return schema


def _wanted(words: Words) -> Callable[[str], bool]:
    """What LIKE asks of a name; everything is wanted where there is no LIKE."""
    if not words.took("LIKE"):
        words.end()
        return lambda name: True
    pattern = words.string()
    escape = words.string() if words.took("ESCAPE") else None
    words.end()
    return Like(pattern, escape)


def _listed(words: Words, title: str, names: list[str]) -> Outcome:
    wanted = _wanted(words)
    return outcome.table([(title, "varchar")], [(name,) for name in names if wanted(name)])


def _session(words: Words, session: Session) -> Outcome:
    wanted = _wanted(words)
    titles = ("Name", "Value", "Default", "Type", "Description")
    rows = [
        (name, session.properties.get(name, each.default), each.default, each.kind,
         each.description)
        for name, each in sorted(PROPERTIES.items())
        if wanted(name)
    ]  # fmt: skip
    return outcome.table([(title, "varchar") for title in titles], rows)


def _functions(words: Words) -> Outcome:
    from sqlglot import exp

    if words.took_one("FROM", "IN"):
        words.names(most=2)
    wanted = _wanted(words)
    found = dict.fromkeys(allowlist.ANONYMOUS_FUNCTIONS, "scalar")
    for kind in allowlist.FUNCTIONS:
        node = getattr(exp, kind, None)
        if node is not None:
            sort = "aggregate" if issubclass(node, exp.AggFunc) else "scalar"
            found.update(dict.fromkeys((name.lower() for name in node.sql_names()), sort))
    titles = [("Function", "varchar"), ("Return Type", "varchar"), ("Argument Types", "varchar"),
              ("Function Type", "varchar"), ("Deterministic", "boolean"),
              ("Description", "varchar")]  # fmt: skip
    rows = [(name, "", "", sort, True, "") for name, sort in sorted(found.items()) if wanted(name)]
    return outcome.table(titles, rows)
