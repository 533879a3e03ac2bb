"""Replay: quarantined rows through the same checks again, and into bronze at most once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract.definition import Contract, Drift
from thermocline.engine.spark_types import quoted
from thermocline.errors import BadInput, CommitUnknown
from thermocline.ingest import drift, replay_here
from thermocline.ingest.judge import (
    FILE,
    MESSAGE,
    POSITION,
    RAW,
    REASONS,
    data_only,
    refusing_strays,
)
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import FLAW
from thermocline.ingest.mended import Patch, fields_to_mend
from thermocline.ingest.plain import Declined
from thermocline.ingest.quarantine import ReplayReport
from thermocline.ingest.read import FIELDS, Records, objects, records, typed, with_fields
from thermocline.ingest.rows import append
from thermocline.ingest.source import Source
from thermocline.ingest.values import instant, literal, refuse_unwritable
from thermocline.lake import MainMoved
from thermocline.lake.faults import crash_point
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.lake import Draft, Lake

_FEW = 1_000
"""So many ids are named to the reader, so that it passes over files that have none of them."""
ATTEMPTS = 5
_CARRIED = ("__tc_id", "__tc_source", "__tc_name")
_PATCH, _WHOLE = "__tc_patch", "__tc_whole"


@dataclass(frozen=True)
class Wanted:
    """The rows of a replay: how many landed before, those that wait, and their corrections."""

    already: int
    pending: pa.Table
    patches: Mapping[str, Patch]


@dataclass(frozen=True)
class Replay:
    """One replay. `patches` are corrected fields by id; `chosen` limits it to some ids.

    Both may name an id by its beginning.
    """

    lake: Lake
    source: Source
    contract: Contract
    run: str
    patches: Mapping[str, Patch] | None
    chosen: Sequence[str] | None

    def apply(self) -> ReplayReport:
        """Land what passes, again from the start when somebody else moved the tables."""
        refuse_unwritable(self.contract)
        contract = drift.with_added(self.lake, data_only(self.contract))
        self.lake.ensure(contract)
        for attempt in range(1, ATTEMPTS + 1):
            draft = self.lake.draft(self.run)
            try:
                report = self._write(draft, contract)
                draft.publish()
            except MainMoved:
                draft.drop()
                if attempt == ATTEMPTS:
                    raise
            except CommitUnknown:
                raise
            except Exception:
                draft.drop()
                raise
            else:
                crash_point("replay.published")
                return report
        raise AssertionError("the last attempt returns or raises")

    def _write(self, draft: Draft, contract: Contract) -> ReplayReport:
        draft.begin(self.source.target, self.source.quarantine)
        wanted = self._wanted(draft.base(self.source.quarantine), contract)
        if not wanted.pending.num_rows:
            return ReplayReport(self.source.name, self.source.target, 0, 0, wanted.already)
        try:
            if self.source.lane == "spark":
                raise Declined("the source wants Spark")
            judged, readable = replay_here.judge(wanted.pending, wanted.patches, contract)
        except Declined as reason:
            log("ingest.replay", "declined", level="DEBUG", reason=one_line(str(reason)))
            replayed, snapshot = self._write_by_spark(draft, contract, wanted)
        else:
            replayed, snapshot = 0, None
            if readable:
                replayed, snapshot = replay_here.land(
                    self.lake, self.source, draft, judged, wanted.pending, contract, self.run
                )
                crash_point("replay.committed-bronze")
                replay_here.mark(self.lake, self.source, draft, judged, wanted.pending, self.run)
                crash_point("replay.committed-quarantine")
        left = wanted.pending.num_rows - replayed
        return ReplayReport(
            self.source.name, self.source.target, replayed, left, wanted.already, snapshot
        )

    def _write_by_spark(
        self, draft: Draft, contract: Contract, wanted: Wanted
    ) -> tuple[int, int | None]:
        judged = self._judged(self._as_frame(draft, wanted), contract)
        if judged is None:
            return 0, None
        judged = judged.persist()
        try:
            good = judged.where(f"size({REASONS}) = 0")
            replayed = good.count()
            snapshot = self._append(draft, good, contract) if replayed else None
            if snapshot is None:
                # Whatever writes to the quarantine writes to its table: see lake.companions.
                draft.append(self.source.target, (), bookmark=None, operation="replay")
            crash_point("replay.committed-bronze")
            self._mark(draft, judged)
            crash_point("replay.committed-quarantine")
        finally:
            judged.unpersist()
        return replayed, snapshot

    def _wanted(self, base: int, contract: Contract) -> Wanted:
        """The rows in question, with their corrections. A row that was not changed has none."""
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
        ids, patches = self._named(landed)
        waiting = [each for each in ids if not landed[each]]
        condition: Any = (
            In(term="id", literals=set(waiting)) if len(waiting) <= _FEW else "replayed_at is null"
        )
        pending = scan(snapshot_id=base, row_filter=condition).to_arrow() if waiting else None
        if pending is None:
            return Wanted(len(ids), known.slice(0, 0), {})
        if len(waiting) > _FEW:
            pending = pending.filter(pc.is_in(pending.column("id"), pa.array(waiting)))
        rows = pending.select(["id", "raw", "layout"]).to_pylist() if patches else []
        for row in rows:
            patch = patches.get(row["id"])
            if patch and patch.whole and patch.same_as(fields_to_mend(row, contract)):
                del patches[row["id"]]
        return Wanted(len(ids) - len(waiting), pending, patches)

    def _named(self, landed: Mapping[str, bool]) -> tuple[list[str], dict[str, Patch]]:
        """The ids of the rows in question, whole, and the corrections by them."""
        names = resolved(
            [*(self.patches or ()), *(self.chosen or ())], landed, self.source.quarantine
        )
        patches = {names[name]: patch for name, patch in (self.patches or {}).items()}
        if len(patches) < len(self.patches or ()):
            raise BadInput("Two rows of the file are for one id.", "Mend it. Nothing was replayed.")
        chosen = None if self.chosen is None else {names[name] for name in self.chosen}
        ids = list(landed if self.patches is None else patches)
        return [each for each in ids if chosen is None or each in chosen], patches

    def _as_frame(self, draft: Draft, wanted: Wanted) -> DataFrame:
        """The rows that wait, with their corrections, as Spark reads them."""
        spark = self.lake.spark.session
        ids = wanted.pending.column("id").to_pylist()
        patches = [
            (each, None if patch is None else patch.as_texts(), bool(patch and patch.whole))
            for each, patch in ((each, wanted.patches.get(each)) for each in ids)
        ]
        schema = f"id string, {_PATCH} string, {_WHOLE} boolean"
        table = self.source.quarantine
        rows = self.lake.spark.read(table, draft.base(table))
        return rows.join(spark.createDataFrame(patches, schema), "id")

    def _judged(self, pending: DataFrame, contract: Contract) -> DataFrame | None:
        """The rows that can be read, judged by the contract as it is now."""
        patched = f"(raw is not null and {_PATCH} is not null)"
        readable = pending.where(f"layout is not null or {patched}")
        lines = readable.selectExpr(
            f"0 as {FILE}", f"position as {POSITION}", f"raw as {RAW}",
            f"cast(null as string) as {FLAW}", "id as __tc_id", "source as __tc_source",
            "file as __tc_name", "layout", _PATCH, _WHOLE,
            *(f"{name} as {it}" for name, it in MESSAGE.items() if self.source.messages),
        )  # fmt: skip
        frames = []
        for row in readable.selectExpr("layout", f"{_PATCH} is null as kept").distinct().collect():
            layout = Layout("jsonl") if row["layout"] is None else Layout.read(row["layout"])
            same = (
                "layout is null" if row["layout"] is None else f"layout = {literal(row['layout'])}"
            )
            kept = f"{_PATCH} is {'' if row['kept'] else 'not '}null"
            some = lines.where(f"{same} and {kept}")
            found = (records if row["kept"] else self._records)(some, layout, contract)
            frames.append(typed(replace(found, carried=self._carried), contract))
        if not frames:
            return None
        judged = reduce(lambda one, other: one.unionByName(other), frames)
        if contract.drift is not Drift.REFUSE:
            return judged
        return refusing_strays(judged)

    def _records(self, lines: DataFrame, layout: Layout, contract: Contract) -> Records:
        # What was there, without the corrected fields, behind them in one object. As text: a
        # field that was there twice, and is not corrected, shall be found out again.
        named = f"json_object_keys({_PATCH})"
        left = f"map_filter({FIELDS}, (k, v) -> not array_contains({named}, k))"
        rest = f"substring(coalesce(to_json({left}), '{{}}'), 2)"
        front = f"left({_PATCH}, length({_PATCH}) - 1)"
        mended = (
            f"case when {_WHOLE} or {rest} = '}}' then {_PATCH} when size({named}) = 0 then "
            f"concat('{{', {rest}) else concat({front}, ',', {rest}) end"
        )
        frame = with_fields(lines, layout).selectExpr(
            *(name for name in lines.columns if name != RAW), f"{mended} as {RAW}"
        )
        return objects(frame, contract)

    @property
    def _carried(self) -> tuple[str, ...]:
        return (*_CARRIED, *MESSAGE.values()) if self.source.messages else _CARRIED

    def _append(self, draft: Draft, good: DataFrame, contract: Contract) -> int:
        filled = {
            "_source": "__tc_source",
            "_source_file": "__tc_name",
            "_position": POSITION,
            "_ingested_at": instant(datetime.now(UTC)),
            **(MESSAGE if self.source.messages else {}),
        }
        columns = [
            f"{filled.get(column.name, quoted(column.name))} as {quoted(column.name)}"
            for column in contract.table_columns
        ]
        rows = good.selectExpr(*columns)
        return draft.commit(
            self.source.target,
            lambda target: append(rows, target),
            bookmark=None,
            operation="replay",
        )

    def _mark(self, draft: Draft, judged: DataFrame) -> None:
        """Mark what landed, give what stays its new reasons, and forget what landed long ago."""
        view = f"replay_{uuid4().hex}"
        judged.selectExpr("__tc_id as id", f"{REASONS} as reasons").createOrReplaceTempView(view)
        at = datetime.now(UTC)
        now = instant(at)
        kept = timedelta(seconds=self.lake.settings.quarantine.kept_seconds)

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


def resolved(names: Iterable[str], known: Iterable[str], table: str) -> dict[str, str]:
    """The whole id for each id, or beginning of one that no other id has; else BadInput."""
    from bisect import bisect_left

    every, found, missing = sorted(known), dict[str, str](), list[str]()
    for name in dict.fromkeys(names):
        place = bisect_left(every, name)
        same = [each for each in every[place : place + 2] if each.startswith(name)]
        if len(same) > 1 and same[0] != name:
            raise BadInput(
                f"More than one row in {table} has an id that begins with {name}.",
                "Give more of the id. Nothing was replayed.",
            )
        if same:
            found[name] = same[0]
        else:
            missing.append(name)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadInput(
            f"Not in {table}: {', '.join(missing[:3])}{more}.",
            "Take the ids from `thermo quarantine`. Nothing was replayed.",
        )
    return found
