"""The process of a hot node: `python -m thermocline.serve.node --address A --memory BYTES`."""

from __future__ import annotations

import argparse
import os
import sys

from thermocline import telemetry
from thermocline.errors import ThermoclineError
from thermocline.serve.node import limits


def main() -> int:
    """Confine this process, then answer queries until standard input closes."""
    parser = argparse.ArgumentParser(prog="thermocline.serve.node")
    parser.add_argument("--address", required=True, help="unix:/path or tcp:host:port")
    parser.add_argument("--memory", required=True, type=int, help="budget in bytes")
    parser.add_argument("--threads", type=int, default=2, help="queries at a time")
    request = parser.parse_args()
    telemetry.configure_log()
    try:
        limits.check_environment(os.environ)
        limits.confine(request.memory)
        # Read when Arrow is first loaded: its own allocator reserves a gigabyte at a time.
        os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
        _serve(request.address, request.memory, max(1, request.threads))
    except ThermoclineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _serve(address: str, memory: int, threads: int) -> None:
    from thermocline.serve.node.engine import lock_configuration, memory_limit, open_engine
    from thermocline.serve.node.query_handler import QueryHandler
    from thermocline.serve.node.store import CopyStore
    from thermocline.serve.wire import worker

    token = worker.receive_token()
    # Queries are small and many: run them in parallel, with few threads each.
    connection = open_engine(memory, max(1, threads // 2))
    store = CopyStore(connection, memory_limit(memory))
    answers = QueryHandler(connection, threads)
    lock_configuration(connection)
    verbs: dict[str, worker.Verb] = {"stage": store.stage, "held": store.list_copies}
    worker.run(address, token, answers, threads=threads, verbs=verbs,
               is_memory_short=limits.MemoryPressure(memory))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
