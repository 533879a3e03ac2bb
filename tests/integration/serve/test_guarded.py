"""A whole server with tokens and roles: what nobody may learn, and what nobody can break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from tests.integration.serve import fuzz, serving
from tests.integration.serve.serving import Serving, thermo, until

from thermocline.config import ServeSettings
from thermocline.serve.http import openapi

CONTRACT = """apiVersion: v3.1.0
kind: DataContract
id: shop.{name}
version: "1"
roles: [{{role: {role}, access: read}}]
schema:
  - {{name: {name}, properties: [{columns}]}}
"""
CLOSED = {
    "silver/customers": ("support", "{name: customer_id, physicalType: long}"),
    "gold/revenue": ("finance", "{name: day, physicalType: date}"),
}
SEED, FUZZED = 1, 500
TOKENS = "[serve]\ntokens_required = true\nnodes = 1\nmax_seconds = 20\n"


@dataclass
class Guarded:
    """The server, and the headers of its callers: one in support, one in sales, one in all."""

    serving: Serving
    ann: dict[str, str]
    eve: dict[str, str]
    fuzz: dict[str, str]

    def get(self, path: str, caller: dict[str, str]) -> httpx.Response:
        return httpx.get(self.serving.url + path, headers=caller, timeout=30)

    def post(self, path: str, caller: dict[str, str], **asked: Any) -> httpx.Response:
        return httpx.post(self.serving.url + path, headers=caller, json=asked, timeout=30)

    def trino(self, sql: str, caller: dict[str, str]) -> list[Any] | str:
        """Rows, or the message of the error."""
        with httpx.Client(base_url=self.serving.url, headers=caller, timeout=30) as client:
            first = client.post("/v1/statement", content=sql).json()
            pages = list(fuzz.pages(client, first, {}))
        if "error" in pages[-1]:
            return str(pages[-1]["error"]["message"])
        return [row for page in pages for row in page.get("data", [])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    project = serving.shop(tmp_path_factory.mktemp("guarded") / "p", TOKENS)
    for path, (role, columns) in CLOSED.items():
        file = project / "contracts" / f"{path}.odcs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        name = path.rpartition("/")[2]
        file.write_text(CONTRACT.format(name=name, role=role, columns=columns))
    headers = {}
    for name, roles in {
        "ann": ["support"],
        "eve": ["sales"],
        "fuzz": ["support", "finance"],
    }.items():
        given = [word for role in roles for word in ("--role", role)]
        made = thermo("token", "create", name, *given, "--json", cwd=project)
        headers[name] = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    with serving.started(project) as started:
        guarded = Guarded(started, **headers)
        until(lambda: len(guarded.get("/nodes", guarded.ann).json()["nodes"][0]["tables"]) == 2, 60)
        yield guarded


# What nobody may learn ----------------------------------------------------------------------------

LISTS = [
    "SHOW SCHEMAS",
    "SHOW TABLES FROM silver",
    "SELECT * FROM information_schema.schemata",
    "SELECT * FROM information_schema.tables",
    "SELECT table_name, column_name FROM information_schema.columns",
    "SELECT * FROM system.jdbc.schemas",
    "SELECT table_schem, table_name FROM system.jdbc.tables",
    "SELECT table_schem, table_name, column_name FROM system.jdbc.columns",
    "SELECT * FROM system.metadata.table_comments",
]


def hidden_in(text: str) -> list[str]:
    return [name for name in ("customers", "gold", "revenue", "city") if name in text]


@pytest.mark.parametrize("path", ["/tables", "/nodes", "/metrics"])
def test_no_page_tells_of_a_table_that_a_caller_may_not_read(server: Guarded, path: str) -> None:
    assert hidden_in(server.get(path, server.eve).text) == []
    mine = server.get(path, server.ann).text
    assert "silver.customers" in mine
    assert "gold" not in mine


@pytest.mark.parametrize("sql", LISTS)
def test_no_list_tells_of_it_either(server: Guarded, sql: str) -> None:
    assert hidden_in(json.dumps(server.trino(sql, server.eve))) == []
    mine = json.dumps(server.trino(sql, server.ann))
    assert hidden_in(mine) in ([], ["customers"], ["customers", "city"])
    assert "silver" in mine or "orders" in mine


ABOUT = [
    "SELECT count(*) FROM {}",
    "SELECT o.note FROM silver.orders o JOIN {} AS c ON c.customer_id = o.customer_id",
    "WITH orders AS (SELECT * FROM {}) SELECT city FROM orders",
    "SELECT order_id FROM silver.orders WHERE customer_id IN (SELECT customer_id FROM {})",
]


@pytest.mark.parametrize("about", ABOUT)
@pytest.mark.parametrize("dialect", ["duckdb", "trino"])
def test_a_question_about_it_ends_as_one_about_nothing(
    server: Guarded, about: str, dialect: str
) -> None:
    for path in ("/query", "/explain"):
        ends = []
        for table in ("silver.customers", "silver.CUSTOMERS", "silver.customerz"):
            sql = about.format(table)
            reply = server.post(path, server.eve, sql=sql, dialect=dialect)
            ends.append((reply.status_code, reply.text.replace("customers", "customerz")))
        assert ends[0][0] == 404
        assert len(set(ends)) == 1
        allowed = server.post(path, server.ann, sql=about.format("silver.customers"))
        assert allowed.status_code == 200, allowed.text


@pytest.mark.parametrize("sql", [*ABOUT, "DESCRIBE {}", "SHOW COLUMNS FROM {}", "EXPLAIN TABLE {}"])
def test_nor_does_a_trino_client_learn_of_it(server: Guarded, sql: str) -> None:
    said = {
        table: server.trino(sql.format(table), server.eve)
        for table in ("silver.customers", "silver.customerz")
    }
    assert isinstance(said["silver.customers"], str)
    assert said["silver.customers"].replace("customers", "customerz") == said["silver.customerz"]


def test_an_answer_that_is_kept_is_not_given_to_who_may_not_read_it(server: Guarded) -> None:
    sql = "select max(city) from silver.customers"
    engines = [
        server.post("/query", server.ann, sql=sql).json()["provenance"]["engine"] for _ in range(2)
    ]
    assert engines[1] == "cache"
    assert server.post("/query", server.eve, sql=sql).status_code == 404


# What nobody can break ----------------------------------------------------------------------------

schema = schemathesis.openapi.from_dict(openapi.document(ServeSettings(), open=False))
# Whether a text is SQL that can be answered no schema can say, so a text that fits is refused too.
ALL_BUT = [schemathesis.checks.positive_data_acceptance]
OPEN = ("/health", "/ready", "/openapi.json")


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_reply_is_a_surprise(case: schemathesis.Case, server: Guarded) -> None:
    url = server.serving.url
    case.call_and_validate(base_url=url, headers=server.fuzz, excluded_checks=ALL_BUT)
    without = case.call(base_url=url)
    assert without.status_code < 500
    assert without.status_code in (400, 401, 403, 405) or case.path in OPEN


def test_spoilt_queries_are_answered_or_refused(server: Guarded) -> None:
    token = server.fuzz["Authorization"].removeprefix("Bearer ")
    ends, wrong = fuzz.run(server.serving.url, token, FUZZED, SEED)
    assert wrong == []
    # Some are still queries: a server that refuses everything is never wrong.
    assert ends["200"] > FUZZED / 20, ends


def test_the_server_is_still_there_and_had_no_fault_of_its_own(server: Guarded) -> None:
    assert server.serving.process.poll() is None
    assert server.get("/ready", {}).status_code == 200
    log = (server.serving.project / ".thermocline" / "serve.log").read_text()
    assert "internal error" not in log
