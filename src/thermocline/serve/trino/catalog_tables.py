"""The tables that tell of tables: information_schema and what drivers ask of `system`.

Each is a list of columns and a way to make its rows from what is known of the lake. Lists that
are empty in any lake (views, procedures, roles) are there because drivers ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from thermocline.serve.trino import kinds
from thermocline.serve.values import TableHead
from thermocline.sql.guard import CATALOG_NAME

SYSTEM = "system"
VERSION = "476-thermocline"
"""The Trino whose protocol this is: drivers compare the number with what they can."""

Cell = str | int | bool | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Lake:
    """What is to be listed: the tables of the lake, by layer and name."""

    heads: Mapping[str, TableHead]

    def schemas(self, catalog: str) -> list[str]:
        """The schemas of a catalog: the layers, and what every catalog has."""
        if catalog == SYSTEM:
            return sorted({schema for schema, _ in LISTS})
        return sorted({table.split(".")[0] for table in self.heads} | {"information_schema"})

    def tables(self, catalog: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Schema, name and columns (with Trino's types) of each table of a catalog."""
        lists = sorted(LISTS.items())
        for (schema, name), listed in lists:
            if (schema == "information_schema") or catalog == SYSTEM:
                yield schema, name, dict(listed.visible)
        if catalog == CATALOG_NAME:
            for table, head in sorted(self.heads.items()):
                schema, _, name = table.partition(".")
                columns = {each: kinds.of_column(kind) for each, kind in head.columns.items()}
                yield schema, name, columns

    def columns(self, catalog: str, schema: str, name: str) -> Mapping[str, str] | None:
        """The columns of a table, if there is such a table."""
        for each in self.tables(catalog):
            if each[:2] == (schema, name):
                return each[2]
        return None


CATALOGS = (CATALOG_NAME, SYSTEM)


@dataclass(frozen=True)
class Listed:
    """A table that tells of tables. `hidden` columns are only there when they are named."""

    columns: tuple[tuple[str, str], ...]
    rows: Callable[[Lake, str], Iterable[Row]]
    hidden: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[tuple[str, str], ...]:
        """The columns that * stands for."""
        return tuple(each for each in self.columns if each[0] not in self.hidden)


def _texts(names: str, *numbers: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "bigint" if name in numbers else "varchar") for name in names.split())


def _nothing(lake: Lake, catalog: str) -> Iterable[Row]:
    return ()


def _tables(lake: Lake, catalog: str) -> Iterator[Row]:
    for schema, name, _ in lake.tables(catalog):
        yield catalog, schema, name, "BASE TABLE"


def _columns(lake: Lake, catalog: str) -> Iterator[Row]:
    for schema, table, columns in lake.tables(catalog):
        for place, (name, kind) in enumerate(columns.items(), start=1):
            yield catalog, schema, table, name, place, None, "YES", kind, None


def _schemata(lake: Lake, catalog: str) -> Iterator[Row]:
    for schema in lake.schemas(catalog):
        yield catalog, schema


def _jdbc_catalogs(lake: Lake, catalog: str) -> Iterator[Row]:
    for name in CATALOGS:
        yield (name,)


def _jdbc_schemas(lake: Lake, catalog: str) -> Iterator[Row]:
    for name in CATALOGS:
        for schema in lake.schemas(name):
            yield schema, name


def _jdbc_tables(lake: Lake, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, name, _ in lake.tables(of):
            kind = (
                "TABLE" if of == CATALOG_NAME and schema != "information_schema" else "SYSTEM TABLE"
            )
            yield of, schema, name, kind, None, None, None, None, None, None


def _jdbc_columns(lake: Lake, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, table, columns in lake.tables(of):
            for place, (name, word) in enumerate(columns.items(), start=1):
                number, size, digits, radix = kinds.jdbc(word)
                octets = size if number in {1, 12, -3} else None
                yield (
                    *(of, schema, table, name, number, word, size, 0, digits, radix),
                    *(2, None, None, None, None, octets, place, "", None, None, None),
                    *(None, None, None),
                )


def _jdbc_types(lake: Lake, catalog: str) -> Iterator[Row]:
    words = [
        *("boolean", "tinyint", "smallint", "integer", "bigint", "real", "double", "varchar"),
        *("varbinary", "date", "time(6)", "timestamp(6)", "decimal(38,0)", "uuid", "json"),
    ]
    for word in [*words, "timestamp(6) with time zone"]:
        number, size, _, radix = kinds.jdbc(word)
        name = word.partition("(")[0] + word.partition(")")[2]
        text = name in {"varchar", "varbinary", "json"}
        yield (
            *(name, number, size, "'" if text else None, "'" if text else None, None, 1, text, 3),
            *(None, False, None, None, 0, 0, None, None, radix),
        )


def _comments(lake: Lake, catalog: str) -> Iterator[Row]:
    for of in CATALOGS:
        for schema, name, _ in lake.tables(of):
            yield of, schema, name, None


def _connectors(lake: Lake, catalog: str) -> Iterator[Row]:
    yield CATALOG_NAME, CATALOG_NAME, "iceberg"
    yield SYSTEM, SYSTEM, "system"


def _nodes(lake: Lake, catalog: str) -> Iterator[Row]:
    yield "thermocline", "", VERSION, True, "active"


_PROPERTIES = Listed(_texts("catalog_name property_name default_value type description"), _nothing)

LISTS: dict[tuple[str, str], Listed] = {
    ("information_schema", "tables"): Listed(
        _texts("table_catalog table_schema table_name table_type"), _tables
    ),
    ("information_schema", "columns"): Listed(
        _texts(
            "table_catalog table_schema table_name column_name ordinal_position column_default "
            "is_nullable data_type comment",
            "ordinal_position",
        ),
        _columns,
        hidden=("comment",),
    ),
    ("information_schema", "schemata"): Listed(_texts("catalog_name schema_name"), _schemata),
    ("information_schema", "views"): Listed(
        _texts("table_catalog table_schema table_name view_definition"), _nothing
    ),
    ("information_schema", "table_privileges"): Listed(
        _texts(
            "grantor grantor_type grantee grantee_type table_catalog table_schema table_name "
            "privilege_type is_grantable with_hierarchy"
        ),
        _nothing,
    ),
    ("information_schema", "roles"): Listed(_texts("role_name"), _nothing),
    ("information_schema", "enabled_roles"): Listed(_texts("role_name"), _nothing),
    ("information_schema", "applicable_roles"): Listed(
        _texts("grantee grantee_type role_name is_grantable"), _nothing
    ),
    ("jdbc", "catalogs"): Listed(_texts("table_cat"), _jdbc_catalogs),
    ("jdbc", "schemas"): Listed(_texts("table_schem table_catalog"), _jdbc_schemas),
    ("jdbc", "tables"): Listed(
        _texts(
            "table_cat table_schem table_name table_type remarks type_cat type_schem type_name "
            "self_referencing_col_name ref_generation"
        ),
        _jdbc_tables,
    ),
    ("jdbc", "columns"): Listed(
        _texts(
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
    ("jdbc", "types"): Listed(
        (
            *(("type_name", "varchar"), ("data_type", "bigint"), ("precision", "bigint")),
            *_texts("literal_prefix literal_suffix create_params"),
            *(("nullable", "bigint"), ("case_sensitive", "boolean"), ("searchable", "bigint")),
            *(("unsigned_attribute", "boolean"), ("fixed_prec_scale", "boolean")),
            *(("auto_increment", "boolean"), ("local_type_name", "varchar")),
            *((name, "bigint") for name in ("minimum_scale", "maximum_scale", "sql_data_type")),
            *(("sql_datetime_sub", "bigint"), ("num_prec_radix", "bigint")),
        ),
        _jdbc_types,
    ),
    ("jdbc", "table_types"): Listed(
        _texts("table_type"), lambda lake, catalog: (("TABLE",), ("SYSTEM TABLE",), ("VIEW",))
    ),
    ("jdbc", "attributes"): Listed(
        _texts(
            "type_cat type_schem type_name attr_name data_type attr_type_name attr_size "
            "decimal_digits num_prec_radix nullable remarks attr_def sql_data_type "
            "sql_datetime_sub char_octet_length ordinal_position is_nullable scope_catalog "
            "scope_schema scope_table source_data_type",
            *("data_type", "attr_size", "decimal_digits", "num_prec_radix", "nullable"),
            *("sql_data_type", "sql_datetime_sub", "char_octet_length", "ordinal_position"),
            "source_data_type",
        ),
        _nothing,
    ),
    ("jdbc", "primary_keys"): Listed(
        _texts("table_cat table_schem table_name column_name key_seq pk_name", "key_seq"), _nothing
    ),
    ("jdbc", "procedures"): Listed(
        _texts(
            "procedure_cat procedure_schem procedure_name remarks procedure_type specific_name",
            "procedure_type",
        ),
        _nothing,
    ),
    ("jdbc", "procedure_columns"): Listed(
        _texts(
            "procedure_cat procedure_schem procedure_name column_name column_type data_type "
            "type_name precision length scale radix nullable remarks column_def sql_data_type "
            "sql_datetime_sub char_octet_length ordinal_position is_nullable specific_name",
            *("column_type", "data_type", "precision", "length", "scale", "radix", "nullable"),
            *("sql_data_type", "sql_datetime_sub", "char_octet_length", "ordinal_position"),
        ),
        _nothing,
    ),
    ("jdbc", "pseudo_columns"): Listed(
        _texts(
            "table_cat table_schem table_name column_name data_type column_size decimal_digits "
            "num_prec_radix column_usage remarks char_octet_length is_nullable",
            *("data_type", "column_size", "decimal_digits", "num_prec_radix"),
            "char_octet_length",
        ),
        _nothing,
    ),
    ("jdbc", "super_tables"): Listed(
        _texts("table_cat table_schem table_name supertable_name"), _nothing
    ),
    ("jdbc", "super_types"): Listed(
        _texts("type_cat type_schem type_name supertype_cat supertype_schem supertype_name"),
        _nothing,
    ),
    ("jdbc", "udts"): Listed(
        _texts(
            "type_cat type_schem type_name class_name data_type remarks base_type",
            *("data_type", "base_type"),
        ),
        _nothing,
    ),
    ("metadata", "catalogs"): Listed(
        _texts("catalog_name connector_id connector_name"), _connectors
    ),
    ("metadata", "table_comments"): Listed(
        _texts("catalog_name schema_name table_name comment"), _comments
    ),
    ("metadata", "materialized_views"): Listed(
        _texts(
            "catalog_name schema_name name storage_catalog storage_schema storage_table freshness "
            "last_fresh_time comment definition"
        ),
        _nothing,
    ),
    **{
        ("metadata", f"{of}_properties"): _PROPERTIES
        for of in ("table", "schema", "column", "analyze")
    },
    ("runtime", "nodes"): Listed(
        (
            *_texts("node_id http_uri node_version"),
            ("coordinator", "boolean"),
            ("state", "varchar"),
        ),
        _nodes,
    ),
}
"""By schema and name. information_schema is in every catalog, the others in `system`."""
