"""`thermo serve` on a team's lake, with passwords before catalog and files: every engine answers.

The catalog is a PostgreSQL, the files are on S3. Processes are told the secrets, and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.integration.serve import serving
from tests.integration.serve.serving import Serving, until
from tests.integration.serve.shop_lake import DAYS, PER_DAY
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3
from tests.servers.settings import team_lake_settings

OLD = "ordered_at >= current_date - 20 and ordered_at < current_date - 19"
BY_ENGINE = {
    "hot": ("ordered_at >= current_date - 1", 2 * PER_DAY),
    "direct": (OLD, PER_DAY),
    "spark": ("true", DAYS * PER_DAY),
}
ASKED = 10


@pytest.fixture(scope="module")
def environ(
    postgres_server: Postgres, s3_server: S3, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    return team_lake_settings(postgres_server, s3_server, tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    project = serving.shop(tmp_path_factory.mktemp("served") / "p", serving.COLD, **environ)
    with serving.started(project, **environ) as started:
        started.settled(3)
        yield started


def asked(server: Serving, where: str, number: int = 0) -> tuple[str, int]:
    """Which engine answered, and how many orders there are; nothing is asked twice by number."""
    sql = f"select count(*) as n, {number} as number from silver.orders where {where}"
    told = httpx.post(f"{server.url}/query", json={"sql": sql, "timeout": 60}, timeout=90).json()
    return told["provenance"]["engine"], told["rows"][0][0]


def test_every_engine_answers_and_spark_keeps_its_connections(
    server: Serving, environ: dict[str, str], postgres_server: Postgres
) -> None:
    tries = iter(range(1_000_000))
    for engine, (where, count) in BY_ENGINE.items():
        # Spark is started by the first who asks it, and others may answer meanwhile.
        until(lambda e=engine, w=where, n=count: asked(server, w, next(tries)) == (e, n), 120)
    before = connections(postgres_server, environ)
    where, count = BY_ENGINE["spark"]
    for _ in range(ASKED):
        assert asked(server, where, next(tries)) == ("spark", count)
    assert connections(postgres_server, environ) < before + ASKED // 2
    written = "".join(path.read_text() for path in (server.project / ".thermocline").glob("*.log"))
    for name in ("CATALOG__PASSWORD", "S3__SECRET_KEY"):
        assert environ[f"THERMOCLINE_LAKE__{name}"] not in written


def connections(server: Postgres, environ: dict[str, str]) -> int:
    """How many connections the lake's database has."""
    database = environ["THERMOCLINE_LAKE__CATALOG__URI"].rpartition("/")[2]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_stat_activity where datname = %s", (database,))
        (count,) = cursor.fetchone()
    return int(count)
