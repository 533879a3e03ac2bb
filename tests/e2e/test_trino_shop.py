"""The shop itself behind Trino's protocol: what clients list of its structs, lists and maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
import trino
from sqlalchemy import create_engine, inspect
from tests.e2e.shop_project import Embedded
from tests.integration.serve import serving
from tests.integration.serve.serving import Serving

from thermocline import config
from thermocline.lake import Lake

ODD = pa.schema([
    ("m", pa.map_(pa.string(), pa.list_(pa.struct([("Deep", pa.map_(pa.int64(), pa.date32()))])))),
    ("two words", pa.struct([("näme", pa.int32()), ("of, <it>", pa.decimal128(10, 2))])),
    ("s", pa.struct([("order", pa.struct([("b", pa.binary()), ("f", pa.float32())]))])),
    ("t", pa.list_(pa.list_(pa.time64("us")))),
])  # fmt: skip
LISTED = {
    "m": 'map(varchar, array(row("Deep" map(bigint, date))))',
    "s": "row(order row(b varbinary, f real))",
    "t": "array(array(time(6)))",
}


@pytest.fixture(scope="module")
def server(embedded_shop: Embedded) -> Iterator[Serving]:
    lake = Lake(config.load_settings(embedded_shop.project))
    lake.catalog.create_table("gold.odd", ODD)
    lake.close()
    try:
        with serving.started(embedded_shop.project, "--nodes", "1") as started:
            yield started
    finally:
        lake.catalog.drop_table("gold.odd")  # others compare the whole shop


def cursor(server: Serving) -> Any:
    connection = trino.dbapi.connect(
        host="127.0.0.1", port=server.port, user="ann", catalog="lake", schema="gold"
    )
    return connection.cursor()


def rows(server: Serving, sql: str) -> list[Any]:
    found: list[Any] = cursor(server).execute(sql).fetchall()
    return found


def tables(server: Serving) -> list[str]:
    return [each["table"] for each in httpx.get(f"{server.url}/tables").json()["tables"]]


def listed(server: Serving) -> dict[str, dict[str, str]]:
    sql = "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns"
    found: dict[str, dict[str, str]] = {}
    for schema, table, column, kind in rows(server, sql):
        found.setdefault(f"{schema}.{table}", {})[column] = kind
    return found


def test_every_column_is_listed_with_the_type_that_its_rows_have(server: Serving) -> None:
    found = listed(server)
    nested = 0
    for table in tables(server):
        asked = cursor(server)
        asked.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
        given = {name: kind.replace('"', "") for name, kind, *_ in asked.description}
        assert {n: kind.replace('"', "") for n, kind in found[table].items()} == given, table
        nested += sum("row(" in kind for kind in given.values())
    assert nested > 3
    assert found["gold.odd"].items() >= LISTED.items()
    assert found["silver.orders"]["items"].startswith("array(row(")


def test_each_list_has_every_table(server: Serving) -> None:
    for table in tables(server):
        schema, name = table.split(".")
        assert [name] in rows(server, f"SHOW TABLES FROM {schema}")
        columns = list(listed(server)[table])
        for sql in (f"SHOW COLUMNS FROM {table}", f"DESCRIBE {table}"):
            assert [row[0] for row in rows(server, sql)] == columns
        of = f"table_name = '{name}' AND table_schem = '{schema}'"
        sql = f"SELECT column_name FROM system.jdbc.columns WHERE {of}"
        assert [row[0] for row in rows(server, sql)] == columns


def test_sqlalchemy_reflects_every_table(server: Serving) -> None:
    inspector = inspect(create_engine(f"trino://ann@127.0.0.1:{server.port}/lake/silver"))
    for table in tables(server):
        schema, name = table.split(".")
        if table == "gold.odd":
            continue  # its names are more than SQLAlchemy's own parser of types can read
        assert name in inspector.get_table_names(schema)
        found = [each["name"] for each in inspector.get_columns(name, schema=schema)]
        assert found == list(listed(server)[table])
