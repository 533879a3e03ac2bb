"""Map errors to Trino's error codes, so that its clients handle them like Trino's own."""

from __future__ import annotations

import re
from typing import Any

from thermocline.errors import BadInput, NotFound, ThermoclineError, Transient
from thermocline.serve.failures import (
    Busy,
    DivisionByZero,
    Forbidden,
    TooLate,
    TooMuch,
    Unauthenticated,
)
from thermocline.sql.guard import QueryRefused

USER, INTERNAL, RESOURCES = "USER_ERROR", "INTERNAL_ERROR", "INSUFFICIENT_RESOURCES"

CODES = {
    "GENERIC_USER_ERROR": (0, USER),
    "SYNTAX_ERROR": (1, USER),
    "ABANDONED_QUERY": (2, USER),
    "USER_CANCELED": (3, USER),
    "PERMISSION_DENIED": (4, USER),
    "NOT_FOUND": (5, USER),
    "DIVISION_BY_ZERO": (8, USER),
    "NOT_SUPPORTED": (13, USER),
    "INVALID_SESSION_PROPERTY": (14, USER),
    "QUERY_TEXT_TOO_LARGE": (35, USER),
    "CATALOG_NOT_FOUND": (44, USER),
    "SCHEMA_NOT_FOUND": (45, USER),
    "TABLE_NOT_FOUND": (46, USER),
    "MISSING_SCHEMA_NAME": (57, USER),
    "EXPRESSION_NOT_CONSTANT": (75, USER),
    "INVALID_PARAMETER_USAGE": (80, USER),
    "GENERIC_INTERNAL_ERROR": (65536, INTERNAL),
    "NO_NODES_AVAILABLE": (65541, INTERNAL),
    "GENERIC_INSUFFICIENT_RESOURCES": (131072, RESOURCES),
    "QUERY_QUEUE_FULL": (131074, RESOURCES),
    "EXCEEDED_TIME_LIMIT": (131075, RESOURCES),
}
"""Trino's number and type of each error that is returned."""

_BY_CLASS: tuple[tuple[type[ThermoclineError], str], ...] = (
    (QueryRefused, "NOT_SUPPORTED"),
    (DivisionByZero, "DIVISION_BY_ZERO"),
    (TooMuch, "GENERIC_INSUFFICIENT_RESOURCES"),
    (NotFound, "TABLE_NOT_FOUND"),
    (Busy, "QUERY_QUEUE_FULL"),
    (TooLate, "EXCEEDED_TIME_LIMIT"),
    (Unauthenticated, "PERMISSION_DENIED"),
    (Forbidden, "PERMISSION_DENIED"),
    (BadInput, "GENERIC_USER_ERROR"),
    (Transient, "NO_NODES_AVAILABLE"),
)


class TrinoError(QueryRefused):
    """An error in a statement, with Trino's name for it."""

    def __init__(self, name: str, cause: str, next_step: str = "") -> None:
        super().__init__(cause, next_step)
        self.name = name


def error_name(error: BaseException) -> str:
    """Return Trino's name of an error."""
    if isinstance(error, TrinoError):
        return error.name
    for kind, name in _BY_CLASS:
        if isinstance(error, kind):
            return name
    return "GENERIC_INTERNAL_ERROR"


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an error in Trino's JSON; an unexpected one without details."""
    name = error_name(error)
    code, kind = CODES[name]
    if isinstance(error, ThermoclineError):
        message = " ".join(part for part in (error.cause, error.next_step) if part)
    else:
        message = "The server failed. Try again; its log says more."
    message = re.sub(r"\s+", " ", message)
    return {
        "message": message,
        "errorCode": code,
        "errorName": name,
        "errorType": kind,
        "failureInfo": {
            "type": f"thermocline.{name}",
            "message": message,
            "suppressed": [],
            "stack": [],
        },
    }
