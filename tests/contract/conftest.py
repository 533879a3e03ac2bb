"""A lake on each kind of catalog: the behaviour suite runs once over each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import clean_environment
from tests.servers import settings

from thermocline.config import load_settings
from thermocline.lake import Lake

CATALOGS = ("sqlite", "postgres", "rest")


@pytest.fixture(params=CATALOGS)
def catalog_environ(request: pytest.FixtureRequest, project: Path) -> dict[str, str]:
    """The settings of a lake of its own on one kind of catalog."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        return settings.postgres_lake_settings(server, project)
    if request.param == "rest":
        return settings.rest_lake_settings(request.getfixturevalue("rest_catalog_server"))
    return {}


@pytest.fixture
def open_lake(project: Path, catalog_environ: dict[str, str]) -> Iterator[Callable[[], Lake]]:
    """Opens the same lake as somebody else would: with connections of its own."""
    opened: list[Lake] = []

    def again() -> Lake:
        opened.append(
            Lake(load_settings(project, environ={**clean_environment(), **catalog_environ}))
        )
        return opened[-1]

    yield again
    for lake in opened:
        lake.duck.stop()


@pytest.fixture
def lake(open_lake: Callable[[], Lake]) -> Lake:
    """A fresh lake on the catalog."""
    return open_lake()
