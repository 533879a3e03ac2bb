"""Quarantine: rows that could not land, with their reasons; export and replay of such rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import MESSAGE_COLUMNS, Column, Contract, WriteMode
from thermocline.contract.problems import quote
from thermocline.contract.types import List, Primitive
from thermocline.errors import BadInput
from thermocline.ingest.source import Source
from thermocline.ingest.validation import strip_provenance
from thermocline.lake.companions import QUARANTINE

if TYPE_CHECKING:
    from thermocline.lake import Lake

ID_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_STRING = Primitive("string")
_TIMESTAMPTZ = Primitive("timestamptz")


@dataclass(frozen=True)
class QuarantinedRow:
    """A record that could not land. Without `raw` and layout it is a whole unreadable file."""

    id: str
    source: str
    target: str
    file: str
    position: int
    reasons: tuple[str, ...]
    raw: str | None
    run: str
    quarantined_at: datetime


@dataclass(frozen=True)
class ReplayReport:
    """The result of a replay: rows that landed, that stay, and that had already landed."""

    source: str
    target: str
    replayed: int = 0
    still_bad: int = 0
    already: int = 0
    snapshot: int | None = None


def quarantine_contract(source: Source) -> Contract:
    """Return the contract of the table that keeps a source's bad rows.

    `id` is derived from the file's content (or the partition) and the position, so the same record
    always gets the same id. `layout` is the layout of `raw`, or null if `raw` is not the whole
    record. Message columns are kept for a later replay.
    """
    columns = (
        Column("id", _STRING, required=True, doc="sha256 of file_sha256 and the position"),
        Column("source", _STRING, required=True),
        Column("target", _STRING, required=True, doc="the table it was meant for"),
        Column("file", _STRING, required=True),
        Column("file_sha256", _STRING, required=True),
        Column("position", Primitive("long"), required=True, doc="record number, or offset"),
        Column("reasons", List(_STRING), required=True),
        Column("raw", _STRING, doc="the record as it was written"),
        Column("layout", _STRING, doc="how raw is written; null when it is not whole"),
        Column("run", _STRING, required=True),
        Column("quarantined_at", _TIMESTAMPTZ, required=True),
        Column("replayed_at", _TIMESTAMPTZ, doc="when it landed after all"),
        Column("replayed_run", _STRING),
        *(MESSAGE_COLUMNS if source.has_messages else ()),
    )
    return Contract(
        source.quarantine,
        columns,
        companion_of=source.target,
        id=source.quarantine,
        description=f"What could not land in {source.target}",
        key=("id",),
        write=WriteMode.MERGE,
    )


def list_rows(
    lake: Lake, table: str | None = None, *, replayed: bool = False, limit: int = 10_000
) -> list[QuarantinedRow]:
    """Return the rows in quarantine, oldest first, of one table or of all.

    `table` may be the quarantine table or the target of the rows. Replayed rows are included only
    if `replayed` is set. This does not start a JVM.
    """
    from pyiceberg.table import ALWAYS_TRUE

    tables = [name for name in lake.tables() if name.startswith(f"{QUARANTINE}.")]
    if table is not None:
        lake.state(table)  # raises if there is no such table
        tables = [name for name in tables if name.partition(".")[2] == table.partition(".")[2]]
    condition = ALWAYS_TRUE if replayed else "replayed_at is null"
    fields = tuple(QuarantinedRow.__dataclass_fields__)

    def read_rows(name: str) -> Iterator[QuarantinedRow]:
        scan = lake.iceberg(name).scan(row_filter=condition, selected_fields=fields)
        for batch in scan.to_arrow_batch_reader():
            for row in batch.to_pylist():
                yield QuarantinedRow(**{**row, "reasons": tuple(row["reasons"])})

    # At most `limit` rows are held in memory.
    found = chain.from_iterable(map(read_rows, tables))
    return nsmallest(limit, found, key=lambda row: (row.quarantined_at, row.file, row.position))


def export(
    lake: Lake, source: Source, contract: Contract, ids: Sequence[str] | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Export quarantined rows, oldest first, to be corrected; also return how many cannot be.

    Each row has its fields, and its id, reason, file and position under names that begin with
    `_quarantine_`. Unreadable files are left out. This does not start a JVM.
    """
    from thermocline.ingest.corrections import export_row
    from thermocline.ingest.replay import resolve_ids

    if not lake.exists(source.quarantine):
        return [], 0
    fields = ("id", "file", "position", "reasons", "raw", "layout", "quarantined_at")
    scan = lake.iceberg(source.quarantine).scan("replayed_at is null", selected_fields=fields)
    rows = scan.to_arrow().to_pylist()
    if ids is not None:
        chosen = set(resolve_ids(ids, (row["id"] for row in rows), source.quarantine).values())
        rows = [row for row in rows if row["id"] in chosen]
    rows.sort(key=lambda row: (row["quarantined_at"], row["file"], row["position"]))
    whole = [row for row in rows if row["raw"] is not None or row["layout"] is not None]
    contract = strip_provenance(contract)
    return [export_row(row, contract) for row in whole], len(rows) - len(whole)


def replay(
    lake: Lake,
    source: Source,
    contract: Contract,
    *,
    file: Path | None = None,
    ids: Sequence[str] | None = None,
    run: str,
) -> ReplayReport:
    """Validate quarantined rows again and land the good ones, each at most once.

    Without `file`, the original records are validated by the current contract. With a file (as
    written by `export`, or JSON lines, each with a quarantine `id` and corrected fields), its
    fields replace those of the record. Good rows land in bronze with their original file and
    position and are marked as replayed in the same publish; the others stay, with new reasons. An
    id may be abbreviated to a unique prefix. Few rows need no JVM.
    """
    from thermocline.ingest.corrections import read
    from thermocline.ingest.replay import Replay

    for each in ids or ():
        if not ID_PREFIX.fullmatch(each):
            raise BadInput(
                f"{quote(each)} is no id of a quarantined row.", "`thermo quarantine` lists them."
            )
    corrections = None if file is None else read(file)
    if not lake.exists(source.quarantine):
        return ReplayReport(source.name, source.target)
    return Replay(lake, source, contract, run, corrections, ids).apply()
