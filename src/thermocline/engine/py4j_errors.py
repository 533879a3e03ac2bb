"""Errors of the bridge to Java that mean that Spark's JVM is gone: killed, or out of memory."""

from __future__ import annotations

import traceback

from thermocline.errors import EngineUnavailable


def explain_dead_jvm(error: BaseException) -> EngineUnavailable | None:
    """What to tell when this error means that the JVM is gone; None when it does not.

    It is nothing that passes: this process has no Spark any more, and another has to be started.
    """
    if not _is_jvm_dead(error):
        return None
    return EngineUnavailable(
        "Spark's JVM has ended in the middle of the work.",
        "Nothing half done is visible. Run it again, if need be with more engine.spark.memory.",
    )


def _is_jvm_dead(error: BaseException) -> bool:
    if "Py4JNetworkError" in {base.__name__ for base in type(error).__mro__}:
        return True
    # A refused connection may be anybody's, a database's too: where it was raised tells whose.
    frames = traceback.walk_tb(error.__traceback__)
    bridge = any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in frames)
    return bridge and isinstance(error, ConnectionError)
