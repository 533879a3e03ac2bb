"""Recognize Py4J errors which mean that Spark's JVM died: killed, or out of memory."""

from __future__ import annotations

import traceback

from thermocline.errors import EngineUnavailable


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


def _is_jvm_dead(error: BaseException) -> bool:
    if "Py4JNetworkError" in {base.__name__ for base in type(error).__mro__}:
        return True
    # A refused connection may come from anything, such as a database: check where it was raised.
    frames = traceback.walk_tb(error.__traceback__)
    bridge = any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in frames)
    return bridge and isinstance(error, ConnectionError)
