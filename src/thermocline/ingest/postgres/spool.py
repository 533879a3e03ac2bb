"""A batch of the reader's records in a file, as Spark reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.ingest import debezium, unchanged_toast
from thermocline.ingest.debezium import Truncation
from thermocline.ingest.landed_changes import LandedChanges
from thermocline.ingest.landing import escape_glob
from thermocline.ingest.lines import FLAW
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION, RAW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract.definition import Contract
    from thermocline.ingest.postgres.capture_process import Cells
    from thermocline.ingest.source import Source
    from thermocline.lake import Lake


def line(file: int, position: int, cells: Cells) -> bytes:
    """A record of the reader as a line of the file: its place, key, value and headers."""
    return b"%d\t%d\t%s\n" % (file, position, b"\t".join(cells[4:7]))


def truncates(cells: Cells) -> bool:
    """Whether a record is a truncate."""
    return cells[7] == b"t"


def lacks(cells: Cells) -> bool:
    """Whether a record's row lacks values that Postgres did not send."""
    return cells[8] == b"1"


def cut(file: int, position: int, cells: Cells) -> Truncation:
    """The moment that a truncate stands for."""
    event = json.loads(cells[5])
    source = event["source"]
    return Truncation(
        file, position, int(source["lsn"]), int(source["ts_ms"]), str(source["txId"]),
        cells[5].decode(),
    )  # fmt: skip


@dataclass(frozen=True)
class Spool:
    """The records of a batch, to be read as often as needed."""

    lake: Lake
    source: Source
    contract: Contract
    path: Path
    cuts: tuple[Truncation, ...] = ()
    reads_at: int | None = None
    lacking: bool = False
    """Whether values are missing that Postgres did not send."""

    def lines(self, only: frozenset[int] | None) -> DataFrame:
        """The records in the columns of a feed's lines."""
        frame = self._records()
        if only is not None:
            frame = frame.where(f"{FILE} in ({', '.join(str(each) for each in sorted(only))})")
        if self.source.connection.outbox is not None:
            return frame
        parts = debezium.parse_events(frame, self.reads_at)
        if not debezium.has_order_columns(self.contract):
            return debezium.to_lines(parts, self.contract)
        history = LandedChanges(self.lake, self.source, self.contract)
        tables = self.source.connection.tables
        if self.lacking:
            parts = unchanged_toast.fill_unsent_values(parts, tables, history)
        if self.cuts:
            parts = debezium.expand_truncates(parts, self.cuts, history.rows(tables))
        return debezium.to_lines(parts, self.contract)

    def _records(self) -> DataFrame:
        session = self.lake.spark.session
        read = session.read.option("lineSep", "\n").text(escape_glob(str(self.path)))
        cells = read.selectExpr("split(value, '\\t') as c")
        header = "x -> struct(x[0] as key, cast(x[1] as binary) as value)"
        headers = f"transform(from_json(nullif(c[4], ''), 'array<array<string>>'), {header})"
        return cells.selectExpr(
            f"cast(c[0] as int) as {FILE}",
            f"cast(c[1] as bigint) as {POSITION}",
            f"c[3] as {RAW}",
            f"cast(null as string) as {FLAW}",
            f"cast(nullif(c[2], '') as binary) as {KEY}",
            f"{headers} as {HEADERS}",
            f"cast(null as timestamp) as {EVENT_TIME}",
            f"cast(c[3] as binary) as {PAYLOAD}",
        )
