"""Read text files as numbered lines with Spark, which reads them in blocks without numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from thermocline.ingest.validation import FILE, POSITION, RAW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from thermocline.ingest.stage import StagedFile

FLAW = "__tc_flaw"
"""The flaw of a line before it is parsed, or null."""

TOO_LONG = "longer than maxLineBytes"
NOT_TEXT = "not valid text in its encoding"

NumberedFiles = Sequence[tuple[int, "StagedFile"]]


def read_numbered_lines(
    spark: SparkSession, files: NumberedFiles, separator: str, *, header: bool
) -> DataFrame:
    """Read the lines of text files that are not blank, as FILE, POSITION, RAW and FLAW.

    A header does not count: the first record of a file always has position 1.
    """
    reader = spark.read.option("lineSep", separator)
    scanned = reader.text([file.uri for _, file in files]).selectExpr(
        "value",
        "_metadata.file_path as __tc_path",
        "_metadata.file_block_start as __tc_start",
        "monotonically_increasing_id() as __tc_id",
    )
    blocks = _block_offsets(spark, scanned, files, skipped=1 if header else 0)
    numbered = scanned.join(blocks, ["__tc_path", "__tc_start"]).selectExpr(
        f"__tc_index as {FILE}", f"__tc_id - __tc_base as {POSITION}", "value", "__tc_cut"
    )
    cut = any(file.too_long for _, file in files)
    too_long = f"array_contains(__tc_cut, {POSITION})" if cut else "false"
    flaw = (
        f"case when {too_long} then '{TOO_LONG}'"
        f" when not is_valid_utf8(value) then '{NOT_TEXT}' end"
    )
    # A line that is not UTF-8 is kept byte by byte as Latin-1. Hadoop's reader has already removed
    # a byte order mark.
    text = (
        "case when not is_valid_utf8(value) then decode(cast(value as binary), 'ISO-8859-1')"
        " else value end"
    )
    filled = f"{POSITION} > 0 and length(trim(both ' \\t\\r' from value)) > 0"
    return numbered.where(filled).selectExpr(
        FILE, POSITION, f"trim(trailing '\\r' from {text}) as {RAW}", f"{flaw} as {FLAW}"
    )


def _block_offsets(
    spark: SparkSession, scanned: DataFrame, files: NumberedFiles, *, skipped: int
) -> DataFrame:
    """Return, for each block that Spark reads, the offset from a row's id to its record number.

    Ids grow by one inside a partition. So a block's first id and the number of lines in the file's
    earlier blocks are enough; counting them takes a scan without parsing.
    """
    from pyspark.sql import functions as F

    counted = (
        scanned.groupBy("__tc_path", "__tc_start")
        .agg(F.min("__tc_id").alias("first"), F.count("*").alias("lines"))
        .collect()
    )
    known = {unescape_path(file.uri): (index, file) for index, file in files}
    rows = []
    before: dict[str, int] = {}
    for row in sorted(counted, key=lambda row: (row["__tc_path"], row["__tc_start"])):
        path = row["__tc_path"]
        index, file = known[decode_uri(path)]
        position = before.get(path, 0) + 1 - skipped
        before[path] = before.get(path, 0) + row["lines"]
        rows.append((path, row["__tc_start"], index, row["first"] - position, [*file.too_long]))
    columns = "__tc_path string, __tc_start long, __tc_index int, __tc_base long"
    return F.broadcast(spark.createDataFrame(rows, f"{columns}, __tc_cut array<long>"))


def decode_uri(path: str) -> str:
    """Return the location of a file's URI as Spark reports it."""
    parts = urlsplit(path)
    return unquote(f"{parts.netloc}{parts.path}")


def unescape_path(uri: str) -> str:
    """Return the location of a path that was escaped for Spark."""
    characters, escaped = [], False
    for char in uri.removeprefix("s3a://"):
        if char == "\\" and not escaped:
            escaped = True
        else:
            characters.append(char)
            escaped = False
    return "".join(characters)
