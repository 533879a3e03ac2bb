"""Sends the events of all lanes, little by little, while others land."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from thermocline.torture.lanes import Lane

SLICE_EVENTS = 10_000


class Sender:
    """Sends each lane's events from a thread of its own.

    They come in portions with a pause between them, so that the process that takes them in is met
    in more than one batch.
    """

    def __init__(self, lanes: Sequence[Lane], pause: float) -> None:
        self._lanes = lanes
        self._pause = pause
        self._sent = {lane.kind: 0 for lane in lanes}
        self._wanted = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *error: object) -> None:
        self._join()

    def send(self, more: int, portions: int = 1) -> None:
        """Send so many more events down every lane, in portions, and return at once.

        What is left of the portions before is sent first, without a pause.
        """
        self._join()
        goals = [self._wanted + more * n // portions for n in range(1, portions + 1)]
        self._wanted += more
        self._hurry.clear()
        self._thread = threading.Thread(target=self._run, args=(goals,), daemon=True)
        self._thread.start()

    def send_all(self, events: int) -> None:
        """Send what is left of all events, and wait until that is done."""
        self.send(events - self._wanted)
        self._join()

    def sent(self, lane: Lane) -> int:
        """How many events of a lane its source has."""
        return self._sent[lane.kind]

    def _run(self, portions: Sequence[int]) -> None:
        try:
            for number, wanted in enumerate(portions):
                if number:
                    self._hurry.wait(self._pause)
                self._send_to(wanted)
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self._failure = error

    def _send_to(self, wanted: int) -> None:
        for lane in self._lanes:
            while (first := self._sent[lane.kind]) < wanted:
                last = min(first + SLICE_EVENTS, wanted)
                lane.send(lane.workload.between(first, last))
                self._sent[lane.kind] = last

    def _join(self) -> None:
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
