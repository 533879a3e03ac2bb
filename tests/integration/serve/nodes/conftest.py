"""A node for a module's tests and replicators for each of them; a folder for their sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.serve.nodes.replicators import Process, Replicators, node_process


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, and private."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def node(sockets: Path) -> Iterator[Process]:
    """One for all tests: each has a replicator of its own, that finds there what another left."""
    started = node_process(sockets, "node-0")
    yield started
    started.kill()


@pytest.fixture
def replicators() -> Iterator[Replicators]:
    """Makes replicators, which are stopped at the end of the test."""
    made = Replicators()
    yield made
    made.stop()
