"""Ctrl-C while data is taken in: the batch in hand is finished first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

import click


@contextmanager
def until_interrupted() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set: the batch in hand is finished, then the command ends.

    A second one is not waited for: nothing is lost by it.
    """
    stop = Event()

    def asked(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        name = signal.Signals(number).name
        click.echo(f"{name}: ending after the batch in hand.", err=True)

    before = {each: signal.signal(each, asked) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
