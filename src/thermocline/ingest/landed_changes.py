"""The landed changes of a table, which later changes depend on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.engine.spark import CATALOG
from thermocline.engine.spark_types import quote_identifier
from thermocline.ingest import drift, value_expressions
from thermocline.ingest.debezium import COLUMNS, LSN, MEMBERS, OP, ROW, TABLE
from thermocline.ingest.unchanged_toast import LANDED, ChangeEvent
from thermocline.ingest.validation import KEY, strip_provenance
from thermocline.ingest.value_expressions import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from thermocline.contract.definition import Contract
    from thermocline.ingest.source import Source
    from thermocline.lake import Lake

_META = f"_source_file, _key, {LSN}, {OP}, _position, __tc_whole, __tc_bronze"
MAX_NAMED_POSITIONS = 2_000
"""Up to this many positions are listed in the filter, so that the scan can skip files."""


class LandedChanges:
    """The events of a source that have landed in bronze, or only in quarantine.

    Rows in bronze are complete, so only the last event of a key before a position matters.
    `origins` name the tables by the start of `_source_file`, where a topic's partition follows its
    name.
    """

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = drift.include_added_columns(lake, strip_provenance(contract))
        self._events: list[Row] = []

    def read_rows(self, origins: Sequence[str]) -> DataFrame:
        """Return the rows of bronze as events that a truncate may delete."""
        listed = ", ".join(literal(name) for name in origins)
        named = {column.name for column in self._contract.columns}
        table = TABLE if TABLE in named else "cast(null as string)"
        return self._bronze.where("_key is not null").selectExpr(
            f"cast(array_position(array({listed}), _source_file) - 1 as int) as __cut_file",
            f"_key as {KEY}", OP, LSN, f"{table} as {TABLE}",
            f"to_json({self._texts_expression}, map('ignoreNullFields', 'false')) as {ROW}",
        )  # fmt: skip

    def find_events(self, keys: Sequence[tuple[str, bytes, int]]) -> list[ChangeEvent]:
        """See ChangeHistory.find_events. Reads only narrow columns of bronze and quarantine."""
        from pyspark.sql import functions as F

        requested = self._lake.spark.session.createDataFrame(
            list(keys), "__tc_table string, _key binary, __tc_first long"
        )
        table = "regexp_replace(_source_file, '/[0-9]+$', '') as __tc_table"
        candidates = (
            self._keyed_events.selectExpr("*", table)
            .join(F.broadcast(requested), ["__tc_table", "_key"])
            .selectExpr(
                "__tc_table", "_key", f"{LSN} < __tc_first as older",
                f"struct({LSN}, _position, {OP}, __tc_whole, __tc_bronze, _source_file) as at",
            )
        )  # fmt: skip
        last = candidates.groupBy("__tc_table", "_key").agg(
            F.expr("max(at) filter (where older) as last"),
            F.expr("collect_list(at) filter (where not older) as later"),
        )
        every = "if(last is null, later, concat(array(last), later))"
        flat = last.selectExpr("__tc_table", "_key", f"inline({every})")
        self._events = flat.collect()
        return [
            ChangeEvent(
                row["__tc_table"], bytes(row["_key"]), row[LSN], (LANDED, number), row[OP],
                is_whole=row["__tc_whole"],
            )
            for number, row in enumerate(self._events)
        ]  # fmt: skip

    def read_texts(self, numbers: Sequence[int]) -> DataFrame:
        """See ChangeHistory.read_texts."""
        requested_rows = [
            (n, self._events[n]["_source_file"], self._events[n]["_position"],
             bytes(self._events[n]["_key"]), self._events[n]["__tc_bronze"])
            for n in numbers
        ]  # fmt: skip
        schema = "n long, _source_file string, _position long, _key binary, __tc_bronze boolean"
        requested = self._lake.spark.session.createDataFrame(requested_rows, schema)
        texts = self._select_positions(self._bronze, requested_rows, bronze=True).selectExpr(
            "_source_file",
            "_position",
            "_key",
            "true as __tc_bronze",
            f"{self._texts_expression} as m",
        )
        if self._quarantined is not None:
            rows = self._select_positions(self._quarantined, requested_rows, bronze=False)
            raw = rows.selectExpr(
                "_source_file", "_position", "_key", "false as __tc_bronze",
                f"from_json(raw, '{MEMBERS}') as m",
            )  # fmt: skip
            texts = texts.unionByName(raw)
        join_columns = ["_source_file", "_position", "_key", "__tc_bronze"]
        return requested.join(texts, join_columns).select("n", "m")

    @staticmethod
    def _select_positions(
        table: DataFrame,
        requested_rows: Sequence[tuple[int, str, int, bytes, bool]],
        *,
        bronze: bool,
    ) -> DataFrame:
        """Return a superset of the rows at the requested positions, using file statistics."""
        positions = sorted({each[2] for each in requested_rows if each[4] is bronze})
        if not positions:
            return table.where("false")
        if len(positions) <= MAX_NAMED_POSITIONS:
            return table.where(f"_position in ({', '.join(map(str, positions))})")
        return table.where(f"_position between {positions[0]} and {positions[-1]}")

    @cached_property
    def _bronze(self) -> DataFrame:
        head = self._lake.state(self._source.target).head()
        session = self._lake.spark.session
        read = session.read if head is None else session.read.option("versionAsOf", str(head))
        table = read.table(f"{CATALOG}.{self._source.target}")
        return table.where(f"_source = {literal(self._source.name)}")

    @cached_property
    def _quarantined(self) -> DataFrame | None:
        """The quarantined rows that were not replayed."""
        table = self._source.quarantine
        head = self._lake.state(table).head() if self._lake.exists(table) else None
        if head is None:
            return None
        rows = self._lake.spark.read(table, head)
        mine = f"source = {literal(self._source.name)} and replayed_at is null"
        return rows.where(mine).selectExpr(
            "*", "file as _source_file", "position as _position",
        )  # fmt: skip

    @cached_property
    def _keyed_events(self) -> DataFrame:
        found = self._bronze.where("_key is not null").selectExpr(
            "_source_file", "_key", LSN, OP, "_position",
            "true as __tc_whole", "true as __tc_bronze",
        )  # fmt: skip
        if self._quarantined is None:
            return found
        event = "from_json(cast(_raw as string), 'op string, source struct<lsn:bigint>')"
        quarantined = self._quarantined.where("_key is not null").selectExpr("*", f"{event} as e")
        return found.unionByName(
            quarantined.selectExpr(
                "_source_file", "_key", f"coalesce(e.source.lsn, 0) as {LSN}", f"e.op as {OP}",
                "_position", "layout is not null as __tc_whole", "false as __tc_bronze",
            )
        )  # fmt: skip

    @property
    def _texts_expression(self) -> str:
        """An expression for a row's columns as texts by name; rescued texts take precedence."""
        # A column that was just added is in no landed row.
        present = set(self._bronze.columns) - set(COLUMNS)
        own = [c for c in self._contract.columns if c.name in present]
        pairs = ", ".join(
            f"{literal(c.name)}, {value_expressions.to_text(c.type, quote_identifier(c.name))}"
            for c in own
        )
        rescued = "coalesce(_rescued, cast(map() as map<string,string>))"
        kept = f"map_filter(map({pairs}), (k, v) -> not map_contains_key({rescued}, k))"
        return f"map_concat({kept}, {rescued})"
