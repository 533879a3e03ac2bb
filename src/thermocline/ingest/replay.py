"""Replay: quarantined rows through the same checks again, and into bronze at most once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from thermocline.contract.definition import Contract, Drift
from thermocline.contract.problems import shown
from thermocline.engine.spark_types import quoted
from thermocline.errors import BadInput, CommitUnknown
from thermocline.ingest import drift
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
from thermocline.ingest.quarantine import ID, ReplayReport
from thermocline.ingest.read import FIELDS, Records, objects, records, typed, with_fields
from thermocline.ingest.rows import append
from thermocline.ingest.source import Source
from thermocline.ingest.values import instant, literal, refuse_unwritable
from thermocline.lake import MainMoved
from thermocline.lake.faults import crash_point

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Draft, Lake

ATTEMPTS = 5
MOST_BYTES = 256 << 20
_CARRIED = ("__tc_id", "__tc_source", "__tc_name")
_PATCH = "__tc_patch"


def read_mended(path: Path) -> dict[str, str]:
    """The corrected fields by quarantine id, each as the JSON text of an object.

    A line is `{"id": …, "field": …}`; where the table has a field `id` of its own, it is
    `{"id": …, "row": {"id": …}}`. Everything wrong with the file is reported together.
    """
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{path} is no file of at most 256 MiB.", "Check the path, or split it.")
    patches: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            _note(json.loads(line, parse_float=_Number, parse_int=_Number), patches)
        except ValueError as error:
            problems.append(f"{path.name}:{number}  {error}")
    if problems:
        more = f"\n… and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise BadInput("\n".join(problems[:20]) + more, "Mend the file. Nothing was replayed.")
    return patches


class _Number(str):
    """A number of a JSON text with all its digits."""


def _note(entry: object, patches: dict[str, str]) -> None:
    if not isinstance(entry, dict):
        raise ValueError("not a JSON object")
    name = entry.pop("id", None)
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ValueError(f"{shown(name)} is no id of a quarantined row")
    if name in patches:
        raise ValueError(f"{name} is there twice")
    if entry.keys() == {"row"} and isinstance(entry["row"], dict):
        entry = entry["row"]
    # Texts and numbers alike become texts: so a number keeps its digits on the way.
    patches[name] = json.dumps(entry, ensure_ascii=False)


@dataclass(frozen=True)
class Replay:
    """One replay. `patches` are corrected fields by id; `chosen` limits it to some ids."""

    lake: Lake
    source: Source
    contract: Contract
    run: str
    patches: Mapping[str, str] | None
    chosen: frozenset[str] | None

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
        base = draft.base(self.source.quarantine)
        everything = self._wanted(self.lake.spark.read(self.source.quarantine, base))
        already = everything.where("replayed_at is not null").count()
        pending = everything.where("replayed_at is null")
        judged = self._judged(pending, contract)
        if judged is None:
            left = pending.count()
            return ReplayReport(self.source.name, self.source.target, 0, left, already)
        judged = judged.persist()
        try:
            good = judged.where(f"size({REASONS}) = 0")
            replayed, bad = good.count(), judged.where(f"size({REASONS}) > 0").count()
            snapshot = self._append(draft, good, contract) if replayed else None
            if snapshot is None:
                # Whatever writes to the quarantine writes to its table: see lake.companions.
                draft.append(self.source.target, (), bookmark=None, operation="replay")
            crash_point("replay.committed-bronze")
            self._mark(draft, judged)
            crash_point("replay.committed-quarantine")
        finally:
            judged.unpersist()
        bad = pending.count() - replayed
        return ReplayReport(self.source.name, self.source.target, replayed, bad, already, snapshot)

    def _wanted(self, rows: DataFrame) -> DataFrame:
        """The rows in question, with their corrections."""
        spark = self.lake.spark.session
        if self.chosen is not None:
            ids = spark.createDataFrame([(each,) for each in sorted(self.chosen)], "id string")
            rows = rows.join(ids, "id", "left_semi")
        if self.patches is None:
            return rows.selectExpr("*", f"cast(null as string) as {_PATCH}")
        self._refuse_unknown(rows)
        patches = spark.createDataFrame(list(self.patches.items()), f"id string, {_PATCH} string")
        return rows.join(patches, "id")

    def _refuse_unknown(self, rows: DataFrame) -> None:
        known = {row["id"] for row in rows.select("id").collect()}
        unknown = sorted(set(self.patches or ()) - known)
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise BadInput(
                f"Not in {self.source.quarantine}: {', '.join(unknown[:3])}{more}.",
                "Take the ids from `thermo quarantine`. Nothing was replayed.",
            )

    def _judged(self, pending: DataFrame, contract: Contract) -> DataFrame | None:
        """The rows that can be read, judged by the contract as it is now."""
        patched = f"(raw is not null and {_PATCH} is not null)"
        readable = pending.where(f"layout is not null or {patched}")
        lines = readable.selectExpr(
            f"0 as {FILE}", f"position as {POSITION}", f"raw as {RAW}",
            f"cast(null as string) as {FLAW}", "id as __tc_id", "source as __tc_source",
            "file as __tc_name", "layout", _PATCH,
            *(f"{name} as {it}" for name, it in MESSAGE.items() if self.source.messages),
        )  # fmt: skip
        frames = []
        for row in readable.select("layout").distinct().collect():
            layout = Layout("jsonl") if row["layout"] is None else Layout.read(row["layout"])
            same = (
                "layout is null" if row["layout"] is None else f"layout = {literal(row['layout'])}"
            )
            found = self._records(lines.where(same), layout, contract)
            frames.append(typed(replace(found, carried=self._carried), contract))
        if not frames:
            return None
        judged = reduce(lambda one, other: one.unionByName(other), frames)
        if contract.drift is not Drift.REFUSE:
            return judged
        return refusing_strays(judged)

    def _records(self, lines: DataFrame, layout: Layout, contract: Contract) -> Records:
        if self.patches is None:
            return records(lines, layout, contract)
        # What was there, without the corrected fields, behind them in one object. As text: a
        # field that was there twice, and is not corrected, shall be found out again.
        named = f"json_object_keys({_PATCH})"
        left = f"map_filter({FIELDS}, (k, v) -> not array_contains({named}, k))"
        rest = f"substring(coalesce(to_json({left}), '{{}}'), 2)"
        front = f"left({_PATCH}, length({_PATCH}) - 1)"
        mended = (
            f"case when {rest} = '}}' then {_PATCH} when size({named}) = 0 then "
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
        """Mark what landed, and give what stays its new reasons, in one commit."""
        view = f"replay_{uuid4().hex}"
        judged.selectExpr("__tc_id as id", f"{REASONS} as reasons").createOrReplaceTempView(view)
        now = instant(datetime.now(UTC))

        def merge(target: str) -> None:
            self.lake.spark.session.sql(
                f"merge into {target} t using {view} s on t.id = s.id "
                f"when matched and size(s.reasons) = 0 then update set "
                f"t.replayed_at = {now}, t.replayed_run = {literal(self.run)} "
                "when matched then update set t.reasons = s.reasons"
            )

        try:
            draft.commit(self.source.quarantine, merge, bookmark=None, operation="replay")
        finally:
            self.lake.spark.session.catalog.dropTempView(view)
