"""Send the events of all lanes gradually, while earlier ones land."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from thermocline.torture.lanes import Lane

SLICE_EVENTS = 10_000


class Sender:
    """Sends the events of all lanes in a background thread.

    They are sent in portions with pauses, so that chaos actions hit the process in different
    batches.
    """

    def __init__(self, lanes: Sequence[Lane], pause: float) -> None:
        self._lanes = lanes
        self._pause = pause
        self._sent = {lane.kind: 0 for lane in lanes}
        self._target = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._skip_pauses = threading.Event()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *error: object) -> None:
        self._join()

    def send(self, more: int, portions: int = 1) -> None:
        """Send `more` events to every lane in portions, in the background.

        The rest of the previous portions is sent first, without a pause.
        """
        self._join()
        goals = [self._target + more * n // portions for n in range(1, portions + 1)]
        self._target += more
        self._skip_pauses.clear()
        self._thread = threading.Thread(target=self._run, args=(goals,), daemon=True)
        self._thread.start()

    def send_all(self, events: int) -> None:
        """Send the remaining events, and wait until all are sent."""
        self.send(events - self._target)
        self._join()

    def sent(self, lane: Lane) -> int:
        """Return how many events of a lane were sent."""
        return self._sent[lane.kind]

    def _run(self, portions: Sequence[int]) -> None:
        try:
            for number, target in enumerate(portions):
                if number:
                    self._skip_pauses.wait(self._pause)
                self._send_up_to(target)
        except BaseException as error:  # noqa: BLE001  raised again by `_join`
            self._failure = error

    def _send_up_to(self, target: int) -> None:
        for lane in self._lanes:
            while (first := self._sent[lane.kind]) < target:
                last = min(first + SLICE_EVENTS, target)
                lane.send(lane.workload.between(first, last))
                self._sent[lane.kind] = last

    def _join(self) -> None:
        if self._thread is not None:
            self._skip_pauses.set()
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
