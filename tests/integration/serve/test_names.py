"""What names mean: a reference with a schema is the stored table, a path goes into its structs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.serve import fuzz, serving, shop_lake
from tests.integration.serve.serving import Serving

from thermocline.api.query import execute_query
from thermocline.check.compiler import compile_checks, evaluate
from thermocline.config import load_settings
from thermocline.contract import Column, Contract
from thermocline.contract.definition import Rule
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.schema import shape_of
from thermocline.transform.duck.reader import DuckReader
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import Inputs, SourceSpan
from thermocline.transform.model_decorator import Read
from thermocline.transform.models import Model
from thermocline.transform.spark.reader import SparkReader

GEO = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
ADDRESS = pa.struct([("city", pa.string()), ("geo", GEO), ("places", pa.string())])
ITEM = pa.struct([("sku", pa.string()), ("of", pa.struct([("kind", pa.string())]))])
POSITIONS = pa.schema([
    ("id", pa.int64()), ("address", ADDRESS), ("items", pa.list_(ITEM)), ("places", pa.string()),
])  # fmt: skip
ROWS = [{
    "id": 1,
    "address": {"city": "Bern", "geo": {"lat": 46.5, "lon": 7.25}, "places": "in"},
    "items": [{"sku": "a", "of": {"kind": "k"}}],
    "places": "column",
}]  # fmt: skip


@dataclass
class QueryLog:
    serving: Serving

    def rows(self, sql: str, dialect: str, **more: Any) -> Any:
        body = {"sql": sql, "dialect": dialect, "timeout": 200, **more}
        reply = httpx.post(self.serving.url + "/query", json=body, timeout=240)
        assert reply.status_code == 200, reply.text
        return reply.json()["rows"]

    def trino(self, sql: str) -> Any:
        with httpx.Client(base_url=self.serving.url, timeout=240) as client:
            first = client.post("/v1/statement", content=sql, headers={"X-Trino-User": "t"})
            pages = list(fuzz.pages(client, first.json(), {}))
        assert "error" not in pages[-1], pages[-1]["error"]
        return [row for page in pages for row in page.get("data", [])]


def with_places(project: Path) -> Lake:
    lake = shop_lake.build(project)
    lake.catalog.create_table("silver.places", POSITIONS)
    lake.iceberg("silver.places").append(pa.Table.from_pylist(ROWS, schema=POSITIONS))
    return lake


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryLog]:
    project = tmp_path_factory.mktemp("names") / "p"
    with_places(project).close()
    with (project / "thermocline.toml").open("a") as file:
        file.write(serving.COLD)
    with serving.started(project) as started:
        yield QueryLog(started)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    project = tmp_path_factory.mktemp("local") / "p"
    with_places(project).close()
    (project / "thermocline.toml").write_text(SETTINGS)
    opened = Lake(load_settings(project, environ=clean_environment()))
    yield opened
    opened.close()


CAPTURING = [
    "WITH {q}silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places",
    "WITH {q}SILVER.Places{q} AS (SELECT 9 AS id) SELECT id FROM Silver.PLACES",
    "WITH places AS (SELECT 9 AS id) SELECT id FROM silver.places",
    "WITH silver AS (SELECT 9 AS id) SELECT id FROM silver.places",
    "WITH {q}main.silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places",
    "WITH asked_0 AS (SELECT 9 AS id), _query_0 AS (SELECT 9 AS id) SELECT id FROM silver.places",
    "WITH a AS (WITH {q}silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places) "
    "SELECT id FROM a",
    "SELECT id FROM (WITH {q}silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places) x",
    "WITH {q}silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places WHERE id IN "
    "(SELECT id FROM silver.places)",
    "WITH {q}silver.places{q} AS (SELECT 9 AS id) SELECT id FROM silver.places "
    "UNION SELECT id FROM silver.places",
    "SELECT {q}silver.customers{q}.id FROM silver.places AS {q}silver.customers{q}",
    "SELECT {q}silver.places{q}.id FROM silver.places AS {q}silver.places{q}",
]
NESTED = [
    "WITH a AS (WITH b AS (SELECT 1 AS x) SELECT x FROM b), "
    "c AS (WITH b AS (SELECT 2 AS x) SELECT x FROM b) "
    "SELECT (SELECT x FROM a) + (SELECT x FROM c) - 2 AS v FROM silver.places",
    "SELECT (WITH b AS (SELECT o.id AS x) SELECT x FROM b) AS v FROM silver.places AS o",
]
"""CTEs of one name in several places, and one that sees an outer query."""
PATHS = {
    **{sql: [[1]] for sql in NESTED},
    "SELECT o.address.geo.lat AS v FROM silver.places o": [[46.5]],
    "SELECT address.geo.lat AS v FROM silver.places": [[46.5]],
    "SELECT silver.places.address.geo.lat AS v FROM silver.places": [[46.5]],
    "SELECT silver.places.address.city AS v FROM silver.places": [["Bern"]],
    "SELECT places.address.places AS v FROM silver.places": [["in"]],
    "SELECT places AS v FROM silver.places": [["column"]],
    "SELECT address.id AS v FROM silver.places AS address": [[1]],
    "SELECT a.address.geo.lon AS v FROM silver.places a JOIN silver.places b "
    "ON a.address.geo.lat = b.address.geo.lat": [[7.25]],
    "WITH x AS (SELECT address AS adr FROM silver.places) SELECT x.adr.geo.lat AS v FROM x": [
        [46.5]
    ],
    "SELECT o.items[1].of.kind AS v FROM silver.places o": [["k"]],
    "SELECT count(*) AS v FROM silver.places o WHERE o.address.geo.lat > 46": [[1]],
    "SELECT (SELECT max(p.address.geo.lat) FROM silver.places p WHERE p.address.city = "
    "o.address.city) AS v FROM silver.places o": [[46.5]],
}
QUOTES = {"duckdb": '"', "trino": '"', "spark": "`"}


@pytest.mark.parametrize("sql", CAPTURING)
@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_no_name_captures_a_stored_table(asked: QueryLog, dialect: str, sql: str) -> None:
    said = sql.format(q=QUOTES[dialect])
    assert asked.rows(said, dialect) == [[1]]
    if dialect == "trino":
        assert asked.trino(said) == [[1]]
    if dialect == "duckdb":
        assert asked.rows(said, dialect, snapshot=_head(asked)) == [[1]]


@pytest.mark.parametrize("sql", CAPTURING)
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_nor_does_one_in_a_query_that_is_answered_here(lake: Lake, engine: str, sql: str) -> None:
    found = execute_query(lake, sql.format(q='"'), engine=engine)
    assert found.rows == [(1,)]
    assert list(found.provenance["tables"]) == ["silver.places"]


@pytest.mark.parametrize("sql", PATHS)
@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
def test_a_path_goes_as_deep_as_it_says(asked: QueryLog, dialect: str, sql: str) -> None:
    said = sql.replace("[1]", "[0]") if dialect == "spark" else sql
    assert asked.rows(said, dialect) == PATHS[sql]


@pytest.mark.parametrize("sql", PATHS)
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_so_it_does_in_a_query_that_is_answered_here(lake: Lake, engine: str, sql: str) -> None:
    found = execute_query(lake, sql, engine=engine)
    assert [list(row) for row in found.rows] == PATHS[sql]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_in_models_too(lake: Lake, engine: str) -> None:
    every = {sql.format(q='"'): [[1]] for sql in CAPTURING} | PATHS
    wrong = {}
    for sql, rows in every.items():
        found = modelled(lake, engine, sql)
        if found != rows:
            wrong[sql] = found
    # Models know tables by their own spelling alone, and names in front of columns are of those.
    assert wrong == {}


def modelled(lake: Lake, engine: str, sql: str) -> Any:
    """What a model gives on an engine."""
    reads = {"silver.places": Read("silver.places")}
    target = Contract("gold.x", (Column("v", Primitive("string")),))
    text = sql.replace("Silver.PLACES", "silver.places")
    model = Model("gold.x", Path("models/gold/x.sql"), reads, "f", target, text=text)
    head = lake.state("silver.places").head()
    assert head is not None
    spans = {"silver.places": SourceSpan("silver.places", None, head)}
    if engine == "spark":
        reader = SparkReader(lake)
        rows = Inputs(lake, model, spans, reader).read_all().collect()
        reader.close()
        return [list(row) for row in rows]
    with contextlib.closing(Session(lake)) as session:
        said = Inputs(lake, model, spans, DuckReader(session)).read_all()
        return [list(row) for row in session.fetch(said)]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_in_rules_too(lake: Lake, engine: str) -> None:
    columns = ("id", "address", "items", "places")
    kinds = {each.name: each.type for each in shape_of(lake.state("silver.places")).columns}
    head = lake.state("silver.places").head() or 0
    if engine == "spark":
        lake.spark.view("looked_at", "silver.places", head)
    else:
        lake.duck.view("looked_at", lake.state("silver.places").metadata_location, head)
    every = {
        sql.format(q='"'): 1 for sql in CAPTURING if "Silver" not in sql and "UNION" not in sql
    }
    every |= {sql: rows[0][0] for sql, rows in PATHS.items() if isinstance(rows[0][0], float)}
    rules = tuple(Rule("sql", (), (("query", sql),)) for sql in every)
    contract = Contract(
        "silver.places", tuple(Column(name, kinds[name]) for name in columns), rules=rules
    )
    compiled = compile_checks(contract, "looked_at", {}, engine, datetime.now(UTC))
    asked = lake.spark if engine == "spark" else lake.duck
    outcomes = evaluate(compiled, asked.query(compiled.sql).to_pylist()[0])
    found = [outcome.metric for outcome in outcomes if outcome.rule.kind == "sql"]
    assert found == list(every.values())


def _head(asked: QueryLog) -> str:
    listed = httpx.get(f"{asked.serving.url}/tables").json()["tables"]
    return next(each["snapshot"] for each in listed if each["table"] == "silver.places")
