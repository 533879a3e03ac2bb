"""Replay: validate quarantined rows again, and land the good ones at most once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract.definition import Contract, DriftMode
from thermocline.errors import BadInput, CommitUnknown
from thermocline.ingest import drift, local_replay
from thermocline.ingest.corrections import Correction, editable_fields
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import FLAW
from thermocline.ingest.quarantine import ReplayReport
from thermocline.ingest.record_reader import (
    FIELDS,
    TextRecords,
    convert_and_validate,
    extract_fields,
    parse_objects,
    parse_records,
)
from thermocline.ingest.source import Source
from thermocline.ingest.table_rows import append, select_columns
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import (
    FILE,
    MESSAGE,
    POSITION,
    RAW,
    REASONS,
    reject_unknown_fields,
    strip_provenance,
)
from thermocline.ingest.value_expressions import instant, literal, refuse_unwritable_types
from thermocline.lake.crash_points import crash_point
from thermocline.lake.retries import retry_moved_main
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.lake import Draft, Lake

_MAX_NAMED_IDS = 1_000
"""Up to this many ids are listed in the filter, so that the scan can skip files."""
_PASSTHROUGH = ("__tc_id", "__tc_source", "__tc_name")
_PATCH, _WHOLE = "__tc_patch", "__tc_whole"


@dataclass(frozen=True)
class ReplayRows:
    """The rows of a replay: how many had already landed, the pending ones, and corrections."""

    already: int
    pending: pa.Table
    corrections: Mapping[str, Correction]


@dataclass(frozen=True)
class Replay:
    """One replay. `corrections` has corrected fields by id; `ids` limits the replay to some rows.

    Both may abbreviate an id to a unique prefix.
    """

    lake: Lake
    source: Source
    contract: Contract
    run: str
    corrections: Mapping[str, Correction] | None
    ids: Sequence[str] | None

    def apply(self) -> ReplayReport:
        """Land the good rows; retry from the start if the tables changed concurrently."""
        refuse_unwritable_types(self.contract)
        contract = drift.include_added_columns(self.lake, strip_provenance(self.contract))
        self.lake.ensure(contract)
        return retry_moved_main(lambda: self._attempt(contract))

    def _attempt(self, contract: Contract) -> ReplayReport:
        draft = self.lake.draft(self.run)
        try:
            report = self._write(draft, contract)
            draft.publish()
        except CommitUnknown:
            raise
        except Exception:
            draft.drop()
            raise
        crash_point("replay.published")
        return report

    def _write(self, draft: Draft, contract: Contract) -> ReplayReport:
        draft.begin(self.source.target, self.source.quarantine)
        selected = self._select_rows(draft.base(self.source.quarantine), contract)
        if not selected.pending.num_rows:
            return ReplayReport(self.source.name, self.source.target, 0, 0, selected.already)
        try:
            if self.source.lane == "spark":
                raise NeedsSpark("the source sets lane: spark")
            validated, readable = local_replay.validate(
                selected.pending, selected.corrections, contract
            )
        except NeedsSpark as reason:
            log("ingest.replay", "declined", level="DEBUG", reason=one_line(str(reason)))
            replayed, snapshot = self._write_by_spark(draft, contract, selected)
        else:
            replayed, snapshot = 0, None
            if readable:
                replayed, snapshot = local_replay.land(
                    self.lake, self.source, draft, validated, selected.pending, contract, self.run
                )
                crash_point("replay.committed-bronze")
                local_replay.mark_replayed(
                    self.lake, self.source, draft, validated, selected.pending, self.run
                )
                crash_point("replay.committed-quarantine")
        left = selected.pending.num_rows - replayed
        return ReplayReport(
            self.source.name, self.source.target, replayed, left, selected.already, snapshot
        )

    def _write_by_spark(
        self, draft: Draft, contract: Contract, selected: ReplayRows
    ) -> tuple[int, int | None]:
        validated = self._validate(self._to_frame(draft, selected), contract)
        if validated is None:
            return 0, None
        validated = validated.persist()
        try:
            good = validated.where(f"size({REASONS}) = 0")
            replayed = good.count()
            snapshot = self._append(draft, good, contract) if replayed else None
            if snapshot is None:
                # A write to the quarantine always comes with one to its table: see lake.companions.
                draft.append(self.source.target, (), bookmark=None, operation="replay")
            crash_point("replay.committed-bronze")
            self._mark_replayed(draft, validated)
            crash_point("replay.committed-quarantine")
        finally:
            validated.unpersist()
        return replayed, snapshot

    def _select_rows(self, base: int, contract: Contract) -> ReplayRows:
        """Select the rows and their corrections. A correction without changes is dropped."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyiceberg.expressions import In

        scan = self.lake.iceberg(self.source.quarantine).scan
        known = scan(snapshot_id=base, selected_fields=("id", "replayed_at")).to_arrow()
        landed = dict(
            zip(
                known.column("id").to_pylist(),
                known.column("replayed_at").is_valid().to_pylist(),
                strict=True,
            )
        )
        ids, corrections = self._resolve_rows(landed)
        waiting = [each for each in ids if not landed[each]]
        condition: Any = (
            In(term="id", literals=set(waiting))
            if len(waiting) <= _MAX_NAMED_IDS
            else "replayed_at is null"
        )
        pending = scan(snapshot_id=base, row_filter=condition).to_arrow() if waiting else None
        if pending is None:
            return ReplayRows(len(ids), known.slice(0, 0), {})
        if len(waiting) > _MAX_NAMED_IDS:
            pending = pending.filter(pc.is_in(pending.column("id"), pa.array(waiting)))
        rows = pending.select(["id", "raw", "layout"]).to_pylist() if corrections else []
        for row in rows:
            correction = corrections.get(row["id"])
            if (
                correction
                and correction.is_whole
                and correction.is_same_as(editable_fields(row, contract))
            ):
                del corrections[row["id"]]
        return ReplayRows(len(ids) - len(waiting), pending, corrections)

    def _resolve_rows(self, landed: Mapping[str, bool]) -> tuple[list[str], dict[str, Correction]]:
        """Return the full ids of the selected rows, and the corrections by full id."""
        names = resolve_ids(
            [*(self.corrections or ()), *(self.ids or ())], landed, self.source.quarantine
        )
        corrections = {
            names[name]: correction for name, correction in (self.corrections or {}).items()
        }
        if len(corrections) < len(self.corrections or ()):
            raise BadInput("Two rows of the file are for one id.", "Fix it. Nothing was replayed.")
        selected = None if self.ids is None else {names[name] for name in self.ids}
        ids = landed if self.corrections is None else corrections
        return [each for each in ids if selected is None or each in selected], corrections

    def _to_frame(self, draft: Draft, selected: ReplayRows) -> DataFrame:
        """Return the pending rows with their corrections as a DataFrame."""
        spark = self.lake.spark.session
        ids = selected.pending.column("id").to_pylist()
        corrections = [
            (
                each,
                None if correction is None else correction.to_json(),
                bool(correction and correction.is_whole),
            )
            for each, correction in ((each, selected.corrections.get(each)) for each in ids)
        ]
        schema = f"id string, {_PATCH} string, {_WHOLE} boolean"
        table = self.source.quarantine
        rows = self.lake.spark.read(table, draft.base(table))
        return rows.join(spark.createDataFrame(corrections, schema), "id")

    def _validate(self, pending: DataFrame, contract: Contract) -> DataFrame | None:
        """Validate the readable rows by the current contract."""
        patched = f"(raw is not null and {_PATCH} is not null)"
        readable = pending.where(f"layout is not null or {patched}")
        lines = readable.selectExpr(
            f"0 as {FILE}", f"position as {POSITION}", f"raw as {RAW}",
            f"cast(null as string) as {FLAW}", "id as __tc_id", "source as __tc_source",
            "file as __tc_name", "layout", _PATCH, _WHOLE,
            *(f"{name} as {it}" for name, it in MESSAGE.items() if self.source.has_messages),
        )  # fmt: skip
        frames = []
        for row in readable.selectExpr("layout", f"{_PATCH} is null as kept").distinct().collect():
            layout = Layout("jsonl") if row["layout"] is None else Layout.read(row["layout"])
            same_layout = (
                "layout is null" if row["layout"] is None else f"layout = {literal(row['layout'])}"
            )
            kept = f"{_PATCH} is {'' if row['kept'] else 'not '}null"
            group = lines.where(f"{same_layout} and {kept}")
            found = (parse_records if row["kept"] else self._apply_corrections)(
                group, layout, contract
            )
            frames.append(
                convert_and_validate(replace(found, passthrough=self._passthrough), contract)
            )
        if not frames:
            return None
        validated = reduce(lambda one, other: one.unionByName(other), frames)
        if contract.drift is not DriftMode.REFUSE:
            return validated
        return reject_unknown_fields(validated)

    def _apply_corrections(
        self, lines: DataFrame, layout: Layout, contract: Contract
    ) -> TextRecords:
        # One object with the corrected fields, then the remaining original ones. It stays text, so
        # that a repeated field that was not corrected is detected again.
        named = f"json_object_keys({_PATCH})"
        left = f"map_filter({FIELDS}, (k, v) -> not array_contains({named}, k))"
        rest = f"substring(coalesce(to_json({left}), '{{}}'), 2)"
        front = f"left({_PATCH}, length({_PATCH}) - 1)"
        corrected = (
            f"case when {_WHOLE} or {rest} = '}}' then {_PATCH} when size({named}) = 0 then "
            f"concat('{{', {rest}) else concat({front}, ',', {rest}) end"
        )
        frame = extract_fields(lines, layout).selectExpr(
            *(name for name in lines.columns if name != RAW), f"{corrected} as {RAW}"
        )
        return parse_objects(frame, contract)

    @property
    def _passthrough(self) -> tuple[str, ...]:
        return (*_PASSTHROUGH, *MESSAGE.values()) if self.source.has_messages else _PASSTHROUGH

    def _append(self, draft: Draft, good: DataFrame, contract: Contract) -> int:
        filled = {
            "_source": "__tc_source",
            "_source_file": "__tc_name",
            "_position": POSITION,
            "_ingested_at": instant(datetime.now(UTC)),
            **(MESSAGE if self.source.has_messages else {}),
        }
        rows = good.selectExpr(*select_columns(contract, filled))
        return draft.commit(
            self.source.target,
            lambda target: append(rows, target),
            bookmark=None,
            operation="replay",
        )

    def _mark_replayed(self, draft: Draft, validated: DataFrame) -> None:
        """Mark rows that landed, update the reasons of others, and delete old replayed rows."""
        view = f"replay_{uuid4().hex}"
        validated.selectExpr("__tc_id as id", f"{REASONS} as reasons").createOrReplaceTempView(view)
        at = datetime.now(UTC)
        now = instant(at)
        kept = timedelta(seconds=self.lake.settings.quarantine.replayed_seconds)

        def merge(target: str) -> None:
            self.lake.spark.session.sql(
                f"merge into {target} t using {view} s on t.id = s.id "
                f"when matched and size(s.reasons) = 0 then update set "
                f"t.replayed_at = {now}, t.replayed_run = {literal(self.run)} "
                "when matched then update set t.reasons = s.reasons "
                f"when not matched by source and t.replayed_at < {instant(at - kept)} then delete"
            )

        try:
            draft.commit(self.source.quarantine, merge, bookmark=None, operation="replay")
        finally:
            self.lake.spark.session.catalog.dropTempView(view)


def resolve_ids(names: Iterable[str], known: Iterable[str], table: str) -> dict[str, str]:
    """Return the full id for each id or unique prefix; raise BadInput for others."""
    from bisect import bisect_left

    known_ids, found, missing = sorted(known), dict[str, str](), list[str]()
    for name in dict.fromkeys(names):
        start = bisect_left(known_ids, name)
        matches = [each for each in known_ids[start : start + 2] if each.startswith(name)]
        if len(matches) > 1 and matches[0] != name:
            raise BadInput(
                f"More than one row in {table} has an id that begins with {name}.",
                "Give more of the id. Nothing was replayed.",
            )
        if matches:
            found[name] = matches[0]
        else:
            missing.append(name)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadInput(
            f"Not in {table}: {', '.join(missing[:3])}{more}.",
            "Take the ids from `thermo quarantine`. Nothing was replayed.",
        )
    return found
