"""The replicator's client of a node: sends the requests of `node.staging`."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.errors import Transient
from thermocline.serve.fleet.state_delta import decode_copy
from thermocline.serve.node import staging
from thermocline.serve.values import HotCopy
from thermocline.serve.wire.protocol import BlockingChannel

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.serve.replicator.copy_delta import CopyDelta
    from thermocline.serve.replicator.desired_state import DesiredCopy

REQUEST_SECONDS = 60.0
"""How long a node may take for one request; applying a change set takes longest."""
MAX_REMOVED_FILES, MAX_DELETED_ROWS = 100_000, 1_000_000
"""The maximum of files, and of row positions, in one message."""


class NodeRefused(Transient):
    """A node refused a request; `code` in the details is the reason."""

    code = "refused"


class NodeClient:
    """A connection to a node. Raises ConnectionLost and NodeRefused."""

    def __init__(self, line: BlockingChannel) -> None:
        self._line = line
        self._name = secrets.token_hex(
            4
        )  # distinguishes our change sets from those of other clients
        self._numbers = itertools.count(1)

    @classmethod
    def open(cls, address: str, token: str) -> NodeClient:
        """Connect to a node."""
        return cls(BlockingChannel.open(address, token, timeout=REQUEST_SECONDS))

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def ping(self) -> None:
        """Check that the node still answers."""
        self._ask({"do": "ping"})

    def reset(self) -> None:
        """Discard the change sets of an earlier replicator."""
        self._ask(staging.reset())

    def fetch_copies(self) -> dict[str, HotCopy]:
        """Return the copies of the node."""
        return _decode_copies(self._ask({"do": "held"}))

    def begin(self) -> str:
        """Begin a change set and return its name."""
        change = f"{self._name}-{next(self._numbers)}"
        self._ask(staging.begin(change))
        return change

    def begin_copy(self, change: str, desired: DesiredCopy) -> None:
        """Begin a new copy of a table, beside the served one, if any."""
        head = desired.polled.head
        columns = [
            (field.name, json.loads(field.field_type.model_dump_json()))
            for field in desired.polled.schema.fields
        ]
        message = staging.create(
            change, head.table, columns, head.snapshot, since=desired.since, sort=head.time
        )
        self._ask(message)

    def advance(self, change: str, held: int, desired: DesiredCopy, found: CopyDelta) -> None:
        """Advance a copy from its current snapshot and remove rows; added rows follow."""
        head = desired.polled.head
        self._ask(staging.advance(change, head.table, held, head.snapshot, since=desired.since))
        # However many files a compaction replaced: each message has a bounded size.
        for start in range(0, len(found.removed_numbers), MAX_REMOVED_FILES):
            self._ask(
                staging.remove(
                    change, head.table, found.removed_numbers[start : start + MAX_REMOVED_FILES]
                )
            )
        for start in range(0, found.deleted_rows.num_rows, MAX_DELETED_ROWS):
            some = found.deleted_rows.slice(start, MAX_DELETED_ROWS)
            self._ask(staging.remove(change, head.table), staging.encode_body(some))

    def add_rows(self, change: str, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to a copy."""
        import pyarrow as pa

        self._ask(
            staging.add_rows(change, table), staging.encode_body(pa.Table.from_batches([batch]))
        )

    def drop(self, change: str, table: str) -> None:
        """Drop the copy of a table."""
        self._ask(staging.drop(change, table))

    def apply(self, change: str) -> dict[str, HotCopy]:
        """Apply a change set atomically; return the copies after that."""
        return _decode_copies(self._ask(staging.apply(change)))

    def abandon(self, change: str) -> None:
        """Discard a change set, unless the node already did."""
        with contextlib.suppress(NodeRefused):
            self._ask(staging.abandon(change))

    def _ask(self, message: dict[str, Any], body: bytes = b"") -> Mapping[str, Any]:
        frame = self._line.ask(message, body)
        if frame.error is not None:
            raise NodeRefused(
                str(frame.error.get("cause", "The node refused.")), code=frame.error.get("code")
            )
        return frame.header


def _decode_copies(reply: Mapping[str, Any]) -> dict[str, HotCopy]:
    return {table: decode_copy(copy) for table, copy in reply["tables"].items()}
