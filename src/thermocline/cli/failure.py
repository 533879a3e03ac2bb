"""Report a failed command: the cause and the next step, as text or as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import click

from thermocline.config import SETTINGS, Secret
from thermocline.engine.py4j_errors import explain_dead_jvm
from thermocline.errors import ThermoclineError
from thermocline.lake.commit_failures import disk_error
from thermocline.telemetry import hide, one_line, redact

BUG_EXIT_CODE = 70


class UsageError(ThermoclineError):
    """The command line is invalid."""

    code = "usage"
    exit_code = 2


class Bug(ThermoclineError):
    """An unexpected error: a defect of Thermocline."""

    code = "bug"
    exit_code = BUG_EXIT_CODE


def report(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Print the error to stderr, or as JSON to stdout, and return its exit code."""
    # A command may have failed before its project was opened and its secrets were hidden.
    hide(os.environ.get(s.variable, "") for s in SETTINGS if s.kind is Secret)
    known = explain(error)
    if debug:
        print(redact("".join(traceback.format_exception(error)).rstrip()), file=sys.stderr)
    if as_json:
        print(redact(json.dumps(known.as_dict(), default=str, ensure_ascii=False)))
    else:
        print(redact(_format_error(known)), file=sys.stderr)
    return known.exit_code


def explain(error: BaseException) -> ThermoclineError:
    """Return the error as a ThermoclineError: click's become UsageError, unexpected ones Bug."""
    if isinstance(error, ThermoclineError):
        return error
    if isinstance(error, click.ClickException):
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "thermo"
        return UsageError(
            error.format_message(), f"Run `{path} --help` to see its arguments and options."
        )
    if (ended := explain_dead_jvm(error)) is not None:
        return ended
    if (disk := disk_error(error)) is not None:
        return disk
    text = one_line(str(error))[:300]
    return Bug(
        f"This is a bug: {type(error).__name__}" + (f": {text}" if text else "."),
        "Run the command again with --debug and report the output.",
        type=type(error).__name__,
    )


def _format_error(error: ThermoclineError) -> str:
    # The problems of a contract have one line each; no line may contain another line break.
    cause = "\n".join(one_line(line) for line in error.cause.split("\n"))
    return f"{cause}\n  {one_line(error.next_step)}" if error.next_step else cause
