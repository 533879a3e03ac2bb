"""Fixtures of the integration tests that several of their modules share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.integration.postgres_project import SECRET, Project
from tests.servers.postgres import Postgres


@pytest.fixture
def captured(
    project: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project that captures a database of its own."""
    monkeypatch.setenv(SECRET, postgres_server.password)
    made = Project(project, postgres_server, f"shop_{uuid4().hex[:8]}")
    yield made
    made.remove()
