"""A node as its keeper talks to it: the words of `node.staging`, said over a line."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.errors import Transient
from thermocline.serve.fleet.lookout import read_held
from thermocline.serve.node import staging
from thermocline.serve.terms import Held
from thermocline.serve.wire.wire import Line

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.serve.keeper.goals import Want
    from thermocline.serve.keeper.reading import Difference

SECONDS = 60.0
"""How long a node may take for one request, the longest of which applies a change."""
MOST_GONE, MOST_DELETED = 100_000, 1_000_000
"""So many files, and so many places of rows, are in one message."""


class Refused(Transient):
    """A node did not do what it was told; `code` of the details says why."""

    code = "refused"


class Link:
    """A connection to a node. Raises Lost when the node is, and Refused when it says no."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._name = secrets.token_hex(4)  # nobody else's change set can be taken for ours
        self._numbers = itertools.count(1)

    @classmethod
    def open(cls, address: str, token: str) -> Link:
        """Connect to a node."""
        return cls(Line.open(address, token, timeout=SECONDS))

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def ping(self) -> None:
        """Find out whether the node is still there."""
        self._ask({"do": "ping"})

    def reset(self) -> None:
        """Have the node forget what a keeper before us began."""
        self._ask(staging.reset())

    def held(self) -> dict[str, Held]:
        """What the node holds."""
        return _held(self._ask({"do": "held"}))

    def begin(self) -> str:
        """Start a change set; gives its name."""
        change = f"{self._name}-{next(self._numbers)}"
        self._ask(staging.begin(change))
        return change

    def new(self, change: str, want: Want) -> None:
        """Start a copy of a table, beside the one that serves, if any."""
        head = want.sight.head
        columns = [
            (field.name, json.loads(field.field_type.model_dump_json()))
            for field in want.sight.schema.fields
        ]
        said = staging.new(
            change, head.table, columns, head.snapshot, since=want.since, sort=head.time
        )
        self._ask(said)

    def advance(self, change: str, held: int, want: Want, found: Difference) -> None:
        """Take a copy on from the snapshot it is at; what left it goes, what came follows."""
        head = want.sight.head
        self._ask(staging.advance(change, head.table, held, head.snapshot, since=want.since))
        # However many files a compaction replaced: each message has a bounded size.
        for start in range(0, len(found.gone), MOST_GONE):
            self._ask(staging.remove(change, head.table, found.gone[start : start + MOST_GONE]))
        for start in range(0, found.deleted.num_rows, MOST_DELETED):
            some = found.deleted.slice(start, MOST_DELETED)
            self._ask(staging.remove(change, head.table), staging.body(some))

    def rows(self, change: str, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to a copy."""
        import pyarrow as pa

        self._ask(staging.rows(change, table), staging.body(pa.Table.from_batches([batch])))

    def drop(self, change: str, table: str) -> None:
        """Hold a table no more."""
        self._ask(staging.drop(change, table))

    def apply(self, change: str) -> dict[str, Held]:
        """Make all of a change visible at once; gives what the node then holds."""
        return _held(self._ask(staging.apply(change)))

    def abandon(self, change: str) -> None:
        """Forget a change set, unless the node did already."""
        with contextlib.suppress(Refused):
            self._ask(staging.abandon(change))

    def _ask(self, said: dict[str, Any], body: bytes = b"") -> Mapping[str, Any]:
        frame = self._line.ask(said, body)
        if frame.error is not None:
            raise Refused(
                str(frame.error.get("cause", "The node refused.")), code=frame.error.get("code")
            )
        return frame.header


def _held(reply: Mapping[str, Any]) -> dict[str, Held]:
    return {table: read_held(copy) for table, copy in reply["tables"].items()}
