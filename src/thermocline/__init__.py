"""Thermocline: a lakehouse in Python on Apache Iceberg, with pipelines on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thermocline.api import Lakehouse, demo, init, open
    from thermocline.client import connect

__version__ = "0.1.0"
__all__ = ["Lakehouse", "__version__", "connect", "demo", "init", "open"]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `thermo --help` and `import thermocline` stay fast.
    if name in {"Lakehouse", "demo", "init", "open"}:
        from thermocline import api

        return getattr(api, name)
    if name == "connect":
        from thermocline.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # For completion: names that are loaded on first use are not in the module's globals yet.
    return sorted({*globals(), *__all__})
