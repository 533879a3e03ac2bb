"""What a Py4J error is about: a JVM that died, or the chain of Java exceptions behind it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from thermocline.errors import EngineUnavailable

_MAX_CAUSES = 20


def explain_dead_jvm(error: BaseException) -> EngineUnavailable | None:
    """Return EngineUnavailable if this error means that the JVM died, else None.

    It is permanent: this process cannot use Spark again, and a new process must be started.
    """
    if not _is_jvm_dead(error):
        return None
    return EngineUnavailable(
        "Spark's JVM ended during the operation.",
        "Nothing was published. Run the command again, if necessary with more engine.spark.memory.",
    )


@dataclass(frozen=True)
class JavaCause:
    """One Java exception behind an error: its class, and the vendor's code if it is of SQL."""

    name: str
    sql_code: int | None = None


def list_java_causes(error: BaseException) -> list[JavaCause]:
    """Return the Java exceptions behind an error, outermost first."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[JavaCause] = []
    while java is not None and len(found) < _MAX_CAUSES:
        name = str(java.getClass().getSimpleName())
        found.append(JavaCause(name, _sql_code(java)))
        java = java.getCause()
    return found


def _sql_code(java: Any) -> int | None:
    from py4j.protocol import Py4JError

    try:
        return int(java.getErrorCode())
    except (Py4JError, TypeError, ValueError):
        return None  # not an SQLException


def _is_jvm_dead(error: BaseException) -> bool:
    if "Py4JNetworkError" in {base.__name__ for base in type(error).__mro__}:
        return True
    # A refused connection may come from anything, such as a database: check where it was raised.
    frames = traceback.walk_tb(error.__traceback__)
    bridge = any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in frames)
    return bridge and isinstance(error, ConnectionError)
