"""A worker without an engine: its queries sleep, give bytes, or fail. For tests of the loop."""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

from thermocline.errors import NotFound
from thermocline.serve.wire import worker


class Sleeper:
    """`sleep S` can be interrupted, `stubborn S` cannot, `bytes N` gives so many."""

    def __init__(self) -> None:
        self._stopped: dict[str, threading.Event] = {}
        self.cancelled = 0

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        word, _, amount = request["sql"].partition(" ")
        stopped = self._stopped[request["id"]] = threading.Event()
        match word:
            case "sleep":
                if stopped.wait(float(amount)):
                    self.cancelled += 1
                    raise worker.WorkerError("query", "interrupted")
            case "stubborn":
                time.sleep(float(amount))
            case "bytes":
                return {"count": 1}, b"x" * int(amount)
            case "missing":
                raise NotFound("There is no\nsuch thing: é", "Look elsewhere.", name=amount)
            case "bug":
                raise ZeroDivisionError("/a/secret/path")
            case "broken":
                raise worker.EngineBroken
        return {"said": request["sql"]}, b""

    def cancel(self, query: str) -> None:
        if query in self._stopped:
            self._stopped[query].set()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--waiting", type=int, default=4)
    said = parser.parse_args()
    sleeper = Sleeper()

    def slow(header: dict[str, Any], body: Any) -> dict[str, Any]:
        time.sleep(header["seconds"])
        return {"length": len(body), "cancelled": sleeper.cancelled}

    worker.run(said.address, worker.receive_token(), sleeper, threads=said.threads,
               verbs={"slow": slow}, max_waiting=said.waiting, stuck_seconds=1.5)  # fmt: skip


if __name__ == "__main__":
    main()
