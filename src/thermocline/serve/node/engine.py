"""DuckDB as a node runs it: in memory, cut off from everything, and locked so."""

from __future__ import annotations

import re

import duckdb

from thermocline.serve.failures import DivisionByZero
from thermocline.serve.wire.jobs import WorkerError
from thermocline.sql.guard import DIVISION_BY_ZERO

_RESERVED_BYTES = 256 << 20
"""What the process itself needs of its budget: Python, Arrow, and DuckDB's code."""

_STREAMING_BUFFER = "32KB"
"""How much of a result waits to be fetched. Texts are not counted: 1 MB can be a gigabyte."""

# The guard lets none of these through. They are refused here once more because they change the
# process for everybody after: a log that is sent to a file makes every later query fail, and
# `query` runs a text that nobody has looked at.
_PROCESS_WIDE = re.compile(
    r"(?i)\b(enable_logging|disable_logging|truncate_duckdb_logs|write_log|enable_profiling"
    r"|disable_profiling|force_checkpoint)\b"
    r"|\b(query|query_table|checkpoint)\"?(\s|--[^\n]*\n|/\*.*?\*/)*\(",
    re.DOTALL,
)


# DuckDB counts PRAGMA, SHOW and SUMMARIZE among the SELECTs.
_QUERY = re.compile(r"(?i)[\s(]*(select|with|from|values)\b")


def open_engine(memory: int, threads: int) -> duckdb.DuckDBPyConnection:
    """A database in memory that can reach no file, no network and no extension, ever.

    Its configuration is still open, for cursors with settings of their own; see `lock`.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_limit(memory)}B",
            "threads": threads,
            "temp_directory": "",
            # When to compress is decided by `store`: one that runs out of memory ends the database.
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
    # A run of equal numbers is kept as its first: of 0.0 and -0.0, which differ as texts, one
    # would become the other. (A hundred thousand rows with nothing but zeros still lose the sign.)
    connection.execute("SET disabled_compression_methods = 'rle'")
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET enable_external_access = false")
    return connection


def open_query_cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor for queries, which makes little more of a result than is fetched."""
    cursor = connection.cursor()
    cursor.execute(f"SET streaming_buffer_size = '{_STREAMING_BUFFER}'")
    return cursor


def lock_configuration(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on no setting can be changed by anybody."""
    connection.execute("SET lock_configuration = true")


def memory_limit(memory: int) -> int:
    """How much of a node's budget is DuckDB's."""
    return max(memory // 2, memory - _RESERVED_BYTES)


def parse_select(cursor: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The statement of a text that must be one SELECT."""
    if "\0" in sql or not _QUERY.match(sql) or _PROCESS_WIDE.search(sql):
        raise WorkerError("query", "The query uses something that a node does not do.")
    statements = cursor.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise WorkerError("query", "A node answers one SELECT at a time.")
    return statements[0]


_RUNTIME_ERRORS = {
    "ConversionException": "A value cannot be converted to the type that is asked for.",
    "OutOfRangeException": "A value is out of the range of its type.",
    "InvalidInputException": "A function does not take a value it is given.",
    "TypeMismatchException": "A value has another type than the query needs.",
    "ConstraintException": "A value breaks a constraint.",
    "PermissionException": "The query asks for something outside of the node.",
    "IOException": "The query asks for something outside of the node.",
    "HTTPException": "The query asks for something outside of the node.",
}
"""Errors whose text holds values of rows, or paths: what is said of them instead."""


def is_fatal(error: Exception) -> bool:
    """Whether DuckDB gave up for good."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def to_failed(error: Exception) -> WorkerError:
    """An error of DuckDB as an asker may see it: one line, no value of a row, no path."""
    text = str(error)
    # Through Arrow's stream of batches all errors have one class: the text says which it was.
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException) or "Out of Memory" in text:
        return WorkerError(
            "memory", "The query needs more memory than it may use.", "Ask for less."
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
