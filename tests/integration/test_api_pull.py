"""Records from a real HTTP API: paging, retry, auth, where to begin, what is not reached."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import web_api
from tests.servers.web_api import WebApi, basic

from thermocline.contract.problems import ProblemReport
from thermocline.errors import BadInput, ConfigError, Permanent, ThermoclineError, Transient
from thermocline.ingest.api import session as sessions
from thermocline.ingest.api.position import ApiPosition, NewRecordFilter
from thermocline.ingest.api.pull import pull_items
from thermocline.ingest.api.source import ApiSource, read
from thermocline.ingest.egress_policy import AddressRefused, EgressPolicy
from thermocline.ingest.source import SettingsReader

HERE = EgressPolicy(allow_private=True)
BY_PAGE = {"type": "page_number", "base_page": 1, "total_path": None}
SINCE = {"cursor_path": "updated", "initial_value": "2026-01-01"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebApi]:
    monkeypatch.setattr(sessions, "BACKOFF_SECONDS", 0.01)
    with web_api.serve() as server:
        server.records = [{"id": n, "updated": f"2026-01-{n:02}"} for n in range(1, 9)]
        yield server


def source(base_url: str, path: str = "items", **given: Any) -> ApiSource:
    """An API source as its file would give it."""
    endpoint = {"path": path, "data_selector": "data", **given.pop("endpoint", {})}
    resource = {"name": "things", "endpoint": endpoint, **given.pop("resource", {})}
    return read_source({"base_url": base_url, "resources": [resource], **given})


def read_source(data: dict[str, Any]) -> ApiSource:
    report = ProblemReport("sources/things.yaml", lambda at: 1)
    found = read(SettingsReader(data, report, Path()))
    assert found is not None, report.problems
    return found


def ids(found: Iterator[Any]) -> list[int]:
    return [item["id"] for item in found]


PAGING: dict[str, dict[str, Any]] = {
    "items": {"paginator": BY_PAGE},
    "offset": {"paginator": {"type": "offset", "limit": 3, "total_path": "total"}},
    "cursor": {"paginator": {"type": "cursor", "cursor_path": "next", "cursor_param": "after"}},
    "link": {"paginator": {"type": "json_link", "next_url_path": "links.next"}},
    "header": {"paginator": "header_link", "data_selector": "$"},
}


@pytest.mark.parametrize("path", PAGING)
def test_every_record_comes_once_whatever_the_paging(api: WebApi, path: str) -> None:
    found = ids(pull_items(source(api.url, path, endpoint=PAGING[path]), ApiPosition(), HERE))
    assert found == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_may_pass_is_tried_again(api: WebApi, status: int) -> None:
    api.fail_next(status, Retry_After="0")
    api.fail_next(status)
    found = ids(pull_items(source(api.url, endpoint=PAGING["items"]), ApiPosition(), HERE))
    assert found == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_failure_that_stays_is_an_error_that_may_be_tried_again(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ATTEMPTS", 2)
    for _ in range(2):
        api.fail_next(500)
    with pytest.raises(Transient, match=r"things at http://127\.0\.0\.1:\d+ answered 500"):
        list(pull_items(source(api.url), ApiPosition(), HERE))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_not_tried_again(api: WebApi, status: int) -> None:
    api.fail_next(status)
    with pytest.raises(BadInput, match=f"answered {status}"):
        list(pull_items(source(api.url), ApiPosition(), HERE))
    assert len(api.requests) == 1


AUTH: dict[str, tuple[str, dict[str, Any]]] = {
    "bearer": ("Bearer hush", {"type": "bearer", "token": {"secret": "API_SECRET"}}),
    "basic": (
        basic("me", "hush"),
        {"type": "http_basic", "username": "me", "password": {"secret": "API_SECRET"}},
    ),
    "key": ("hush", {"type": "api_key", "name": "X-Key", "api_key": {"secret": "API_SECRET"}}),
    "query": (
        "hush",
        {"type": "api_key", "name": "key", "location": "query",
         "api_key": {"secret": "API_SECRET"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AUTH)
def test_who_we_are_is_told_by_a_secret_of_the_environment(
    api: WebApi, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SECRET", "hush")
    api.wants, auth = AUTH[kind]
    found = pull_items(source(api.url, auth=auth, endpoint=PAGING["items"]), ApiPosition(), HERE)
    assert ids(found) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_token_is_fetched_through_the_same_guard(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SECRET", "hush")
    api.wants = "Bearer fetched"
    auth = {
        "type": "oauth2_client_credentials",
        "access_token_url": f"{api.url}token",
        "client_id": "client",
        "client_secret": {"secret": "API_SECRET"},
    }
    made = source(api.url, auth=auth, endpoint=PAGING["items"])
    assert ids(pull_items(made, ApiPosition(), HERE)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert api.paths()[0] == "/token"
    with pytest.raises(AddressRefused):
        list(pull_items(made, ApiPosition(), EgressPolicy()))


def test_a_secret_that_is_not_set_is_named_and_one_that_is_never_shown(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = {"type": "bearer", "token": {"secret": "API_SECRET"}}
    monkeypatch.delenv("API_SECRET", raising=False)
    with pytest.raises(ConfigError, match="API_SECRET is not set"):
        list(pull_items(source(api.url, auth=auth), ApiPosition(), HERE))
    monkeypatch.setenv("API_SECRET", "canary-7781")
    api.wants = "Bearer other"
    with pytest.raises(BadInput) as refused:
        list(pull_items(source(api.url, auth=auth), ApiPosition(), HERE))
    assert "canary-7781" not in str(refused.value)


def incremental(api: WebApi, **given: Any) -> ApiSource:
    endpoint = {
        "paginator": BY_PAGE,
        "params": {"since": "{incremental.start_value}"},
        "incremental": SINCE,
    }
    return source(api.url, endpoint=endpoint, **given)


def pull(made: ApiSource, start: ApiPosition) -> tuple[list[int], ApiPosition]:
    """The ids that are new, and where the next pull begins."""
    record_filter = NewRecordFilter(made, start)
    new = [
        record for item in pull_items(made, start, HERE) if (record := record_filter.accept(item))
    ]
    return [json.loads(record.text)["id"] for record in new], record_filter.position(len(new))


def test_a_pull_begins_where_the_last_one_ended_and_lets_nothing_through_twice(
    api: WebApi,
) -> None:
    made = incremental(api)
    first, position = pull(made, ApiPosition())
    assert first == [1, 2, 3, 4, 5, 6, 7, 8]
    assert position.cursor == "2026-01-08"
    position = ApiPosition.from_bookmark(json.loads(json.dumps(position.to_bookmark())))
    assert pull(made, position) == ([], position)
    # One more at the very edge, one behind it.
    api.records += [{"id": 9, "updated": "2026-01-08"}, {"id": 10, "updated": "2026-01-09"}]
    second, position = pull(made, position)
    assert second == [9, 10]
    assert "since=2026-01-08" in api.paths()[-1]
    assert pull(made, position)[0] == []


def test_numbers_keep_every_digit(api: WebApi) -> None:
    exact = b'{"data": [{"id": 1, "n": 12345678901234567890.12345678901234567890, "m": 1.10}]}'
    api.failures.append((200, {}, exact))
    record_filter = NewRecordFilter(made := source(api.url), ApiPosition())
    [record] = [record_filter.accept(item) for item in pull_items(made, ApiPosition(), HERE)]
    assert record is not None
    assert record.text == '{"id": 1, "n": 12345678901234567890.12345678901234567890, "m": 1.10}'


@pytest.mark.parametrize(
    "body", [b"<html>", b'{"data": [NaN]}', b"[" * 200_000, b"", b'\xff\xfe{"a": 1}', b'{"data": [']
)
def test_an_answer_that_is_not_json_is_an_error(api: WebApi, body: bytes) -> None:
    api.failures.append((200, {}, body))
    with pytest.raises(Permanent, match="is not JSON"):
        list(pull_items(source(api.url), ApiPosition(), HERE))


def test_a_redirect_to_the_metadata_service_is_refused(api: WebApi) -> None:
    reach = EgressPolicy.from_settings(False, ["127.0.0.0/8"])
    metadata = "http://169.254.169.254/latest/meta-data/"
    with pytest.raises(AddressRefused, match=r"leads to http://169\.254\.169\.254"):
        list(pull_items(source(api.url, f"go?to={metadata}"), ApiPosition(), reach))
    # Naming the host in the source is not enough: its address must be allowed, too.
    with pytest.raises(AddressRefused, match="a link-local address"):
        list(
            pull_items(source(api.url, f"go?to={metadata}", hosts=[metadata]), ApiPosition(), reach)
        )


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "http://[::1]:1/"]
)
def test_a_redirect_elsewhere_is_refused(api: WebApi, target: str) -> None:
    with pytest.raises(BadInput):
        list(pull_items(source(api.url, f"go?to={target}"), ApiPosition(), HERE))


def test_a_next_link_to_another_host_gets_no_secret(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SECRET", "hush")
    with web_api.serve() as other:
        page = {"data": [{"id": 1}], "links": {"next": f"{other.url}link"}}
        api.failures.append((200, {}, json.dumps(page).encode()))
        auth = {"type": "bearer", "token": {"secret": "API_SECRET"}}
        with pytest.raises(AddressRefused, match="which the source does not name"):
            list(
                pull_items(
                    source(api.url, "link", auth=auth, endpoint=PAGING["link"]), ApiPosition(), HERE
                )
            )
        assert other.requests == []


def test_this_machine_is_not_reached_unless_that_is_allowed(api: WebApi) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        with pytest.raises(AddressRefused, match="loopback"):
            list(pull_items(source(f"http://{host}:{api.port}/"), ApiPosition(), EgressPolicy()))
    assert api.requests == []


def test_a_name_is_looked_up_once_and_the_checked_address_is_the_one_connected_to(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answer is harmless, every later one is this machine."""
    asked: list[str] = []
    genuine = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "rebind.example":
            return genuine(host, port, *args, **options)
        asked.append(host)
        address = "203.0.114.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "ATTEMPTS", 1)
    made = source(f"http://rebind.example:{api.port}/")
    with pytest.raises(Transient, match="cannot be reached"):
        list(pull_items(made, ApiPosition(), EgressPolicy()))
    with pytest.raises(AddressRefused, match=r"resolves to 127\.0\.0\.1"):
        list(pull_items(made, ApiPosition(), EgressPolicy()))
    assert api.requests == []


def test_an_answer_that_is_too_large_is_refused_before_it_fills_memory(api: WebApi) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    api.failures.append((200, {"Content-Encoding": "gzip"}, bomb))
    with pytest.raises(BadInput, match="exceeds 1,000,000 bytes"):
        list(pull_items(source(api.url, maxResponseBytes=1_000_000), ApiPosition(), HERE))


@pytest.mark.parametrize("where", ["body", "headers"])
def test_an_answer_that_drips_is_given_up(
    api: WebApi, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        start = b"HTTP/1.1 200 OK\r\n" + (
            b"Content-Length: 100000\r\n\r\n[" if where == "body" else b"X: "
        )
        try:
            handler.wfile.write(start)
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.1)
        except OSError:
            handler.close_connection = True

    api.special["/slow"] = drip
    monkeypatch.setattr(sessions, "ATTEMPTS", 1)
    began = time.monotonic()
    with pytest.raises(Transient):
        list(pull_items(source(api.url, "slow", timeout=1), ApiPosition(), HERE))
    assert time.monotonic() - began < 5


def test_an_answer_that_breaks_off_is_tried_again_and_never_half_read(api: WebApi) -> None:
    def cut(handler: http.server.BaseHTTPRequestHandler) -> None:
        del api.special["/items"]
        handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"data": []}')
        handler.close_connection = True

    api.special["/items"] = cut
    found = ids(pull_items(source(api.url, endpoint=PAGING["items"]), ApiPosition(), HERE))
    assert found == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_environments_proxies_are_not_used(
    api: WebApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert ids(pull_items(source(api.url, endpoint=PAGING["items"]), ApiPosition(), HERE))[-1] == 8


def test_records_of_a_dependent_resource(api: WebApi) -> None:
    def child(handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.dumps({"data": [{"id": 100}]}).encode()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    for number in range(1, 9):
        api.special[f"/items/{number}/parts"] = child
    parts = {
        "name": "parts",
        "endpoint": {"path": "items/{resources.things.id}/parts", "paginator": "single_page",
                     "data_selector": "data"},
        "include_from_parent": ["id"],
    }  # fmt: skip
    things = {"name": "things", "endpoint": {"path": "items", **PAGING["items"],
                                             "data_selector": "data"}}  # fmt: skip
    made = read_source({"base_url": api.url, "resources": [things, parts], "resource": "parts"})
    found = list(pull_items(made, ApiPosition(), HERE))
    assert sorted(item["_things_id"] for item in found) == [1, 2, 3, 4, 5, 6, 7, 8]


CHILD = """
import sys
from tests.integration.test_api_pull import source, PAGING, HERE
from thermocline.ingest.api.position import ApiPosition
from thermocline.ingest.api.pull import pull_items
from thermocline.ingest.api.source import ApiSource, read
from thermocline.ingest.source import SettingsReader
print(len(list(pull_items(source(sys.argv[1], endpoint=PAGING["items"]), ApiPosition(), HERE))))
from dlt.common.runtime import anon_tracker
print(anon_tracker._THREAD_POOL, anon_tracker._ANON_TRACKER_ENDPOINT)
"""


def test_dlt_reports_nothing_and_writes_nothing(api: WebApi, tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": f"{root}:{root / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, api.url],
        cwd=here, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["8", "None", "None"], "")
    assert [*home.rglob("*"), *here.rglob("*")] == []


def test_what_dlt_does_not_understand_is_told_in_a_line(api: WebApi) -> None:
    with pytest.raises(ThermoclineError) as refused:
        list(
            pull_items(
                source(api.url, endpoint={"paginator": {"type": "guess"}}), ApiPosition(), HERE
            )
        )
    assert "\n" not in refused.value.cause
    assert "guess" in refused.value.cause
