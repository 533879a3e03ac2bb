"""A small schema registry with Confluent's protocol: schemas by id, with a password."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "registry-user", "canary-registry-password"


@dataclass
class SchemaRegistry:
    """A running registry. `answers` overrides the response body of schema ids."""

    url: str
    schemas: dict[int, tuple[str, str]] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, kind: str, schema: str) -> int:
        """Register a schema; a Protobuf one is given in base64, as `format=serialized` has it."""
        number = len(self.schemas) + 1
        self.schemas[number] = (kind, schema)
        return number


def framed(number: int, body: bytes) -> bytes:
    """Encode a value like a serializer with the registry."""
    return b"\0" + number.to_bytes(4, "big") + body


@contextlib.contextmanager
def serve() -> Iterator[SchemaRegistry]:
    """Run a registry on a free port."""
    registry = SchemaRegistry("")
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            number = int(self.path.partition("?")[0].rpartition("/")[2])
            if self.headers.get("Authorization") != expected:
                self._answer(401, b'{"error_code": 401}')
            elif number in registry.answers:
                self._answer(200, registry.answers[number])
            elif number not in registry.schemas:
                self._answer(404, b'{"error_code": 40403}')
            else:
                kind, schema = registry.schemas[number]
                said = {"schema": schema} | ({} if kind == "AVRO" else {"schemaType": kind})
                self._answer(200, json.dumps(said).encode())

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield registry
        server.shutdown()
