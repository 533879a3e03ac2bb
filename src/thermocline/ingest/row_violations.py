"""Which rows of this process break their contract: found by Arrow and DuckDB, told by Spark.

DuckDB is shown to agree with Spark on every rule that a row can break (`check`). It says which
rows do, not why: the words are Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.check.rules import row_rules
from thermocline.check.violating_rows import row_breaks

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from thermocline.contract.definition import Contract

_ROW = "__tc_row"


class RowViolations:
    """The rules of a contract that a single row can break. One thread uses it."""

    def __init__(self, contract: Contract) -> None:
        names = {column.name for column in contract.columns}
        rules = row_rules(contract)
        filled = {column.name for column in contract.columns if column.required}
        filled |= {name for rule in rules if rule.kind == "missing" for name in rule.columns}
        self._filled = sorted(filled & names)
        more = [rule for rule in rules if rule.kind != "missing" or rule.arguments]
        more += [rule for rule in rules if not set(rule.columns) <= names]  # inside a column
        self._condition = row_breaks(contract, "duckdb") if more else None
        named = {name for rule in rules for name in rule.columns}
        self._columns = sorted(names & (named | {name.split(".")[0] for name in named}))
        self._connection: duckdb.DuckDBPyConnection | None = None

    def rows(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """The numbers of the rows that break something, rising."""
        import numpy as np

        found = np.zeros(table.num_rows, dtype=bool)
        for name in self._filled:
            column = table.column(name)
            if column.null_count:
                found |= column.is_null().to_numpy()
        if self._condition is not None:
            found[self._by_duckdb(table.select(self._columns))] = True
        return np.flatnonzero(found)

    def _by_duckdb(self, table: pa.Table) -> Any:
        import duckdb
        import numpy as np
        import pyarrow as pa

        if self._connection is None:
            self._connection = duckdb.connect(config={"threads": 1})
            self._connection.execute("SET TimeZone = 'UTC'")
        numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        self._connection.register("records", numbered)
        query = f"SELECT {_ROW} FROM records WHERE {self._condition}"
        found = self._connection.execute(query).fetchnumpy()[_ROW]
        self._connection.unregister("records")
        return found
