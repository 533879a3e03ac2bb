"""The keeper's process: `python -m thermocline.serve.replicator --project P --address A`."""

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
from thermocline.serve.replicator.policy import Policy
from thermocline.serve.replicator.replicator import Replicator
from thermocline.serve.wire import worker

if TYPE_CHECKING:
    from thermocline.config import Settings


class _QueriesRefused:
    """The keeper answers no queries: it holds no rows."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        raise worker.WorkerError("not-held", "The keeper holds no rows.", "Ask a node.")

    def cancel(self, query: str) -> None:
        pass


def main() -> None:
    """Read the project, look at its catalog, and answer until standard input closes."""
    parser = argparse.ArgumentParser(prog="thermocline.serve.replicator")
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--profile")
    parser.add_argument("--address", required=True)
    parser.add_argument("--window", type=float, help="seconds that are hot, unless a contract says")
    parser.add_argument("--whole", type=int, help="bytes up to which a table is held whole")
    parser.add_argument("--budget", type=int, help="bytes that the copies of a node may have")
    parser.add_argument("--replicas", type=int)
    given = parser.parse_args()
    token = worker.receive_token()
    telemetry.configure_log(level="WARNING")
    settings = config.load_settings(given.project, given.profile, worker.receive_settings())
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    keeper = Replicator(
        CatalogPoller(settings, _policy(given), _contracts(settings)), _policy(given)
    )
    threading.Thread(target=keeper.run, name="look", daemon=True).start()
    worker.run(given.address, token, _QueriesRefused(), threads=1, verbs=keeper.verbs())


def _policy(given: argparse.Namespace) -> Policy:
    chosen = {
        "window": None if given.window is None else timedelta(seconds=given.window),
        "whole_bytes": given.whole,
        "budget": given.budget,
        "replicas": given.replicas,
    }
    return Policy(**{name: value for name, value in chosen.items() if value is not None})


def _contracts(settings: Settings) -> dict[str, Contract]:
    """The project's contracts. Serving goes on without them while they are broken."""
    try:
        return load_contracts(settings.project / "contracts")
    except ContractError as error:
        telemetry.log("keeper", "contracts", level="WARNING", error=str(error))
        return {}


if __name__ == "__main__":
    main()
