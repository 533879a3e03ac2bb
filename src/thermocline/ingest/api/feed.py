"""A feed of an API: each pull is a batch, and its commit holds the position after it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput
from thermocline.ingest import feed as feeds
from thermocline.ingest.api.position import ApiPosition, ApiRecord, NewRecordFilter
from thermocline.ingest.api.pull import load_egress_policy, pull_items
from thermocline.ingest.batch import Provenance
from thermocline.ingest.layout import Layout
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.ingest.api.source import ApiSource
    from thermocline.ingest.marks import Position
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.lake import Lake

CHUNK_ROWS = 10_000


class ApiFeed:
    """Pulls an API from a position to its end, or as far as one batch allows."""

    def __init__(self, lake: Lake, source: Source) -> None:
        self._lake = lake
        self._source = source
        self._api: ApiSource = source.connection
        self._next_pull_at = 0.0

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Return the position unchanged: any position is valid for an API."""
        del accept_loss
        return position

    def pull(self, position: Position | None, limits: BatchLimits) -> feeds.Pull | None:
        """Return the records that have not landed; None if there are none, or if it is too soon.

        An API with `row_order: asc` is read up to the limits. Any other pull must land whole,
        because later records may have lower cursor values.
        """
        if time.monotonic() < self._next_pull_at:
            return None
        start = ApiPosition.from_bookmark(position or {})
        record_filter = NewRecordFilter(self._api, start)
        buffer = _RowBuffer(start.landed)
        items = pull_items(self._api, start, load_egress_policy(self._lake.settings))
        with closing(items):  # a pull that stops early closes its connection
            is_at_end = self._fill(buffer, _filter_new(items, record_filter), limits)
        if is_at_end:
            self._next_pull_at = time.monotonic() + self._api.every
        if not buffer.count:
            return None
        rows = buffer.table()
        return feeds.Pull(
            (self._provenance(),),
            lambda only: self._lines(rows, only),
            record_filter.position(buffer.count).to_bookmark(),
            records=buffer.count,
            behind=0 if is_at_end else None,
        )

    def acknowledge(self, position: Position) -> None:
        """Do nothing: an API keeps its records regardless."""

    def close(self) -> None:
        """Do nothing: every pull closes its own connections."""

    def _fill(self, buffer: _RowBuffer, records: Iterator[ApiRecord], limits: BatchLimits) -> bool:
        """Add records up to the limits; return whether the API's end was reached."""
        for record in records:
            buffer.add(record)
            if buffer.count < limits.rows and buffer.bytes < limits.bytes:
                continue
            if not self._is_ordered:
                raise BadInput(
                    f"A pull of {one_line(self._api.resource)} is larger than a batch: "
                    f"{buffer.count:,} records, {buffer.bytes:,} bytes.",
                    "Set row_order: asc if records arrive in the cursor's order, or raise "
                    f"batch.rows and batch.bytes of {self._source.name}.",
                )
            return False
        return True

    @property
    def _is_ordered(self) -> bool:
        cursor = self._api.cursor
        return cursor is not None and cursor.ascending and len(self._api.resources) == 1

    def _provenance(self) -> Provenance:
        text = "\n".join((self._source.name, self._api.base_url, self._api.resource))
        identity = hashlib.sha256(text.encode()).hexdigest()
        return Provenance(self._api.resource, identity, Layout("jsonl"))

    def _lines(self, rows: pa.Table, only: frozenset[int] | None) -> DataFrame:
        del only  # there is only one provenance
        return self._lake.spark.frame(rows, feeds.LINES_SCHEMA)


def _filter_new(items: Iterator[Any], record_filter: NewRecordFilter) -> Iterator[ApiRecord]:
    for item in items:
        record = record_filter.accept(item)
        if record is not None:
            yield record


class _RowBuffer:
    """The rows of a batch; every CHUNK_ROWS rows are packed into an Arrow batch."""

    def __init__(self, landed: int) -> None:
        self._landed = landed
        self._chunks: list[Any] = []
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0
        self.bytes = 0

    def add(self, record: ApiRecord) -> None:
        """Add a record with the next number."""
        self.count += 1
        payload = record.text.encode()
        self.bytes += len(payload)
        key = None if record.key is None else record.key.encode()
        number = self._landed + self.count
        self._rows.append(
            (0, number, record.text, record.flaw, key, None, record.event_time, payload)
        )
        if len(self._rows) == CHUNK_ROWS:
            self._pack_rows()

    def table(self) -> pa.Table:
        """Return all rows with the columns of LINES_SCHEMA."""
        import pyarrow as pa

        self._pack_rows()
        return pa.Table.from_batches(self._chunks)

    def _pack_rows(self) -> None:
        import pyarrow as pa

        if self._rows:
            schema = _lines_schema()
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            self._rows = []


def _lines_schema() -> pa.Schema:
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    types = (
        pa.int32(), pa.int64(), pa.string(), pa.string(), pa.binary(), headers,
        pa.timestamp("us", "UTC"), pa.binary(),
    )  # fmt: skip
    names = [column.split()[0] for column in feeds.LINES_SCHEMA.split(", ")]
    return pa.schema(list(zip(names, types, strict=True)))
