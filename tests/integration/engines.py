"""Writes on either engine, so that one suite holds for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from thermocline.engine.duck_types import quote_identifier
from thermocline.engine.duck_types import to_ddl as duck_ddl
from thermocline.engine.spark_types import to_ddl as spark_ddl
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.strategies import write as duck_write
from thermocline.transform.spark.strategies import write as spark_write

if TYPE_CHECKING:
    from thermocline.contract import Contract
    from thermocline.lake import Draft, Lake

ENGINES = ("spark", "duckdb")


class Writer:
    """Puts rows into tables on one engine. Queries are in the words that both understand."""

    def __init__(self, lake: Lake, engine: str) -> None:
        self.lake = lake
        self.engine = engine
        self._session = Session(lake)

    def write(
        self,
        rows: str | pa.Table,
        contract: Contract,
        draft: Draft,
        *,
        bookmark: Any,
        affected: list[Any] | None = None,
        **how: Any,
    ) -> int:
        """Write what a query gives, or Arrow rows; `affected` are values of a key of one column."""
        if self.engine == "spark":
            return self._by_spark(rows, contract, draft, bookmark, affected, how)
        return self._by_duckdb(rows, contract, draft, bookmark, affected, how)

    def _by_spark(
        self, rows: Any, contract: Contract, draft: Draft, bookmark: Any, affected: Any, how: Any
    ) -> int:
        session = self.lake.spark.session
        frame = session.sql(rows) if isinstance(rows, str) else session.createDataFrame(rows)
        if affected is not None:
            [key] = contract.key
            kind = spark_ddl(contract.column(key).type)  # type: ignore[union-attr]
            how["affected"] = session.createDataFrame([(v,) for v in affected], f"{key} {kind}")
        return spark_write(frame, contract, draft, bookmark=bookmark, **how)

    def _by_duckdb(
        self, rows: Any, contract: Contract, draft: Draft, bookmark: Any, affected: Any, how: Any
    ) -> int:
        session = self._session
        try:
            if not isinstance(rows, str):
                rows = f"select * from {session.register(rows)}"
            if affected is not None:
                [key] = contract.key
                kind = duck_ddl(contract.column(key).type)  # type: ignore[union-attr]
                held, name = session.register(pa.table({key: affected})), quote_identifier(key)
                keys = f"select cast({name} as {kind}) as {name} from {held}"
                how["affected"] = session.materialize(keys)
            return duck_write(session, rows, contract, draft, bookmark=bookmark, **how)
        finally:
            session.clear()


@pytest.fixture(params=ENGINES)
def writer(lake: Lake, request: pytest.FixtureRequest) -> Writer:
    """A writer on each engine."""
    return Writer(lake, request.param)
