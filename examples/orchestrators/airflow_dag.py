"""A project in Airflow: every hour take in what is new, and bring what is stale up to date.

The functions know nothing of Airflow and can be called by hand; the DAG at the end puts them in
order. THERMOCLINE_PROJECT names the project's folder on the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

TRANSIENT = 5
"""The exit code that says: trying again may help. Others are for people."""


class TryAgain(Exception):
    """The catalog was away, or somebody committed first."""


class Refused(Exception):
    """Something is wrong that stays wrong: a contract, a rule that does not hold, a setting."""


def thermo(*words: str) -> Any:
    """What a command answers, or why it does not. Any command may be called again."""
    project = os.environ.get("THERMOCLINE_PROJECT", ".")
    command = ["thermo", "--project", project, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    kind = TryAgain if done.returncode == TRANSIENT else Refused
    raise kind(done.stdout + done.stderr)


def ingest() -> int:
    """Take in what is new at the sources; says how many rows."""
    return sum(target["rows"] for target in thermo("ingest")["targets"])


def stale() -> list[str]:
    """The tables that a run would bring up to date, in order. Starts no engine."""
    return [step["table"] for step in thermo("plan")["steps"]]


def run() -> list[str]:
    """Bring them up to date and publish them at once; says which."""
    return list(thermo("run")["published"])


try:
    from airflow.exceptions import AirflowFailException
    from airflow.sdk import dag, task
except ImportError:
    pass
else:
    import pendulum

    def _once(work: Any) -> Any:
        """Fail without another try where that would give the same answer."""
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
