"""Structured logs and progress.

Both are silent until an entry point asks for them. All output passes through `redact`, so a
secret that was registered with `hide` never leaves the process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.errors import first_line

if TYPE_CHECKING:
    import logging

ROOT_LOGGER = "thermocline"
_hidden: set[str] = set()


def hide(values: Iterable[str]) -> None:
    """Redact these values from all output: as they are, and in their URL and JSON spellings."""
    import json
    from urllib.parse import quote, quote_plus

    for value in values:
        # Redacting a shorter value would protect nothing and hide ordinary words.
        if len(value) >= 4:
            _hidden.update((value, quote(value, safe=""), quote_plus(value)))
            _hidden.update((json.dumps(value)[1:-1], repr(value)[1:-1]))


def redact(text: str) -> str:
    """Return the text with every hidden value replaced by ***."""
    for value in sorted(_hidden, key=len, reverse=True):  # a longer secret may hold a shorter one
        text = text.replace(value, "***")
    return text


def safe_first_line(error: BaseException) -> str:
    """Return the first line of an error's text for people: printable, short, without secrets."""
    return redact(one_line(first_line(error)))[:300]


def one_line(text: str) -> str:
    """Return the text as one printable line: no value can forge a second line or move a cursor."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def configure_log(target: Path | None = None, level: str = "INFO", largest: int = 0) -> None:
    """Write the log as JSON lines to a file, or to stderr without `target`.

    A file that reaches `largest` bytes is rotated; one old file is kept.
    """
    import logging

    logger = logging.getLogger(ROOT_LOGGER)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    handler: logging.Handler
    if target is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = _file_handler(target, largest)
    handler.setFormatter(_json_formatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def _file_handler(target: Path, largest: int) -> logging.Handler:
    import os
    from logging.handlers import RotatingFileHandler

    class OwnerOnlyHandler(RotatingFileHandler):
        def _open(self) -> Any:
            return open(
                self.baseFilename,
                self.mode,
                encoding=self.encoding,
                opener=lambda path, flags: os.open(path, flags, 0o600),
            )

    return OwnerOnlyHandler(
        target, maxBytes=largest, backupCount=1 if largest else 0, encoding="utf-8"
    )


def log(name: str, event: str, /, *, level: str = "INFO", **fields: Any) -> None:
    """Record an event of a component; `fields` become JSON fields of the record."""
    import logging

    logger = logging.getLogger(f"{ROOT_LOGGER}.{name}")
    logger.log(logging.getLevelNamesMapping()[level], event, extra={"fields": fields})


def _json_formatter() -> logging.Formatter:
    import json
    import logging
    from datetime import UTC, datetime

    class JsonLogFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            entry: dict[str, Any] = {
                "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
                "level": record.levelname,
                "part": record.name.removeprefix(f"{ROOT_LOGGER}."),
                "event": record.getMessage(),
                **getattr(record, "fields", {}),
            }
            if record.exc_info:
                entry["error"] = self.formatException(record.exc_info)
            # JSON escapes CR and LF, so one record is one line whatever a value holds.
            return redact(json.dumps(entry, default=str))

    return JsonLogFormatter()


class Progress(Protocol):
    """Receives the progress of long work. Steps follow each other; one is open at a time."""

    def step(self, name: str, total: int | None = None) -> None:
        """Begin a step; `total` is the number of units that `advance` will reach, where known."""

    def advance(self, by: int = 1, detail: str = "") -> None:
        """Advance the open step by a number of units."""

    def done(self, detail: str = "") -> None:
        """End the open step with success; `detail` is a short summary for a person."""


class SilentProgress:
    """Progress that shows nothing."""

    def step(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, by: int = 1, detail: str = "") -> None:
        pass

    def done(self, detail: str = "") -> None:
        pass


SILENT: Progress = SilentProgress()
