"""The catalog tables: information_schema and the tables of `system` that drivers query.

Each has a list of columns and a function that builds its rows from the tables of the lake. Tables
that are always empty (views, procedures, roles) exist because drivers query them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from thermocline.serve.trino import type_names
from thermocline.serve.values import TableHead
from thermocline.sql.guard import CATALOG_NAME

SYSTEM = "system"
VERSION = "476-thermocline"
"""The Trino version whose protocol this is: drivers adapt to the number."""

Cell = str | int | bool | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class CatalogListing:
    """The tables of the lake that the catalog tables list, by layer and name."""

    heads: Mapping[str, TableHead]

    def schemas(self, catalog: str) -> list[str]:
        """Return the schemas of a catalog: the layers, and those of every catalog."""
        if catalog == SYSTEM:
            return sorted({schema for schema, _ in CATALOG_TABLES})
        return sorted({table.split(".")[0] for table in self.heads} | {"information_schema"})

    def tables(self, catalog: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield schema, name and columns (with Trino's types) of each table of a catalog."""
        lists = sorted(CATALOG_TABLES.items())
        for (schema, name), listed in lists:
            if (schema == "information_schema") or catalog == SYSTEM:
                yield schema, name, dict(listed.visible)
        if catalog == CATALOG_NAME:
            for table, head in sorted(self.heads.items()):
                schema, _, name = table.partition(".")
                columns = {
                    each: type_names.trino_type_name(kind) for each, kind in head.columns.items()
                }
                yield schema, name, columns

    def columns(self, catalog: str, schema: str, name: str) -> Mapping[str, str] | None:
        """Return the columns of a table, or None when it does not exist."""
        for each in self.tables(catalog):
            if each[:2] == (schema, name):
                return each[2]
        return None


CATALOGS = (CATALOG_NAME, SYSTEM)


@dataclass(frozen=True)
class CatalogTable:
    """A catalog table. `hidden` columns are only returned when they are named."""

    columns: tuple[tuple[str, str], ...]
    rows: Callable[[CatalogListing, str], Iterable[Row]]
    hidden: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[tuple[str, str], ...]:
        """The columns that * selects."""
        return tuple(each for each in self.columns if each[0] not in self.hidden)


def _columns_of(names: str, *numbers: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "bigint" if name in numbers else "varchar") for name in names.split())


def _no_rows(listing: CatalogListing, catalog: str) -> Iterable[Row]:
    return ()


def _resolve_tables(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for schema, name, _ in listing.tables(catalog):
        yield catalog, schema, name, "BASE TABLE"


def _columns(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for schema, table, columns in listing.tables(catalog):
        for place, (name, kind) in enumerate(columns.items(), start=1):
            yield catalog, schema, table, name, place, None, "YES", kind, None


def _schemata(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for schema in listing.schemas(catalog):
        yield catalog, schema


def _jdbc_catalogs(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for name in CATALOGS:
        yield (name,)


def _jdbc_schemas(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for name in CATALOGS:
        for schema in listing.schemas(name):
            yield schema, name


def _jdbc_tables(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, name, _ in listing.tables(of):
            kind = (
                "TABLE" if of == CATALOG_NAME and schema != "information_schema" else "SYSTEM TABLE"
            )
            yield of, schema, name, kind, None, None, None, None, None, None


def _jdbc_columns(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, table, columns in listing.tables(of):
            for place, (name, word) in enumerate(columns.items(), start=1):
                number, size, digits, radix = type_names.jdbc_type(word)
                octets = size if number in {1, 12, -3} else None
                yield (
                    *(of, schema, table, name, number, word, size, 0, digits, radix),
                    *(2, None, None, None, None, octets, place, "", None, None, None),
                    *(None, None, None),
                )


def _jdbc_types(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    words = [
        *("boolean", "tinyint", "smallint", "integer", "bigint", "real", "double", "varchar"),
        *("varbinary", "date", "time(6)", "timestamp(6)", "decimal(38,0)", "uuid", "json"),
    ]
    for word in [*words, "timestamp(6) with time zone"]:
        number, size, _, radix = type_names.jdbc_type(word)
        name = word.partition("(")[0] + word.partition(")")[2]
        text = name in {"varchar", "varbinary", "json"}
        yield (
            *(name, number, size, "'" if text else None, "'" if text else None, None, 1, text, 3),
            *(None, False, None, None, 0, 0, None, None, radix),
        )


def _comments(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, name, _ in listing.tables(of):
            yield of, schema, name, None


def _connectors(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    yield CATALOG_NAME, CATALOG_NAME, "iceberg"
    yield SYSTEM, SYSTEM, "system"


def _nodes(listing: CatalogListing, catalog: str) -> Iterator[Row]:
    yield "thermocline", "", VERSION, True, "active"


_PROPERTIES = CatalogTable(
    _columns_of("catalog_name property_name default_value type description"), _no_rows
)

CATALOG_TABLES: dict[tuple[str, str], CatalogTable] = {
    ("information_schema", "tables"): CatalogTable(
        _columns_of("table_catalog table_schema table_name table_type"), _resolve_tables
    ),
    ("information_schema", "columns"): CatalogTable(
        _columns_of(
            "table_catalog table_schema table_name column_name ordinal_position column_default "
            "is_nullable data_type comment",
            "ordinal_position",
        ),
        _columns,
        hidden=("comment",),
    ),
    ("information_schema", "schemata"): CatalogTable(
        _columns_of("catalog_name schema_name"), _schemata
    ),
    ("information_schema", "views"): CatalogTable(
        _columns_of("table_catalog table_schema table_name view_definition"), _no_rows
    ),
    ("information_schema", "table_privileges"): CatalogTable(
        _columns_of(
            "grantor grantor_type grantee grantee_type table_catalog table_schema table_name "
            "privilege_type is_grantable with_hierarchy"
        ),
        _no_rows,
    ),
    ("information_schema", "roles"): CatalogTable(_columns_of("role_name"), _no_rows),
    ("information_schema", "enabled_roles"): CatalogTable(_columns_of("role_name"), _no_rows),
    ("information_schema", "applicable_roles"): CatalogTable(
        _columns_of("grantee grantee_type role_name is_grantable"), _no_rows
    ),
    ("jdbc", "catalogs"): CatalogTable(_columns_of("table_cat"), _jdbc_catalogs),
    ("jdbc", "schemas"): CatalogTable(_columns_of("table_schem table_catalog"), _jdbc_schemas),
    ("jdbc", "tables"): CatalogTable(
        _columns_of(
            "table_cat table_schem table_name table_type remarks type_cat type_schem type_name "
            "self_referencing_col_name ref_generation"
        ),
        _jdbc_tables,
    ),
    ("jdbc", "columns"): CatalogTable(
        _columns_of(
            "table_cat table_schem table_name column_name data_type type_name column_size "
            "buffer_length decimal_digits num_prec_radix nullable remarks column_def "
            "sql_data_type sql_datetime_sub char_octet_length ordinal_position is_nullable "
            "scope_catalog scope_schema scope_table source_data_type is_autoincrement "
            "is_generatedcolumn",
            *("data_type", "column_size", "buffer_length", "decimal_digits", "num_prec_radix"),
            *("nullable", "sql_data_type", "sql_datetime_sub", "char_octet_length"),
            *("ordinal_position", "source_data_type"),
        ),
        _jdbc_columns,
    ),
    ("jdbc", "types"): CatalogTable(
        (
            *(("type_name", "varchar"), ("data_type", "bigint"), ("precision", "bigint")),
            *_columns_of("literal_prefix literal_suffix create_params"),
            *(("nullable", "bigint"), ("case_sensitive", "boolean"), ("searchable", "bigint")),
            *(("unsigned_attribute", "boolean"), ("fixed_prec_scale", "boolean")),
            *(("auto_increment", "boolean"), ("local_type_name", "varchar")),
            *((name, "bigint") for name in ("minimum_scale", "maximum_scale", "sql_data_type")),
            *(("sql_datetime_sub", "bigint"), ("num_prec_radix", "bigint")),
        ),
        _jdbc_types,
    ),
    ("jdbc", "table_types"): CatalogTable(
        _columns_of("table_type"),
        lambda listing, catalog: (("TABLE",), ("SYSTEM TABLE",), ("VIEW",)),
    ),
    ("jdbc", "attributes"): CatalogTable(
        _columns_of(
            "type_cat type_schem type_name attr_name data_type attr_type_name attr_size "
            "decimal_digits num_prec_radix nullable remarks attr_def sql_data_type "
            "sql_datetime_sub char_octet_length ordinal_position is_nullable scope_catalog "
            "scope_schema scope_table source_data_type",
            *("data_type", "attr_size", "decimal_digits", "num_prec_radix", "nullable"),
            *("sql_data_type", "sql_datetime_sub", "char_octet_length", "ordinal_position"),
            "source_data_type",
        ),
        _no_rows,
    ),
    ("jdbc", "primary_keys"): CatalogTable(
        _columns_of("table_cat table_schem table_name column_name key_seq pk_name", "key_seq"),
        _no_rows,
    ),
    ("jdbc", "procedures"): CatalogTable(
        _columns_of(
            "procedure_cat procedure_schem procedure_name remarks procedure_type specific_name",
            "procedure_type",
        ),
        _no_rows,
    ),
    ("jdbc", "procedure_columns"): CatalogTable(
        _columns_of(
            "procedure_cat procedure_schem procedure_name column_name column_type data_type "
            "type_name precision length scale radix nullable remarks column_def sql_data_type "
            "sql_datetime_sub char_octet_length ordinal_position is_nullable specific_name",
            *("column_type", "data_type", "precision", "length", "scale", "radix", "nullable"),
            *("sql_data_type", "sql_datetime_sub", "char_octet_length", "ordinal_position"),
        ),
        _no_rows,
    ),
    ("jdbc", "pseudo_columns"): CatalogTable(
        _columns_of(
            "table_cat table_schem table_name column_name data_type column_size decimal_digits "
            "num_prec_radix column_usage remarks char_octet_length is_nullable",
            *("data_type", "column_size", "decimal_digits", "num_prec_radix"),
            "char_octet_length",
        ),
        _no_rows,
    ),
    ("jdbc", "super_tables"): CatalogTable(
        _columns_of("table_cat table_schem table_name supertable_name"), _no_rows
    ),
    ("jdbc", "super_types"): CatalogTable(
        _columns_of("type_cat type_schem type_name supertype_cat supertype_schem supertype_name"),
        _no_rows,
    ),
    ("jdbc", "udts"): CatalogTable(
        _columns_of(
            "type_cat type_schem type_name class_name data_type remarks base_type",
            *("data_type", "base_type"),
        ),
        _no_rows,
    ),
    ("metadata", "catalogs"): CatalogTable(
        _columns_of("catalog_name connector_id connector_name"), _connectors
    ),
    ("metadata", "table_comments"): CatalogTable(
        _columns_of("catalog_name schema_name table_name comment"), _comments
    ),
    ("metadata", "materialized_views"): CatalogTable(
        _columns_of(
            "catalog_name schema_name name storage_catalog storage_schema storage_table freshness "
            "last_fresh_time comment definition"
        ),
        _no_rows,
    ),
    **{
        ("metadata", f"{of}_properties"): _PROPERTIES
        for of in ("table", "schema", "column", "analyze")
    },
    ("runtime", "nodes"): CatalogTable(
        (
            *_columns_of("node_id http_uri node_version"),
            ("coordinator", "boolean"),
            ("state", "varchar"),
        ),
        _nodes,
    ),
}
"""By schema and name. information_schema exists in every catalog, the others in `system`."""
