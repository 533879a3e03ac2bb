"""A project in Airflow: every hour, ingest new data and update stale tables.

The functions do not depend on Airflow and can be called directly; the DAG at the end orders them.
THERMOCLINE_PROJECT names the project's folder on the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

TRANSIENT = 5
"""Exit code of an error that a retry may fix. Other errors need a person."""


class TryAgain(Exception):
    """The catalog was unavailable, or another writer committed first."""


class Refused(Exception):
    """A permanent error: in a contract, a setting, or a failed quality rule."""


def thermo(*words: str) -> Any:
    """Run a command and return its JSON result. Every command is safe to retry."""
    project = os.environ.get("THERMOCLINE_PROJECT", ".")
    command = ["thermo", "--project", project, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    kind = TryAgain if done.returncode == TRANSIENT else Refused
    raise kind(done.stdout + done.stderr)


def ingest() -> int:
    """Ingest new data from the sources and return the number of rows."""
    return sum(target["rows"] for target in thermo("ingest")["targets"])


def stale() -> list[str]:
    """Return the tables that a run would update, in order. Starts no engine."""
    return [step["table"] for step in thermo("plan")["steps"]]


def run() -> list[str]:
    """Update stale tables, publish them in one commit, and return their names."""
    return list(thermo("run")["published"])


try:
    from airflow.exceptions import AirflowFailException
    from airflow.sdk import dag, task
except ImportError:
    pass
else:
    import pendulum

    def _once(work: Any) -> Any:
        """Fail without a retry if the error is permanent."""
        try:
            return work()
        except Refused as refused:
            raise AirflowFailException(str(refused)) from refused

    @dag(
        schedule="@hourly",
        start_date=pendulum.datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 5, "retry_exponential_backoff": True},
    )
    def lakehouse() -> None:
        @task
        def take_in() -> int:
            return _once(ingest)

        @task.short_circuit
        def anything_stale() -> bool:
            return bool(_once(stale))

        @task
        def bring_up_to_date() -> list[str]:
            return _once(run)

        take_in() >> anything_stale() >> bring_up_to_date()

    lakehouse()
