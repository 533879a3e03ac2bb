"""A catalog that cannot be reached or used is said to be so in two lines, without a secret."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import clean_environment
from tests.contract.catalog_tables import ORDERS
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.servers.rest_catalog import RestCatalog

from thermocline.config import load_settings
from thermocline.errors import CatalogUnavailable
from thermocline.lake import Lake

CANARY = "canary-7f3a9/no one+may=read it"
TABLE = "silver.orders"


def lake_on(project: Path, kind: str, uri: str) -> Lake:
    """A lake whose catalog gets the canary as password and as token."""
    given = {"TYPE": kind, "URI": uri, "USER": "lake", "PASSWORD": CANARY, "TOKEN": CANARY}
    environ = {f"THERMOCLINE_LAKE__CATALOG__{key}": value for key, value in given.items()}
    return Lake(load_settings(project, environ={**clean_environment(), **environ}))


def asks(lake: Lake) -> list[Callable[[], object]]:
    """Looking, writing, and committing: each has its own way to the catalog."""
    return [
        lake.tables,
        lambda: lake.exists(TABLE),
        lambda: lake.state(TABLE),
        lambda: lake.iceberg(TABLE),
        lambda: lake.ensure(ORDERS),
        lambda: lake.catalog,
    ]


def said_by(ask: Callable[[], object]) -> str:
    """What a person reads; that no secret is in it or in the trace below it is checked here."""
    with pytest.raises(CatalogUnavailable) as caught:
        ask()
    error = caught.value
    said = str(error)
    assert len(said.splitlines()) == 2, said
    assert error.transient
    everything = "".join(traceback.format_exception(error)) + repr(error.as_dict())
    for secret in (CANARY, "canary", "7f3a9"):
        assert secret not in everything
    return said


def test_nobody_listens_at_the_address(project: Path) -> None:
    port = free_port()
    for kind, uri in (
        ("postgres", f"postgresql://127.0.0.1:{port}/lake"),
        ("rest", f"http://127.0.0.1:{port}"),
    ):
        for ask in asks(lake_on(project, kind, uri)):
            said = said_by(ask)
            assert said.startswith(f"The {kind} catalog cannot be used: ")
            assert "refused" in said
            assert "address" in said.splitlines()[1]


def test_the_password_is_wrong(postgres_server: Postgres, project: Path) -> None:
    uri = f"postgresql://127.0.0.1:{postgres_server.port}/postgres"
    for ask in asks(lake_on(project, "postgres", uri)):
        said = said_by(ask)
        assert 'password authentication failed for user "lake"' in said
        assert "password are right" in said


def test_the_database_does_not_exist(postgres_server: Postgres, project: Path) -> None:
    uri = f"postgresql://127.0.0.1:{postgres_server.port}/nowhere"
    environ = {
        "THERMOCLINE_LAKE__CATALOG__TYPE": "postgres",
        "THERMOCLINE_LAKE__CATALOG__URI": uri,
        "THERMOCLINE_LAKE__CATALOG__USER": postgres_server.user,
        "THERMOCLINE_LAKE__CATALOG__PASSWORD": postgres_server.password,
    }
    lake = Lake(load_settings(project, environ={**clean_environment(), **environ}))
    for ask in asks(lake):
        said = said_by(ask)
        assert 'database "nowhere" does not exist' in said
        assert postgres_server.password not in said


def test_the_address_is_no_catalog(rest_catalog_server: RestCatalog, project: Path) -> None:
    """It answers, but not as a catalog does: here every path below it is unknown."""
    for ask in asks(lake_on(project, "rest", f"{rest_catalog_server.uri}/elsewhere")):
        assert "The rest catalog cannot be used" in said_by(ask)


def test_the_catalogs_file_is_no_database(project: Path) -> None:
    database = project / "catalog.db"
    database.write_bytes(b"this is not a database, it only has its name" * 100)
    before = database.read_bytes()
    for ask in asks(lake_on(project, "sqlite", str(database))):
        said = said_by(ask)
        assert said.startswith("The sqlite catalog cannot be used: file is not a database")
    assert database.read_bytes() == before


def test_the_catalog_goes_away_while_a_lake_is_open(
    postgres_server: Postgres, project: Path
) -> None:
    from tests.servers.settings import postgres_lake_settings

    environ = postgres_lake_settings(postgres_server, project)
    lake = Lake(load_settings(project, environ={**clean_environment(), **environ}))
    lake.ensure(ORDERS)
    name = environ["THERMOCLINE_LAKE__CATALOG__URI"].rsplit("/", 1)[1]
    with postgres_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f'alter database "{name}" allow_connections false')
        cursor.execute(f"select pg_terminate_backend(pid) from pg_stat_activity "
                       f"where datname = '{name}'")  # fmt: skip
    for ask in asks(lake)[:5]:
        said = said_by(ask)
        assert said.startswith("The postgres catalog cannot be used: ")
        assert "not currently accepting connections" in said

    with postgres_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f'alter database "{name}" allow_connections true')
    assert lake.tables() == [TABLE]
    assert lake.ensure(ORDERS) == []
