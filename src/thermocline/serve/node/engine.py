"""The DuckDB of a node: in memory, isolated from files and network, with locked settings."""

from __future__ import annotations

import re

import duckdb

from thermocline.serve.failures import DivisionByZero
from thermocline.serve.wire.jobs import WorkerError
from thermocline.sql.guard import DIVISION_BY_ZERO

_RESERVED_BYTES = 256 << 20
"""The part of the budget that the process itself needs: Python, Arrow, and DuckDB's code."""

_STREAMING_BUFFER = "32KB"
"""How much of a result is buffered. Strings are not counted: 1 MB can be a gigabyte."""

# The guard already refuses these. They are refused here again because they change the process for
# all later queries: a log that is sent to a file makes every later query fail, and `query` runs a
# text that the guard has not checked.
_PROCESS_WIDE = re.compile(
    r"(?i)\b(enable_logging|disable_logging|truncate_duckdb_logs|write_log|enable_profiling"
    r"|disable_profiling|force_checkpoint)\b"
    r"|\b(query|query_table|checkpoint)\"?(\s|--[^\n]*\n|/\*.*?\*/)*\(",
    re.DOTALL,
)


# DuckDB counts PRAGMA, SHOW and SUMMARIZE among the SELECTs.
_QUERY = re.compile(r"(?i)[\s(]*(select|with|from|values)\b")


def open_engine(memory: int, threads: int) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that can reach no file, network or extension.

    Its configuration is not locked yet, for cursors with own settings; see `lock_configuration`.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_limit(memory)}B",
            "threads": threads,
            "temp_directory": "",
            # `memory_budget` decides when to compress: running out of memory there ends the
            # database.
            "checkpoint_threshold": "1TB",
            # Without it a query that ran out of memory leaves the process as large as it made it.
            "allocator_background_threads": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
        },
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    # RLE stores a run of equal numbers as the first one: of 0.0 and -0.0, which differ as text, one
    # would become the other. (A hundred thousand rows of only zeros still lose the sign.)
    connection.execute("SET disabled_compression_methods = 'rle'")
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET enable_external_access = false")
    return connection


def open_query_cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Open a cursor for queries, which computes little more of a result than is fetched."""
    cursor = connection.cursor()
    cursor.execute(f"SET streaming_buffer_size = '{_STREAMING_BUFFER}'")
    return cursor


def lock_configuration(connection: duckdb.DuckDBPyConnection) -> None:
    """Lock the configuration: no setting can be changed any more."""
    connection.execute("SET lock_configuration = true")


def memory_limit(memory: int) -> int:
    """Return how much of a node's budget is DuckDB's."""
    return max(memory // 2, memory - _RESERVED_BYTES)


def parse_select(cursor: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """Parse a text that must be one SELECT."""
    if "\0" in sql or not _QUERY.match(sql) or _PROCESS_WIDE.search(sql):
        raise WorkerError("query", "The query uses something that a node does not support.")
    statements = cursor.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise WorkerError("query", "A node answers a single SELECT.")
    return statements[0]


_RUNTIME_ERRORS = {
    "ConversionException": "A value cannot be converted to the requested type.",
    "OutOfRangeException": "A value is out of the range of its type.",
    "InvalidInputException": "A function does not accept one of its values.",
    "TypeMismatchException": "A value has another type than the query needs.",
    "ConstraintException": "A value violates a constraint.",
    "PermissionException": "The query accesses something outside of the node.",
    "IOException": "The query accesses something outside of the node.",
    "HTTPException": "The query accesses something outside of the node.",
}
"""Replacements for errors whose text may contain values of rows, or paths."""


def is_fatal(error: Exception) -> bool:
    """Return whether the database can no longer be used."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def to_failed(error: Exception) -> WorkerError:
    """Return a DuckDB error as a caller may see it: one line, no value of a row, no path."""
    text = str(error)
    # Errors from Arrow's stream of batches have one class: the text tells the kind.
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException) or "Out of Memory" in text:
        return WorkerError(
            "memory", "The query needs more memory than it may use.", "Read less data."
        )
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT" in text:
        return WorkerError("cancelled", "The query was interrupted.")
    name = type(error).__name__
    if f"Error: {DIVISION_BY_ZERO}" in text:
        return WorkerError(DivisionByZero.code, DIVISION_BY_ZERO)
    if name in _RUNTIME_ERRORS:
        return WorkerError("query", _RUNTIME_ERRORS[name])
    if isinstance(error, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
        return WorkerError("query", text.split("\n", 1)[0].split("Did you mean", 1)[0].strip())
    for kind, said in (
        ("Conversion Error", "ConversionException"),
        ("Out of Range", "OutOfRangeException"),
    ):
        if kind in text:
            return WorkerError("query", _RUNTIME_ERRORS[said])
    return WorkerError("query", f"The query failed ({name}).")
