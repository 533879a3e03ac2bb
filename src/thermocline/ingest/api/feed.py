"""An API as a feed: each pull is a batch, and the position after it lies in the batch's commit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput
from thermocline.ingest import feed as feeds
from thermocline.ingest.api.position import Position, Record, Sieve
from thermocline.ingest.api.pull import items, reach_of
from thermocline.ingest.batch import Provenance
from thermocline.ingest.layout import Layout
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.api.source import ApiSource
    from thermocline.ingest.marks import Position as Marked
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.lake import Lake

CHUNK = 10_000


class ApiFeed:
    """Pulls an API from where its position says to its end, or as far as one batch goes."""

    def __init__(self, lake: Lake, source: Source) -> None:
        self._lake = lake
        self._source = source
        self._api: ApiSource = source.connection
        self._rest_until = 0.0

    def begin(self, position: Marked | None, *, accept_loss: bool = False) -> Marked | None:
        """Any position will do: an API is asked anew each time."""
        del accept_loss
        return position

    def pull(self, position: Marked | None, limits: BatchLimits) -> feeds.Pull | None:
        """The records that have not landed; None when there is none, or when it is too soon.

        An API that says `row_order: asc` is read as far as the limits go. Of another one no part
        can land alone: what comes later may belong before it.
        """
        if time.monotonic() < self._rest_until:
            return None
        start = Position.read(position or {})
        sieve = Sieve(self._api, start)
        batch = _Rows(start.landed)
        found = items(self._api, start, reach_of(self._lake.settings))
        with closing(found):  # a pull that is cut short closes its connection
            ended = self._fill(batch, _new(found, sieve), limits)
        if ended:
            self._rest_until = time.monotonic() + self._api.every
        if not batch.count:
            return None
        rows = batch.table()
        return feeds.Pull(
            (self._provenance(),),
            lambda only: self._lines(rows, only),
            sieve.position(batch.count).written(),
            records=batch.count,
            behind=0 if ended else None,
        )

    def acknowledge(self, position: Marked) -> None:
        """An API keeps what it has, whether we have it or not."""

    def close(self) -> None:
        """Every pull closes its own connections."""

    def _fill(self, batch: _Rows, records: Iterator[Record], limits: BatchLimits) -> bool:
        """Take records until the API or the limits end; says whether it was the API."""
        for record in records:
            batch.add(record)
            if batch.count < limits.rows and batch.bytes < limits.bytes:
                continue
            if not self._in_order:
                raise BadInput(
                    f"A pull of {one_line(self._api.resource)} is larger than a batch: "
                    f"{batch.count:,} records, {batch.bytes:,} bytes.",
                    "Say row_order: asc where records come in the cursor's order, or raise "
                    f"batch.rows and batch.bytes of {self._source.name}.",
                )
            return False
        return True

    @property
    def _in_order(self) -> bool:
        cursor = self._api.cursor
        return cursor is not None and cursor.ascending and len(self._api.resources) == 1

    def _provenance(self) -> Provenance:
        text = "\n".join((self._source.name, self._api.base_url, self._api.resource))
        identity = hashlib.sha256(text.encode()).hexdigest()
        return Provenance(self._api.resource, identity, Layout("jsonl"))

    def _lines(self, rows: pa.Table, only: frozenset[int] | None) -> DataFrame:
        del only  # there is but one provenance
        return self._lake.spark.frame(rows, feeds.LINES_SCHEMA)


def _new(found: Iterator[Any], sieve: Sieve) -> Iterator[Record]:
    for item in found:
        record = sieve.take(item)
        if record is not None:
            yield record


class _Rows:
    """The rows of a batch, in Arrow's compact form as soon as a few have come together."""

    def __init__(self, landed: int) -> None:
        self._landed = landed
        self._chunks: list[Any] = []
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0
        self.bytes = 0

    def add(self, record: Record) -> None:
        """One more record, with the next number."""
        self.count += 1
        payload = record.text.encode()
        self.bytes += len(payload)
        key = None if record.key is None else record.key.encode()
        number = self._landed + self.count
        self._rows.append(
            (0, number, record.text, record.flaw, key, None, record.event_time, payload)
        )
        if len(self._rows) == CHUNK:
            self._pack()

    def table(self) -> pa.Table:
        """All rows, in the columns of LINES."""
        import pyarrow as pa

        self._pack()
        return pa.Table.from_batches(self._chunks)

    def _pack(self) -> None:
        import pyarrow as pa

        if self._rows:
            schema = _schema()
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            self._rows = []


def _schema() -> pa.Schema:
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    types = (
        pa.int32(), pa.int64(), pa.string(), pa.string(), pa.binary(), headers,
        pa.timestamp("us", "UTC"), pa.binary(),
    )  # fmt: skip
    names = [column.split()[0] for column in feeds.LINES_SCHEMA.split(", ")]
    return pa.schema(list(zip(names, types, strict=True)))
