"""A worker for a project, opened by whoever is to do pieces of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.contract import load_contracts
from thermocline.lake import Lake
from thermocline.transform.models import load_models
from thermocline.transform.workers.worker import Worker, limited

if TYPE_CHECKING:
    from thermocline.config import Settings


@contextmanager
def worker(settings: Settings, memory: int, threads: int = 1) -> Iterator[Worker]:
    """A worker with so much memory, closed in the end."""
    models = load_models(
        settings.project / "models", load_contracts(settings.project / "contracts")
    )
    made = Worker(Lake(limited(settings, memory, threads)), models)
    try:
        yield made
    finally:
        made.close()
