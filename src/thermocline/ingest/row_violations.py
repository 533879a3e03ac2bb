"""Find the rows that violate their contract, with Arrow and DuckDB.

Tests show that DuckDB agrees with Spark on every row-level rule (`check`). This module finds which
rows violate a rule, but not the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thermocline.check.rules import row_rules
from thermocline.check.violating_rows import compile_row_violation

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from thermocline.contract.definition import Contract

_ROW = "__tc_row"


class RowViolations:
    """The rules of a contract that a single row can violate. Not thread-safe."""

    def __init__(self, contract: Contract) -> None:
        names = {column.name for column in contract.columns}
        rules = row_rules(contract)
        required = {column.name for column in contract.columns if column.required}
        required |= {name for rule in rules if rule.kind == "missing" for name in rule.columns}
        self._required = sorted(required & names)
        more = [rule for rule in rules if rule.kind != "missing" or rule.arguments]
        more += [rule for rule in rules if not set(rule.columns) <= names]  # inside a column
        self._condition = compile_row_violation(contract, "duckdb") if more else None
        named = {name for rule in rules for name in rule.columns}
        self._columns = sorted(names & (named | {name.split(".")[0] for name in named}))
        self._connection: duckdb.DuckDBPyConnection | None = None

    def find(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that violate a rule, in ascending order."""
        import numpy as np

        found = np.zeros(table.num_rows, dtype=bool)
        for name in self._required:
            column = table.column(name)
            if column.null_count:
                found |= column.is_null().to_numpy()
        if self._condition is not None:
            found[self._find_by_duckdb(table.select(self._columns))] = True
        return np.flatnonzero(found)

    def _find_by_duckdb(self, table: pa.Table) -> Any:
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
