"""A batch of captured records in a file that Spark reads."""

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


def format_record(file: int, position: int, cells: Cells) -> bytes:
    """Format a captured record as a line of the file: its position, key, value and headers."""
    return b"%d\t%d\t%s\n" % (file, position, b"\t".join(cells[4:7]))


def is_truncate(cells: Cells) -> bool:
    """Whether a record is a truncate."""
    return cells[7] == b"t"


def has_unsent_values(cells: Cells) -> bool:
    """Whether a record's row lacks values that Postgres did not send."""
    return cells[8] == b"1"


def parse_truncate(file: int, position: int, cells: Cells) -> Truncation:
    """Return the truncation that a truncate record describes."""
    event = json.loads(cells[5])
    source = event["source"]
    return Truncation(
        file, position, int(source["lsn"]), int(source["ts_ms"]), str(source["txId"]),
        cells[5].decode(),
    )  # fmt: skip


@dataclass(frozen=True)
class Spool:
    """The records of a batch; they can be read more than once."""

    lake: Lake
    source: Source
    contract: Contract
    path: Path
    truncations: tuple[Truncation, ...] = ()
    snapshot_lsn: int | None = None
    has_unsent: bool = False
    """Whether rows lack values that Postgres did not send."""

    def lines(self, only: frozenset[int] | None) -> DataFrame:
        """Return the records with the columns of `feed.LINES_SCHEMA`."""
        frame = self._read_records()
        if only is not None:
            frame = frame.where(f"{FILE} in ({', '.join(str(each) for each in sorted(only))})")
        if self.source.connection.outbox is not None:
            return frame
        parts = debezium.parse_events(frame, self.snapshot_lsn)
        if not debezium.has_order_columns(self.contract):
            return debezium.to_lines(parts, self.contract)
        history = LandedChanges(self.lake, self.source, self.contract)
        tables = self.source.connection.tables
        if self.has_unsent:
            parts = unchanged_toast.fill_unsent_values(parts, tables, history)
        if self.truncations:
            parts = debezium.expand_truncates(parts, self.truncations, history.read_rows(tables))
        return debezium.to_lines(parts, self.contract)

    def _read_records(self) -> DataFrame:
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
