"""What has landed of a table's changes, as what comes next must know it."""

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
"""So many places are named to the reader, so that it passes over the files that have none."""


class LandedChanges:
    """The events of a source that have landed in bronze, or in quarantine and not in bronze.

    A row of bronze is whole, so of each key only the last event before a place matters. `origins`
    name the tables by the start of `_source_file`: a topic has partitions behind its name.
    """

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = drift.include_added_columns(lake, strip_provenance(contract))
        self._found: list[Row] = []

    def rows(self, origins: Sequence[str]) -> DataFrame:
        """The rows of bronze as events that a truncate may delete."""
        listed = ", ".join(literal(name) for name in origins)
        named = {column.name for column in self._contract.columns}
        table = TABLE if TABLE in named else "cast(null as string)"
        return self._bronze.where("_key is not null").selectExpr(
            f"cast(array_position(array({listed}), _source_file) - 1 as int) as __cut_file",
            f"_key as {KEY}", OP, LSN, f"{table} as {TABLE}",
            f"to_json({self._texts}, map('ignoreNullFields', 'false')) as {ROW}",
        )  # fmt: skip

    def before(self, keys: Sequence[tuple[str, bytes, int]]) -> list[ChangeEvent]:
        """See History.before. Reads the narrow columns of bronze, and of quarantine."""
        from pyspark.sql import functions as F

        asked = self._lake.spark.session.createDataFrame(
            list(keys), "__tc_table string, _key binary, __tc_first long"
        )
        table = "regexp_replace(_source_file, '/[0-9]+$', '') as __tc_table"
        near = (
            self._meta.selectExpr("*", table)
            .join(F.broadcast(asked), ["__tc_table", "_key"])
            .selectExpr(
                "__tc_table", "_key", f"{LSN} < __tc_first as older",
                f"struct({LSN}, _position, {OP}, __tc_whole, __tc_bronze, _source_file) as at",
            )
        )  # fmt: skip
        last = near.groupBy("__tc_table", "_key").agg(
            F.expr("max(at) filter (where older) as last"),
            F.expr("collect_list(at) filter (where not older) as later"),
        )
        every = "if(last is null, later, concat(array(last), later))"
        flat = last.selectExpr("__tc_table", "_key", f"inline({every})")
        self._found = flat.collect()
        return [
            ChangeEvent(
                row["__tc_table"], bytes(row["_key"]), row[LSN], (LANDED, number), row[OP],
                whole=row["__tc_whole"],
            )
            for number, row in enumerate(self._found)
        ]  # fmt: skip

    def texts(self, numbers: Sequence[int]) -> DataFrame:
        """See History.texts."""
        wanted = [
            (n, self._found[n]["_source_file"], self._found[n]["_position"],
             bytes(self._found[n]["_key"]), self._found[n]["__tc_bronze"])
            for n in numbers
        ]  # fmt: skip
        schema = "n long, _source_file string, _position long, _key binary, __tc_bronze boolean"
        asked = self._lake.spark.session.createDataFrame(wanted, schema)
        texts = self._at(self._bronze, wanted, bronze=True).selectExpr(
            "_source_file", "_position", "_key", "true as __tc_bronze", f"{self._texts} as m"
        )
        if self._aside is not None:
            raw = self._at(self._aside, wanted, bronze=False).selectExpr(
                "_source_file", "_position", "_key", "false as __tc_bronze",
                f"from_json(raw, '{MEMBERS}') as m",
            )  # fmt: skip
            texts = texts.unionByName(raw)
        same = ["_source_file", "_position", "_key", "__tc_bronze"]
        return asked.join(texts, same).select("n", "m")

    @staticmethod
    def _at(
        table: DataFrame, wanted: Sequence[tuple[int, str, int, bytes, bool]], *, bronze: bool
    ) -> DataFrame:
        """The rows at about the wanted places, by what the table's files say of themselves."""
        places = sorted({each[2] for each in wanted if each[4] is bronze})
        if not places:
            return table.where("false")
        if len(places) <= MAX_NAMED_POSITIONS:
            return table.where(f"_position in ({', '.join(map(str, places))})")
        return table.where(f"_position between {places[0]} and {places[-1]}")

    @cached_property
    def _bronze(self) -> DataFrame:
        head = self._lake.state(self._source.target).head()
        session = self._lake.spark.session
        read = session.read if head is None else session.read.option("versionAsOf", str(head))
        table = read.table(f"{CATALOG}.{self._source.target}")
        return table.where(f"_source = {literal(self._source.name)}")

    @cached_property
    def _aside(self) -> DataFrame | None:
        """What is in quarantine and has not landed since."""
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
    def _meta(self) -> DataFrame:
        found = self._bronze.where("_key is not null").selectExpr(
            "_source_file", "_key", LSN, OP, "_position",
            "true as __tc_whole", "true as __tc_bronze",
        )  # fmt: skip
        if self._aside is None:
            return found
        event = "from_json(cast(_raw as string), 'op string, source struct<lsn:bigint>')"
        aside = self._aside.where("_key is not null").selectExpr("*", f"{event} as e")
        return found.unionByName(
            aside.selectExpr(
                "_source_file", "_key", f"coalesce(e.source.lsn, 0) as {LSN}", f"e.op as {OP}",
                "_position", "layout is not null as __tc_whole", "false as __tc_bronze",
            )
        )  # fmt: skip

    @property
    def _texts(self) -> str:
        """A row's columns as texts, by name; a rescued text is the whole of its column's."""
        # A column that was only just added is in no row that has landed.
        there = set(self._bronze.columns) - set(COLUMNS)
        own = [c for c in self._contract.columns if c.name in there]
        pairs = ", ".join(
            f"{literal(c.name)}, {value_expressions.to_text(c.type, quote_identifier(c.name))}"
            for c in own
        )
        rescued = "coalesce(_rescued, cast(map() as map<string,string>))"
        kept = f"map_filter(map({pairs}), (k, v) -> not map_contains_key({rescued}, k))"
        return f"map_concat({kept}, {rescued})"
