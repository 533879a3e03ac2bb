"""Parquet files as rows of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.engine.spark_types import EXACT_JSON, quoted
from thermocline.ingest import native, values
from thermocline.ingest.judge import FILE, POSITION, RAW, Stray, judged
from thermocline.ingest.lines import Numbered, decoded, location_of
from thermocline.ingest.values import Flaw, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


def parquet_rows(spark: SparkSession, files: Numbered, contract: Contract) -> DataFrame:
    """Records of Parquet files that share one schema, judged."""
    frame = spark.read.parquet(*(file.uri for _, file in files))
    there = {field.name: field.dataType for field in frame.schema.fields}
    inputs = {name: quoted(f"__tc_in_{i}") for i, name in enumerate(there)}
    raw = ", ".join(quoted(name) for name in there)
    scanned = frame.selectExpr(
        *(f"{quoted(name)} as {alias}" for name, alias in inputs.items()),
        f"to_json(struct({raw}), {EXACT_JSON}) as {RAW}",
        "_metadata.file_path as __tc_path",
        f"_metadata.row_index + 1 as {POSITION}",
    )
    computed: list[str] = []
    flaws: list[Flaw] = []
    for column in contract.columns:
        if column.name in there:
            it, found = inputs[column.name], there[column.name]
            typed = native.convert(column.type, it, found)
            flaws += native.native_flaws(column.type, it, found, column.name)
        else:
            typed = f"cast(null as {values.spark_type(column.type)})"
        computed.append(f"{typed} as {quoted(column.name)}")
    rows = _with_file(spark, scanned, frame.inputFiles(), files).selectExpr("*", *computed)
    known = {column.name for column in contract.columns}
    more = {name: there[name] for name in there if name not in known}
    return judged(rows, contract, flaws, _stray(more, inputs))


def _with_file(
    spark: SparkSession, scanned: DataFrame, paths: list[str], files: Numbered
) -> DataFrame:
    from pyspark.sql import functions as F

    if len(files) == 1:
        return scanned.withColumn(FILE, F.lit(files[0][0]))
    known = {location_of(file.uri): index for index, file in files}
    # The paths as the rows spell them: Spark's own list of input files spells them otherwise.
    # No column is read for it.
    paths = [row[0] for row in scanned.select("__tc_path").distinct().collect()]
    rows = [(path, known[decoded(path)]) for path in paths]
    index = spark.createDataFrame(rows, "__tc_path string, __tc_index int")
    joined = scanned.join(F.broadcast(index), "__tc_path", "left")
    # A row without its file would be a row lost: better no batch at all.
    stray = "raise_error(concat('a row of a file that was not asked for: ', __tc_path))"
    return joined.selectExpr("*", f"coalesce(__tc_index, cast({stray} as int)) as {FILE}")


def _stray(more: dict[str, DataType], inputs: dict[str, str]) -> Stray:
    if not more:
        return Stray()
    names = ", ".join(literal(name) for name in more)
    texts = ", ".join(f"{literal(n)}, {_text(inputs[n], kind)}" for n, kind in more.items())
    return Stray("true", f"array({names})", f"map({texts})")


def _text(it: str, kind: DataType) -> str:
    if kind.typeName() in {"struct", "array", "map"}:
        return f"to_json({it}, {EXACT_JSON})"
    return f"base64({it})" if kind.typeName() == "binary" else f"cast({it} as string)"
