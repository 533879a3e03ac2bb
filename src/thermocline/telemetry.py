"""What the system says while it works: structured logs and progress.

Both are silent until an entry point asks for them. Whatever is said passes through `redact`, so
a secret that was named to `hide` leaves the process nowhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import logging

ROOT_LOGGER = "thermocline"
_hidden: set[str] = set()


def hide(values: Iterable[str]) -> None:
    """Never let these values out again: neither as they are, nor as a URL or JSON spells them."""
    import json
    from urllib.parse import quote, quote_plus

    for value in values:
        # A shorter one protects nothing and would blot out ordinary words.
        if len(value) >= 4:
            _hidden.update((value, quote(value, safe=""), quote_plus(value)))
            _hidden.update((json.dumps(value)[1:-1], repr(value)[1:-1]))


def redact(text: str) -> str:
    """The text with every hidden value replaced by ***."""
    for value in sorted(_hidden, key=len, reverse=True):  # a longer secret may hold a shorter one
        text = text.replace(value, "***")
    return text


def one_line(text: str) -> str:
    """The text as one printable line: no value can forge a second line or move a cursor."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def log_to(target: Path | None = None, level: str = "INFO", largest: int = 0) -> None:
    """Write the system's log as JSON lines to a file, or to stderr when none is named.

    A file that has grown to `largest` bytes is put aside, in the place of the one before.
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
        handler = _file(target, largest)
    handler.setFormatter(_json_lines())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def _file(target: Path, largest: int) -> logging.Handler:
    import os
    from logging.handlers import RotatingFileHandler

    class OwnersAlone(RotatingFileHandler):
        def _open(self) -> Any:
            return open(
                self.baseFilename,
                self.mode,
                encoding=self.encoding,
                opener=lambda path, flags: os.open(path, flags, 0o600),
            )

    return OwnersAlone(target, maxBytes=largest, backupCount=1 if largest else 0, encoding="utf-8")


def log(name: str, event: str, /, *, level: str = "INFO", **fields: Any) -> None:
    """Record an event of a part of the system; `fields` are kept as they are, not as prose."""
    import logging

    logger = logging.getLogger(f"{ROOT_LOGGER}.{name}")
    logger.log(logging.getLevelNamesMapping()[level], event, extra={"fields": fields})


def _json_lines() -> logging.Formatter:
    import json
    import logging
    from datetime import UTC, datetime

    class JsonLines(logging.Formatter):
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

    return JsonLines()


class Progress(Protocol):
    """Who watches a long piece of work. Steps follow each other; one is open at a time."""

    def step(self, name: str, total: int | None = None) -> None:
        """A new step begins; `total` is how far `advance` will go, where that is known."""

    def advance(self, by: int = 1, detail: str = "") -> None:
        """The open step went further."""

    def done(self, detail: str = "") -> None:
        """The open step ended well; `detail` is what a person wants to know of it."""


class Silent:
    """Progress that nobody watches."""

    def step(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, by: int = 1, detail: str = "") -> None:
        pass

    def done(self, detail: str = "") -> None:
        pass


SILENT: Progress = Silent()
