"""Replay a few rows in this process, if they can be validated without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract
from thermocline.ingest.arrow.local_validation import LocalValidator, RawLine, parse_fields, to_json
from thermocline.ingest.corrections import Correction
from thermocline.ingest.layout import Layout
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import BAD, FILE, MESSAGE, REASONS, RESCUED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from thermocline.ingest.source import Source
    from thermocline.lake import Draft, Lake

MAX_ROWS = 20_000
"""The most rows that are replayed here; Spark replays more."""
_JSON = Layout("jsonl")


def validate(
    pending: pa.Table, corrections: Mapping[str, Correction], contract: Contract
) -> tuple[pa.Table, list[int]]:
    """Return the readable quarantined rows in the form of `validation`, and their numbers.

    FILE is a row's number. Raises NeedsSpark if Spark might validate one of them differently.
    """
    import pyarrow as pa

    if pending.num_rows > MAX_ROWS:
        raise NeedsSpark("many rows")
    lines: dict[Layout, list[RawLine]] = {}
    for number, row in enumerate(pending.select(["id", "position", "raw", "layout"]).to_pylist()):
        correction = corrections.get(row["id"])
        if correction is not None and (row["layout"] is not None or row["raw"] is not None):
            line = (number, row["position"], to_json(_apply_correction(row, correction)), None)
            lines.setdefault(_JSON, []).append(line)
        elif row["layout"] is not None:
            layout = Layout.read(row["layout"])
            lines.setdefault(layout, []).append((number, row["position"], row["raw"], None))
    validator = LocalValidator(contract, refuse_unknown=True)
    found = [validator.validate_lines(some, layout) for layout, some in lines.items()]
    if not found:
        return pa.table({}), []
    validated = pa.concat_tables(found)
    return validated, validated.column(FILE).to_pylist()


def land(
    lake: Lake, source: Source, draft: Draft, validated: pa.Table, pending: pa.Table,
    contract: Contract, run: str,
) -> tuple[int, int | None]:  # fmt: skip
    """Add the good rows to the target on the draft; return their number and the snapshot."""
    import pyarrow.compute as pc

    good = validated.filter(pc.invert(validated.column(BAD)))
    if not good.num_rows:
        # A write to the quarantine always comes with one to its table: see lake.companions.
        draft.append(source.target, (), bookmark=None, operation="replay")
        return 0, None
    rows = _to_bronze(good, pending.take(good.column(FILE)), source, contract, datetime.now(UTC))
    snapshot = draft.append(source.target, rows, bookmark=None, operation="replay")
    return good.num_rows, snapshot


def mark_replayed(
    lake: Lake, source: Source, draft: Draft, validated: pa.Table, pending: pa.Table, run: str
) -> None:
    """Mark rows that landed, update the reasons of others, and delete old replayed rows."""
    import pyarrow as pa

    from thermocline.lake.row_counts import RowCounts

    now = datetime.now(UTC)
    rows = pending.take(validated.column(FILE))
    bad = validated.column(BAD).to_pylist()
    moment = pa.timestamp("us", "UTC")
    changed = {
        "reasons": pa.array(
            [why if wrong else was for why, was, wrong in zip(
                validated.column(REASONS).to_pylist(), rows.column("reasons").to_pylist(), bad,
                strict=True,
            )],
            pa.list_(pa.string()),
        ),
        "replayed_at": pa.array([None if wrong else now for wrong in bad], moment),
        "replayed_run": pa.array([None if wrong else run for wrong in bad], pa.string()),
    }  # fmt: skip
    for name, values in changed.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    before = now - timedelta(seconds=lake.settings.quarantine.replayed_seconds)
    obsolete = _find_positions(
        lake, draft, source.quarantine, rows.column("id").to_pylist(), before
    )
    removed = sum(map(len, obsolete.values())) - rows.num_rows
    draft.replace_rows(
        source.quarantine, rows, obsolete, on_read=False, bookmark=None, operation="replay",
        extra_properties=RowCounts(0, rows.num_rows, removed).as_properties(),
    )  # fmt: skip


def _apply_correction(row: Mapping[str, Any], correction: Correction) -> dict[str, Any]:
    """Return a record with its corrected fields first."""
    if correction.is_whole:
        return dict(correction.fields)
    present: Mapping[str, Any] = {}
    if row["layout"] is not None:
        present = parse_fields(row["raw"], Layout.read(row["layout"])) or {}
    return {**correction.fields, **{k: v for k, v in present.items() if k not in correction.fields}}


def _to_bronze(
    good: pa.Table, rows: pa.Table, source: Source, contract: Contract, now: datetime
) -> pa.Table:
    import pyarrow as pa

    filled = {
        "_source": rows.column("source"),
        "_source_file": rows.column("file"),
        "_position": rows.column("position"),
        "_ingested_at": pa.array([now] * rows.num_rows, pa.timestamp("us", "UTC")),
        "_rescued": good.column(RESCUED),
    }
    if source.has_messages:
        filled |= {name: rows.column(name) for name in MESSAGE}
    return pa.table(
        {
            column.name: filled[column.name] if column.name in filled else good.column(column.name)
            for column in contract.table_columns
        }
    )


def _find_positions(
    lake: Lake, draft: Draft, table: str, ids: Sequence[str], before: datetime
) -> dict[str, npt.NDArray[np.int64]]:
    """Find the positions of these rows, and of rows replayed before a time, in the data files."""
    import numpy as np
    import pyarrow as pa

    from thermocline.engine.duck import build_scan

    source = build_scan(lake.state(table).metadata_location, draft.head(table))
    connection = lake.duck.connect()
    try:
        connection.register("_tc_ids", pa.table({"id": pa.array(ids, pa.string())}))
        found = connection.execute(
            f"SELECT filename, list(file_row_number) FROM {source} AS t WHERE t.id IN "
            "(SELECT id FROM _tc_ids) OR t.replayed_at < ? GROUP BY filename",
            [before],
        ).fetchall()
    finally:
        connection.close()
    return {path: np.sort(np.asarray(at, np.int64)) for path, at in found}
