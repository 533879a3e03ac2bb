"""Schemas of binary values: one from a file of the project, or many from a schema registry.

A registry speaks Confluent's REST protocol; a value then begins with a zero byte and the id of its
schema. Only the driver queries the registry, so the credentials never leave this process.
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
from thermocline.ingest.kafka.source import KafkaSettings
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from typing import IO

MAX_RESPONSE_BYTES = 4 << 20
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class ValueSchema:
    """A schema: Avro's JSON text, or Protobuf's descriptor bytes and the message's full name.

    Without a name, each value starts with the indexes of its message in the descriptor.
    """

    avro: str = ""
    descriptor: bytes = b""
    message: str = ""


class UnknownSchema(Permanent):
    """The registry does not have a schema that a message names."""


class SchemaRegistry:
    """The schemas of one registry, cached."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._cache: dict[int, ValueSchema] = {}

    def load_schema(self, schema_id: int) -> ValueSchema:
        """Return the schema with that id. Raise UnknownSchema, or Transient on no answer."""
        if schema_id not in self._cache:
            self._cache[schema_id] = self._fetch(schema_id)
        return self._cache[schema_id]

    def _fetch(self, schema_id: int) -> ValueSchema:
        query = "?format=serialized" if self._settings.format == "protobuf" else ""
        document = self._get(f"/schemas/ids/{schema_id}{query}", schema_id)
        schema_type = str(document.get("schemaType", "AVRO")).lower()
        text = document.get("schema")
        if schema_type != self._settings.format or not isinstance(text, str):
            raise ConfigError(
                f"Schema {schema_id} of {self._settings.registry} is of type "
                f"{one_line(schema_type)[:40]}, "
                f"not {self._settings.format}.",
                "Fix the source's format.",
            )
        if document.get("references"):
            raise ConfigError(
                f"Schema {schema_id} of {self._settings.registry} refers to other schemas, which "
                "is not in this version.",
                "Give the whole schema as a file instead.",
            )
        return _parse_schema(text, schema_type, f"Schema {schema_id} of {self._settings.registry}")

    def _get(self, path: str, schema_id: int) -> dict[str, Any]:
        address = self._settings.registry.rstrip("/") + path
        request = urllib.request.Request(address, headers=self._headers())  # noqa: S310  http(s) only
        try:
            with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
                body = response.read(MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise UnknownSchema(f"The registry has no schema {schema_id}.", "") from None
            if error.code in {401, 403}:
                raise ConfigError(
                    f"The registry at {self._settings.registry} refused the credentials.",
                    "Fix registryOptions of the source.",
                ) from None
            raise Transient(
                f"The registry at {self._settings.registry} answered {error.code}.", "Try again."
            ) from None
        except OSError as error:
            raise Transient(
                f"The registry at {self._settings.registry} does not answer: "
                f"{one_line(str(error))}",
                "Check that it runs.",
            ) from None
        try:
            document = json.loads(body) if len(body) <= MAX_RESPONSE_BYTES else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Transient(
                f"The registry at {self._settings.registry} did not answer in JSON.", "Check it."
            )
        return document

    def _headers(self) -> dict[str, str]:
        options = secret.reveal(self._settings.registry_options)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if "token" in options:
            headers["Authorization"] = f"Bearer {options['token']}"
        elif "user" in options:
            pair = f"{options['user']}:{options.get('password', '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers


def load_schema_file(settings: KafkaSettings) -> ValueSchema:
    """Load the schema in the source's file: an .avsc, or a descriptor set written by protoc."""
    assert settings.schema is not None
    if settings.format == "avro":
        return _parse_schema(settings.schema.read_text("utf-8"), "avro", settings.schema.name)
    return ValueSchema(descriptor=settings.schema.read_bytes(), message=settings.message)


def _parse_schema(text: str, schema_type: str, name: str) -> ValueSchema:
    try:
        if schema_type == "avro":
            import fastavro

            fastavro.parse_schema(json.loads(text))
            return ValueSchema(avro=text)
        from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

        body = base64.b64decode(text, validate=True)
        described = descriptor_pb2.FileDescriptorProto.FromString(body)
        whole = descriptor_pb2.FileDescriptorSet(file=[described])
        return ValueSchema(descriptor=whole.SerializeToString())
    except ImportError as error:
        raise ConfigError(
            f"{schema_type} needs a library that is not installed: {error.name}.",
            "Install it: pip install 'thermocline[kafka]'.",
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{name} is no {schema_type} schema: {one_line(str(error))[:200]}", "Fix the schema."
        ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the credentials to another host."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
