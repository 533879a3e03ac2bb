"""Schemas of binary values: one from a file of the project, or many from a schema registry.

A registry speaks Confluent's REST protocol; a value then begins with a zero byte and the number
of its schema. It is asked by the driver alone, so its credentials leave this process nowhere.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import ConfigError, Permanent, Transient
from thermocline.ingest import secret
from thermocline.ingest.kafka.source import KafkaReach
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from typing import IO

LARGEST = 4 << 20
SECONDS = 10.0


@dataclass(frozen=True)
class Schema:
    """A schema: Avro's JSON text, or Protobuf's descriptor bytes and the message's full name.

    Without a name, a value says by indexes which message of the descriptor it is.
    """

    avro: str = ""
    descriptor: bytes = b""
    message: str = ""


class Unknown(Permanent):
    """A registry does not have a schema that a message names."""


class Registry:
    """The schemas of one registry, each asked for once."""

    def __init__(self, reach: KafkaReach) -> None:
        self._reach = reach
        self._known: dict[int, Schema] = {}

    def schema(self, number: int) -> Schema:
        """The schema of that number. Raises Unknown, or Transient when nobody answers."""
        if number not in self._known:
            self._known[number] = self._fetched(number)
        return self._known[number]

    def _fetched(self, number: int) -> Schema:
        wanted = "?format=serialized" if self._reach.format == "protobuf" else ""
        answer = self._get(f"/schemas/ids/{number}{wanted}", number)
        kind = str(answer.get("schemaType", "AVRO")).lower()
        text = answer.get("schema")
        if kind != self._reach.format or not isinstance(text, str):
            raise ConfigError(
                f"Schema {number} of {self._reach.registry} is of type {one_line(kind)[:40]}, "
                f"not {self._reach.format}.",
                "Mend the source's format.",
            )
        if answer.get("references"):
            raise ConfigError(
                f"Schema {number} of {self._reach.registry} refers to other schemas, which is not "
                "in this version.",
                "Give the whole schema as a file instead.",
            )
        return _checked(text, kind, f"Schema {number} of {self._reach.registry}")

    def _get(self, path: str, number: int) -> dict[str, Any]:
        address = self._reach.registry.rstrip("/") + path
        request = urllib.request.Request(address, headers=self._headers())  # noqa: S310  http(s) only
        try:
            with _OPENER.open(request, timeout=SECONDS) as response:
                body = response.read(LARGEST + 1)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise Unknown(f"The registry has no schema {number}.", "") from None
            if error.code in {401, 403}:
                raise ConfigError(
                    f"The registry at {self._reach.registry} refused the credentials.",
                    "Mend registryOptions of the source.",
                ) from None
            raise Transient(
                f"The registry at {self._reach.registry} answered {error.code}.", "Try again."
            ) from None
        except OSError as error:
            raise Transient(
                f"The registry at {self._reach.registry} does not answer: {one_line(str(error))}",
                "Look whether it runs.",
            ) from None
        try:
            answer = json.loads(body) if len(body) <= LARGEST else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Transient(
                f"The registry at {self._reach.registry} did not answer in JSON.", "Look at it."
            )
        return answer

    def _headers(self) -> dict[str, str]:
        options = secret.reveal(self._reach.registry_options)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if "token" in options:
            headers["Authorization"] = f"Bearer {options['token']}"
        elif "user" in options:
            pair = f"{options['user']}:{options.get('password', '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers


def file_schema(reach: KafkaReach) -> Schema:
    """The schema in the source's file: an .avsc, or a descriptor set as protoc writes it."""
    assert reach.schema is not None
    if reach.format == "avro":
        return _checked(reach.schema.read_text("utf-8"), "avro", reach.schema.name)
    return Schema(descriptor=reach.schema.read_bytes(), message=reach.message)


def _checked(text: str, kind: str, name: str) -> Schema:
    try:
        if kind == "avro":
            import fastavro

            fastavro.parse_schema(json.loads(text))
            return Schema(avro=text)
        from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

        body = base64.b64decode(text, validate=True)
        described = descriptor_pb2.FileDescriptorProto.FromString(body)
        whole = descriptor_pb2.FileDescriptorSet(file=[described])
        return Schema(descriptor=whole.SerializeToString())
    except ImportError as error:
        raise ConfigError(
            f"{kind} needs a library that is not installed: {error.name}.",
            "Install it: pip install 'thermocline[kafka]'.",
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{name} is no {kind} schema: {one_line(str(error))[:200]}", "Mend the schema."
        ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the credentials to somebody who was not named."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
