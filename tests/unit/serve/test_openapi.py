"""The OpenAPI document matches the server: every route, field and response."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from jsonschema_rs import validator_for
from starlette.routing import Route
from tests.unit.serve.fixed_router import FixedRouter, opened, serving

from thermocline.config import ServeSettings
from thermocline.serve.http import openapi
from thermocline.serve.http.app import create_app
from thermocline.serve.http.metrics import Metrics
from thermocline.serve.http.responses import STATUS_CODES
from thermocline.serve.identity.authenticator import Authenticator
from thermocline.serve.identity.token_store import TokenStore
from thermocline.serve.values import QueryRequest

DOCUMENT = openapi.document(ServeSettings(), open=True)
METHODS = {"get", "post"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in DOCUMENT["paths"].items():
        for method, operation in found.items():
            yield path, method, operation


def test_every_route_is_documented(tmp_path_factory: pytest.TempPathFactory) -> None:
    who = opened(tmp_path_factory.mktemp("p"))
    app = create_app(FixedRouter(), who, Metrics(), ServeSettings())
    routes = {
        (route.path, method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routes == {(path, method) for path, method, _ in operations()}


def test_every_field_and_status_is_documented() -> None:
    ask = DOCUMENT["components"]["schemas"]["Ask"]
    assert set(ask["properties"]) == {field.name for field in dataclasses.fields(QueryRequest)}
    parameters = DOCUMENT["paths"]["/explain"]["get"]["parameters"]
    assert {each["name"] for each in parameters} == set(ask["properties"])
    query = DOCUMENT["paths"]["/query"]["post"]["responses"]
    assert set(query) == {str(s) for s in {200, 500, *STATUS_CODES.values()} - {405}}


def test_examples_fit_their_schemas() -> None:
    def holds(schema: dict[str, Any], example: Any) -> None:
        whole = {**schema, "components": DOCUMENT["components"]}
        validator_for(whole).validate(example)

    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        for example in schema.get("examples", ()):
            holds(schema, example)
    seen = 0
    for _, _, operation in operations():
        for reply in operation["responses"].values():
            content = reply["content"].get("application/json", {})
            if "example" in content:
                seen += 1
                holds(content["schema"], content["example"])
    assert seen > 30


def test_the_documents_for_people_say_the_same() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    for path, method, _ in operations():
        assert re.search(rf"`{method.upper()} {re.escape(path)}\b", text), path
    for field in dataclasses.fields(QueryRequest):
        assert f"| `{field.name}` |" in text
    for status in {500, *STATUS_CODES.values()}:
        assert re.search(rf"^\| [0-9, ]*{status}[0-9, ]* \| `", text, re.MULTILINE), status


def test_a_server_with_tokens_says_so() -> None:
    closed = openapi.document(ServeSettings(), open=False)
    assert closed["security"] == [{"token": []}]
    assert closed["paths"]["/health"]["get"]["security"] == []
    assert "security" not in DOCUMENT


# Schemathesis -------------------------------------------------------------------------------------

schema = schemathesis.openapi.from_dict(openapi.document(ServeSettings(), open=False))
# Whether a text is SQL that can be answered no schema can say, so a text that fits is refused too.
ALL_BUT = [schemathesis.checks.positive_data_acceptance]


@dataclasses.dataclass(frozen=True)
class Served:
    url: str
    headers: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with tokens."""
    project = tmp_path_factory.mktemp("p")
    token = TokenStore(project).create("fuzz")
    with serving(FixedRouter(), Authenticator(TokenStore(project))) as url:
        yield Served(url, {"Authorization": f"Bearer {token}"})


@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_reply_is_a_surprise(case: schemathesis.Case, served: Served) -> None:
    case.call_and_validate(base_url=served.url, headers=served.headers, excluded_checks=ALL_BUT)


def test_the_server_is_still_there(served: Served) -> None:
    assert httpx.get(f"{served.url}/health").status_code == 200
