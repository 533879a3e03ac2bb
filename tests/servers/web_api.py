"""A small REST API on 127.0.0.1 with a cursor, several kinds of paging and of failures.

/items?since=&page=&per_page=     page numbers, until an empty page
/offset?offset=&limit=            offset and limit, with a total
/cursor?after=                    a cursor in the body
/link                             a next link in the body
/header                           a Link header
/token                            an OAuth2 token for client/hush
/go?to=URL                        a redirect
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 3
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class WebApi:
    """A running API with its `records` and the `requests` that it received, in order."""

    port: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    failures: list[Answer] = field(default_factory=list)
    special: dict[str, Callable[[http.server.BaseHTTPRequestHandler], None]] = field(
        default_factory=dict
    )
    wants: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def paths(self) -> list[str]:
        """Return the requested paths and queries."""
        return [path for path, _ in self.requests]

    def fail_next(self, status: int, **headers: str) -> None:
        """Answer the next request with a failure."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.failures.append((status, named, b'{"error": "try later"}'))

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        """Return the API's response to a request."""
        if path == "/go":
            return 302, {"Location": query["to"]}, b""
        if path == "/token":
            return 200, {}, json.dumps({"access_token": "fetched", "expires_in": 60}).encode()
        found = [r for r in self.records if str(r.get("updated", "~")) >= query.get("since", "")]
        start, size = self._window(path, query)
        page = found[start : start + size]
        more = start + size < len(found)
        body: Any = {"data": page, "total": len(found)}
        headers: dict[str, str] = {}
        if path == "/cursor":
            body["next"] = str(start + size) if more else None
        elif path == "/link":
            body["links"] = {"next": f"{self.url}link?at={start + size}" if more else None}
        elif path == "/header":
            body = page
            if more:
                headers["Link"] = f'<{self.url}header?at={start + size}>; rel="next"'
        return 200, headers, json.dumps(body).encode()

    def _window(self, path: str, query: dict[str, str]) -> tuple[int, int]:
        if path == "/offset":
            return int(query.get("offset", 0)), int(query.get("limit", PAGE))
        if path == "/items":
            size = int(query.get("per_page", PAGE))
            return (int(query.get("page", 1)) - 1) * size, size
        return int(query.get("at") or query.get("after") or 0), PAGE


@contextlib.contextmanager
def serve() -> Iterator[WebApi]:
    """Run an API without records, on a free port."""
    api = WebApi()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            parts = urlsplit(self.path)
            api.requests.append((self.path, dict(self.headers)))
            if parts.path in api.special:
                api.special[parts.path](self)
                return
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if api.failures:
                self._send(*api.failures.pop(0))
            elif api.wants and parts.path != "/token" and not self._allowed(query):
                self._send(401, {}, b"{}")
            else:
                self._send(*api.answer(parts.path, query))

        do_POST = do_GET

        def _allowed(self, query: dict[str, str]) -> bool:
            given = {self.headers.get("Authorization"), self.headers.get("X-Key")}
            return api.wants in {*given, query.get("key")}

        def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()


def basic(user: str, password: str) -> str:
    """Return the header of HTTP basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
