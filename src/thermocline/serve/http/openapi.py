"""The OpenAPI document of the HTTP API: every address, its parameters and its responses.

Written by hand because there is no model layer; a test compares every route, field and status with
it, and Schemathesis every response.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from thermocline.config import ServeSettings
from thermocline.serve.http.request_parser import FORMATS, MAX_BODY_BYTES, SNAPSHOT, TABLE
from thermocline.serve.http.responses import MEDIA_TYPES, PROVENANCE_HEADER
from thermocline.sql.guard import DIALECTS

Json = dict[str, Any]

_MEANINGS = {
    400: ("refused", "Only SELECT is supported.", "The request is invalid."),
    401: ("unauthenticated", "This server answers only callers with a token.", "No valid token."),
    403: (
        "forbidden",
        "The request was made by a page of another site.",
        "The request is not allowed.",
    ),
    404: ("not-found", "There is no table silver.nothing.", "No such table or snapshot."),
    405: ("method", "This address does not support GET.", "The address has other methods."),
    406: (
        "not-acceptable",
        "No type in the Accept header is supported.",
        "No supported format is accepted.",
    ),
    413: (
        "too-much",
        "The request is larger than 1,000,000 bytes.",
        "Request or answer too large.",
    ),
    415: ("not-json", "The body must be JSON.", "The body is not sent as JSON."),
    429: ("busy", "You sent more than 50 queries a second.", "Too much at once; see Retry-After."),
    502: ("both-failed", "Hot and cold engine failed.", "No engine could answer."),
    503: ("transient", "The server is not ready to answer yet.", "Not now; see Retry-After."),
    504: ("too-late", "There was no answer in time.", "The deadline passed."),
}
_QUERY_STATUSES = (400, 401, 403, 404, 406, 413, 415, 429, 500, 502, 503, 504)
_STATUS_PAGE_STATUSES = (400, 401, 403, 500, 503)

_EXAMPLE = {"sql": "select day, revenue from gold.daily_revenue where day >= current_date - 6"}
_PROVENANCE: Json = {
    "engine": "hot",
    "node": "node-0",
    "tables": {"gold.daily_revenue": {"snapshot": "4312345678901234567", "staleness_ms": 840}},
    "because": ["inside the 7-day window", "node-0 holds the newest snapshot"],
    "overdue": False,
    "scanned": {"files": 0, "bytes": 0},
    "cost_usd": 0.0000004,
    "ms": {"parse": 0.3, "route": 0.1, "execute": 1.2, "encode": 0.2},
}


def document(settings: ServeSettings, *, open: bool) -> Json:
    """Return the document of a server with these settings; `open` means it requires no token."""
    schemes = {
        "token": {"type": "http", "scheme": "bearer", "description": "From `thermo token create`."}
    }
    found: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Thermocline",
            "version": version("thermocline"),
            "description": "One SELECT per request on the tables of a lake, answered by the "
            "fastest engine with current data, with the provenance of the answer.",
        },
        "paths": _paths(settings),
        "components": {"schemas": _schemas(settings), "securitySchemes": schemes},
    }
    if not open:
        found["security"] = [{"token": []}]
        for path in ("/health", "/ready", "/openapi.json"):
            found["paths"][path]["get"]["security"] = []
    return found


def _paths(settings: ServeSettings) -> Json:
    body = {
        "required": True,
        "content": {"application/json": {"schema": _ref("Ask"), "example": _EXAMPLE}},
    }
    explained = _reply("The route, and the reasons for it.", _ref("Explanation"))
    return {
        "/query": {"post": _operation(
            "query", f"Answer one SELECT, of at most {settings.max_rows:,} rows.", _rows(),
            _QUERY_STATUSES, requestBody=body,
        )},
        "/explain": {
            "get": _operation(
                "explainGet", "Explain the route of a query without running it.", explained,
                (*_STATUS_PAGE_STATUSES, 404, 429), parameters=_parameters(settings),
            ),
            "post": _operation(
                "explain", "Explain the route of a query without running it.", explained,
                tuple(s for s in _QUERY_STATUSES if s not in (406, 502, 504)), requestBody=body,
            ),
        },
        "/tables": {"get": _operation(
            "tables", "The tables of the lake and their hot copies.",
            _reply("The tables.", _ref("Tables")), _STATUS_PAGE_STATUSES,
        )},
        "/nodes": {"get": _operation(
            "nodes", "The hot nodes.", _reply("The nodes.", _listing("nodes")),
            _STATUS_PAGE_STATUSES,
        )},
        "/metrics": {"get": _operation(
            "metrics", "Measurements for Prometheus.",
            _text("Text format."), _STATUS_PAGE_STATUSES,
        )},
        "/health": {"get": _operation("health", "Whether the process runs.",
                                      _reply("It runs.", _ref("Status")), (400, 403))},
        "/ready": {"get": _operation("ready", "Whether queries can be answered.",
                                     _reply("Ready.", _ref("Status")), (400, 403, 503))},
        "/openapi.json": {"get": _operation("openapi", "This document.",
                                            _reply("OpenAPI.", {"type": "object"}), (400, 403))},
    }  # fmt: skip


def _operation(name: str, summary: str, ok: Json, ends: tuple[int, ...], **more: Any) -> Json:
    responses = {"200": ok, **{str(status): _failure(status) for status in sorted(ends)}}
    return {"operationId": name, "summary": summary, "responses": responses, **more}


def _failure(status: int) -> Json:
    if status == 500:
        example: Json = {"error": {"code": "internal"}}
        description = "A bug in the server. Its log has details."
    else:
        code, cause, description = _MEANINGS[status]
        transient = status in (429, 502, 503, 504)
        example = {
            "error": {
                "code": code,
                "cause": cause,
                "next_step": "What to do about it.",
                "transient": transient,
                "details": {},
            }
        }
    found = _reply(description, _ref("Error"), example)
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"required": True, "schema": {"type": "integer"}}}
    if status == 401:
        found["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    return found


def _rows() -> Json:
    binary = {"type": "string", "format": "binary"}
    found = _reply("The rows and their provenance.", _ref("Answer"))
    found["content"][MEDIA_TYPES["arrow"]] = {"schema": binary}
    found["content"]["text/csv"] = {"schema": {"type": "string"}}
    found["headers"] = {
        PROVENANCE_HEADER: {
            "description": "With Arrow and CSV: the provenance as JSON in ASCII, at most 7,000 "
            "bytes; `shortened` when something was left out.",
            "schema": {"type": "string"},
        }
    }
    return found


def _reply(description: str, schema: Json, example: Any = None) -> Json:
    content: Json = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"description": description, "content": {"application/json": content}}


def _text(description: str) -> Json:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _listing(name: str) -> Json:
    items = {"type": "array", "items": {"type": "object"}}
    return {"type": "object", "required": [name], "properties": {name: items}}


def _parameters(settings: ServeSettings) -> list[Json]:
    """Return the fields of a query as URL parameters, which are all text."""
    return [
        {"name": name, "in": "query", "required": name == "sql",
         "schema": {**schema, "type": next(iter(_types(schema)))}}
        for name, schema in _fields(settings).items()
    ]  # fmt: skip


def _types(schema: Json) -> list[str]:
    kind = schema["type"]
    return [kind] if isinstance(kind, str) else kind


def _fields(settings: ServeSettings) -> Json:
    text = ["string", "null"]
    snapshot = {"type": ["string", "integer", "null"], "pattern": f"^{SNAPSHOT}$", "minimum": 0,
                "maximum": 2**63 - 1}  # fmt: skip
    return {
        "sql": {"type": "string", "minLength": 1, "description": "One SELECT."},
        "dialect": {"type": text, "enum": [*DIALECTS, None], "default": "duckdb"},
        "table_id": {"type": text, "pattern": f"^{TABLE}$",
                     "description": "The table that start_time and the snapshots refer to; "
                     "defaults to the only table of the query."},
        "start_time": {"type": text, "format": "date-time",
                       "description": "Leave out rows before it. UTC unless it has a zone."},
        "snapshot": {**snapshot, "description": "Answer from exactly this snapshot."},
        "min_snapshot": {**snapshot, "description": "Answer from this snapshot or a later one."},
        "max_staleness": {"type": ["number", "null"], "minimum": 0,
                          "description": "How many seconds old the answer may be."},
        "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0,
                    "description": f"Seconds; never more than {settings.max_seconds}."},
        "format": {"type": text, "enum": [*FORMATS, None],
                   "description": "The format of the rows; defaults to the Accept header."},
    }  # fmt: skip


def _schemas(settings: ServeSettings) -> Json:
    text, whole = {"type": "string"}, {"type": "integer"}
    column = {"type": "object", "required": ["name", "type"],
              "properties": {"name": text, "type": text}}  # fmt: skip
    table = {
        "type": "object",
        "required": ["table", "snapshot", "committed_at", "rows", "bytes", "columns", "hot"],
        "properties": {
            "table": text, "snapshot": text, "committed_at": {**text, "format": "date-time"},
            "rows": whole, "bytes": whole, "files": whole,
            "time_column": {"type": ["string", "null"]},
            "columns": {"type": "array", "items": column},
            "hot": {"type": "object", "properties": {
                "wanted": {"type": ["string", "number", "null"]},
                "copies": {"type": "array", "items": {"type": "object"}},
            }},
        },
    }  # fmt: skip
    return {
        "Ask": {
            "type": "object", "required": ["sql"], "additionalProperties": False,
            "properties": _fields(settings),
            "description": f"At most {MAX_BODY_BYTES:,} bytes.", "examples": [_EXAMPLE],
        },
        "Answer": {
            "type": "object", "required": ["columns", "rows", "provenance"],
            "properties": {
                "columns": {"type": "array", "items": column},
                "rows": {"type": "array", "items": {"type": "array"}},
                "provenance": _ref("Provenance"),
            },
        },
        "Provenance": {"type": "object", "required": ["engine"], "examples": [_PROVENANCE],
                       "properties": {"engine": text, "tables": {"type": "object"}}},
        "Explanation": {"type": "object"},
        "Tables": {"type": "object", "required": ["tables"], "properties": {
            "looked_at": text, "tables": {"type": "array", "items": table}}},
        "Status": {"type": "object", "required": ["status"], "properties": {"status": text}},
        "Error": {
            "type": "object", "required": ["error"],
            "properties": {"error": {
                "type": "object", "required": ["code"],
                "properties": {
                    "code": text, "cause": text, "next_step": text,
                    "transient": {"type": "boolean"}, "details": {"type": "object"},
                },
            }},
        },
    }  # fmt: skip
