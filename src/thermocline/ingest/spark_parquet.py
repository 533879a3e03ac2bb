"""Read and validate Parquet files with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.engine.spark_types import EXACT_JSON, quote_identifier, to_ddl
from thermocline.ingest import parquet_types
from thermocline.ingest.lines import NumberedFiles, decode_uri, unescape_path
from thermocline.ingest.validation import FILE, POSITION, RAW, UnknownFields, validate
from thermocline.ingest.value_expressions import FlawExpression, literal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


def read_parquet(spark: SparkSession, files: NumberedFiles, contract: Contract) -> DataFrame:
    """Read and validate the records of Parquet files that share one schema."""
    frame = spark.read.parquet(*(file.uri for _, file in files))
    file_types = {field.name: field.dataType for field in frame.schema.fields}
    place = "_metadata.file_path as __tc_path", f"_metadata.row_index + 1 as {POSITION}"
    scanned = _add_file_number(spark, frame.selectExpr(*_scan_columns(file_types), *place), files)
    return _validate(scanned, file_types, contract)


def validate_rows(spark: SparkSession, rows: pa.Table, contract: Contract) -> DataFrame:
    """Validate rows in Arrow's canonical form, with FILE and POSITION."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # A time without a zone in the file has none in Spark's own reader either.
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    file_types = {f.name: f.dataType for f in schema.fields if f.name not in (FILE, POSITION)}
    frame = spark.createDataFrame(rows, schema)
    return _validate(
        frame.selectExpr(*_scan_columns(file_types), FILE, POSITION), file_types, contract
    )


def _scan_columns(file_types: dict[str, DataType]) -> list[str]:
    """Return a file's columns under internal aliases, and the record as JSON."""
    raw = ", ".join(quote_identifier(name) for name in file_types)
    inputs = _input_aliases(file_types).items()
    columns = [f"{quote_identifier(name)} as {alias}" for name, alias in inputs]
    return [*columns, f"to_json(struct({raw}), {EXACT_JSON}) as {RAW}"]


def _input_aliases(file_types: dict[str, DataType]) -> dict[str, str]:
    return {name: quote_identifier(f"__tc_in_{i}") for i, name in enumerate(file_types)}


def _validate(scanned: DataFrame, file_types: dict[str, DataType], contract: Contract) -> DataFrame:
    inputs = _input_aliases(file_types)
    computed: list[str] = []
    flaws: list[FlawExpression] = []
    for column in contract.columns:
        if column.name in file_types:
            it, found = inputs[column.name], file_types[column.name]
            typed = parquet_types.convert(column.type, it, found)
            flaws += parquet_types.conversion_flaws(column.type, it, found, column.name)
        else:
            typed = f"cast(null as {to_ddl(column.type)})"
        computed.append(f"{typed} as {quote_identifier(column.name)}")
    rows = scanned.selectExpr("*", *computed)
    known = {column.name for column in contract.columns}
    unknown = {name: file_types[name] for name in file_types if name not in known}
    return validate(rows, contract, flaws, _unknown_fields(unknown, inputs))


def _add_file_number(spark: SparkSession, scanned: DataFrame, files: NumberedFiles) -> DataFrame:
    from pyspark.sql import functions as F

    if len(files) == 1:
        return scanned.withColumn(FILE, F.lit(files[0][0]))
    known = {unescape_path(file.uri): index for index, file in files}
    # The paths as in the rows, since Spark's list of input files spells them differently. This
    # query reads no column.
    paths = [row[0] for row in scanned.select("__tc_path").distinct().collect()]
    rows = [(path, known[decode_uri(path)]) for path in paths]
    index = spark.createDataFrame(rows, "__tc_path string, __tc_index int")
    joined = scanned.join(F.broadcast(index), "__tc_path", "left")
    # Fail rather than lose a row that matches no file.
    unexpected = "raise_error(concat('a row of a file that was not requested: ', __tc_path))"
    return joined.selectExpr("*", f"coalesce(__tc_index, cast({unexpected} as int)) as {FILE}")


def _unknown_fields(unknown: dict[str, DataType], inputs: dict[str, str]) -> UnknownFields:
    if not unknown:
        return UnknownFields()
    names = ", ".join(literal(name) for name in unknown)
    texts = ", ".join(
        f"{literal(n)}, {_text_expression(inputs[n], kind)}" for n, kind in unknown.items()
    )
    return UnknownFields("true", f"array({names})", f"map({texts})")


def _text_expression(it: str, kind: DataType) -> str:
    if kind.typeName() in {"struct", "array", "map"}:
        return f"to_json({it}, {EXACT_JSON})"
    return f"base64({it})" if kind.typeName() == "binary" else f"cast({it} as string)"
