"""The replicator's process: `python -m thermocline.serve.replicator --project P --address A`."""

from __future__ import annotations

import argparse
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline import config, telemetry
from thermocline.contract import Contract, load_contracts
from thermocline.errors import ContractError
from thermocline.serve.replicator.catalog_poller import CatalogPoller
from thermocline.serve.replicator.hot_policy import Policy
from thermocline.serve.replicator.replicator import Replicator
from thermocline.serve.wire import worker

if TYPE_CHECKING:
    from thermocline.config import Settings


class _QueriesRefused:
    """The replicator answers no queries: it holds no rows."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        raise worker.WorkerError("not-held", "The replicator holds no rows.", "Query a node.")

    def cancel(self, query: str) -> None:
        pass


def main() -> None:
    """Read the project, poll its catalog, and answer until standard input closes."""
    parser = argparse.ArgumentParser(prog="thermocline.serve.replicator")
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--profile")
    parser.add_argument("--address", required=True)
    parser.add_argument(
        "--window", type=float, help="seconds that are hot, unless a contract sets them"
    )
    parser.add_argument("--whole", type=int, help="bytes up to which a table is held whole")
    parser.add_argument("--budget", type=int, help="bytes that the copies of a node may take")
    parser.add_argument("--replicas", type=int)
    arguments = parser.parse_args()
    token = worker.receive_token()
    telemetry.configure_log(level="WARNING")
    settings = config.load_settings(arguments.project, arguments.profile, worker.receive_settings())
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    replicator = Replicator(
        CatalogPoller(settings, _policy(arguments), _contracts(settings)), _policy(arguments)
    )
    threading.Thread(target=replicator.run, name="poll", daemon=True).start()
    worker.run(arguments.address, token, _QueriesRefused(), threads=1, verbs=replicator.verbs())


def _policy(arguments: argparse.Namespace) -> Policy:
    chosen = {
        "window": None if arguments.window is None else timedelta(seconds=arguments.window),
        "whole_bytes": arguments.whole,
        "budget": arguments.budget,
        "replicas": arguments.replicas,
    }
    return Policy(**{name: value for name, value in chosen.items() if value is not None})


def _contracts(settings: Settings) -> dict[str, Contract]:
    """Return the project's contracts. Serving continues without them while they are invalid."""
    try:
        return load_contracts(settings.project / "contracts")
    except ContractError as error:
        telemetry.log("replicator", "contracts", level="WARNING", error=str(error))
        return {}


if __name__ == "__main__":
    main()
