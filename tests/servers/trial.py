"""Configuration of a torture trial with a broker and a database that it may crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

SECRET = "TORTURE_DB_PASSWORD"
"""Environment variable with the database's password."""


def name_servers(project: Path, broker: Kafka, database: Postgres) -> None:
    """Write sources that point the trial to the servers; they have no data of their own."""
    topic = {"kind": "kafka", "servers": broker.servers, "topic": "none"}
    table = {
        "kind": "postgres", "host": "127.0.0.1", "port": database.port, "database": "postgres",
        "user": database.user, "password": {"secret": SECRET}, "tables": ["public.none"],
    }  # fmt: skip
    (project / "sources").mkdir(parents=True)
    for name, source in (("topic", topic), ("table", table)):
        text = json.dumps({**source, "target": f"bronze.{name}"})
        (project / "sources" / f"{name}.yaml").write_text(text)


def crashes(broker: Kafka, database: Postgres) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return commands that crash and restart the broker and the database."""

    def crash_broker() -> None:
        broker.kill()
        broker.start()

    def crash_database() -> None:
        database.crash()
        database.start()

    return crash_broker, crash_database
