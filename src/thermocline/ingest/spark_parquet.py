"""Parquet files as rows of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.engine.spark_types import EXACT_JSON, quote_identifier
from thermocline.ingest import parquet_types, value_expressions
from thermocline.ingest.lines import NumberedFiles, decode_uri, unescape_path
from thermocline.ingest.validation import FILE, POSITION, RAW, UnknownFields, validate
from thermocline.ingest.value_expressions import FlawExpression, literal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


def read_parquet(spark: SparkSession, files: NumberedFiles, contract: Contract) -> DataFrame:
    """Records of Parquet files that share one schema, judged."""
    frame = spark.read.parquet(*(file.uri for _, file in files))
    there = {field.name: field.dataType for field in frame.schema.fields}
    place = "_metadata.file_path as __tc_path", f"_metadata.row_index + 1 as {POSITION}"
    scanned = _add_file_number(spark, frame.selectExpr(*_scan_columns(there), *place), files)
    return _validate(scanned, there, contract)


def validate_rows(spark: SparkSession, rows: pa.Table, contract: Contract) -> DataFrame:
    """The same for rows of this process, in Arrow's canonical form, with FILE and POSITION."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # What has no zone in the file has none for Spark's own reader.
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    there = {f.name: f.dataType for f in schema.fields if f.name not in (FILE, POSITION)}
    frame = spark.createDataFrame(rows, schema)
    return _validate(frame.selectExpr(*_scan_columns(there), FILE, POSITION), there, contract)


def _scan_columns(there: dict[str, DataType]) -> list[str]:
    """A file's columns under names of our own, and the record as JSON."""
    raw = ", ".join(quote_identifier(name) for name in there)
    inputs = _input_aliases(there).items()
    columns = [f"{quote_identifier(name)} as {alias}" for name, alias in inputs]
    return [*columns, f"to_json(struct({raw}), {EXACT_JSON}) as {RAW}"]


def _input_aliases(there: dict[str, DataType]) -> dict[str, str]:
    return {name: quote_identifier(f"__tc_in_{i}") for i, name in enumerate(there)}


def _validate(scanned: DataFrame, there: dict[str, DataType], contract: Contract) -> DataFrame:
    inputs = _input_aliases(there)
    computed: list[str] = []
    flaws: list[FlawExpression] = []
    for column in contract.columns:
        if column.name in there:
            it, found = inputs[column.name], there[column.name]
            typed = parquet_types.convert(column.type, it, found)
            flaws += parquet_types.conversion_flaws(column.type, it, found, column.name)
        else:
            typed = f"cast(null as {value_expressions.spark_type(column.type)})"
        computed.append(f"{typed} as {quote_identifier(column.name)}")
    rows = scanned.selectExpr("*", *computed)
    known = {column.name for column in contract.columns}
    more = {name: there[name] for name in there if name not in known}
    return validate(rows, contract, flaws, _unknown_fields(more, inputs))


def _add_file_number(spark: SparkSession, scanned: DataFrame, files: NumberedFiles) -> DataFrame:
    from pyspark.sql import functions as F

    if len(files) == 1:
        return scanned.withColumn(FILE, F.lit(files[0][0]))
    known = {unescape_path(file.uri): index for index, file in files}
    # The paths as the rows spell them: Spark's own list of input files spells them otherwise.
    # No column is read for it.
    paths = [row[0] for row in scanned.select("__tc_path").distinct().collect()]
    rows = [(path, known[decode_uri(path)]) for path in paths]
    index = spark.createDataFrame(rows, "__tc_path string, __tc_index int")
    joined = scanned.join(F.broadcast(index), "__tc_path", "left")
    # A row without its file would be a row lost: better no batch at all.
    stray = "raise_error(concat('a row of a file that was not asked for: ', __tc_path))"
    return joined.selectExpr("*", f"coalesce(__tc_index, cast({stray} as int)) as {FILE}")


def _unknown_fields(more: dict[str, DataType], inputs: dict[str, str]) -> UnknownFields:
    if not more:
        return UnknownFields()
    names = ", ".join(literal(name) for name in more)
    texts = ", ".join(
        f"{literal(n)}, {_text_expression(inputs[n], kind)}" for n, kind in more.items()
    )
    return UnknownFields("true", f"array({names})", f"map({texts})")


def _text_expression(it: str, kind: DataType) -> str:
    if kind.typeName() in {"struct", "array", "map"}:
        return f"to_json({it}, {EXACT_JSON})"
    return f"base64({it})" if kind.typeName() == "binary" else f"cast({it} as string)"
