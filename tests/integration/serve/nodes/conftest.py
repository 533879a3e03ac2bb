"""A node for a module's tests and keepers for each of them; a folder for their sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.serve.nodes.tending import Keepers, Process, node_process


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, and private."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def node(sockets: Path) -> Iterator[Process]:
    """One for all tests: each has a keeper of its own, that finds there what another left."""
    started = node_process(sockets, "node-0")
    yield started
    started.kill()


@pytest.fixture
def keepers() -> Iterator[Keepers]:
    """Makes keepers, which are stopped at the end of the test."""
    made = Keepers()
    yield made
    made.stop()
