"""Which engine computes a step: DuckDB in this process where that is cheaper and gives the same.

Decided by the plan, from the tables' metadata. How much a table of the same run will hold is not
known by then: what its own step reads is taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.config import TransformSettings
from thermocline.contract.definition import Column, Write
from thermocline.errors import BadInput
from thermocline.lake.metadata import TableState
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    from thermocline.transform.models import Model
    from thermocline.transform.plan import SourceMove


@dataclass(frozen=True)
class Choice:
    """An engine, why it is that one, and about how many bytes the step will read."""

    engine: str
    why: str = ""
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.engine} ({self.why})" if self.why else self.engine


SPARK = Choice("spark")


class Sizes:
    """How large the tables of a run are, or will be, as its steps are planned one by one."""

    def __init__(
        self,
        settings: TransformSettings,
        models: Mapping[str, Model],
        tables: Mapping[str, tuple[TableState, int | None]],
    ) -> None:
        self._settings = settings
        self._models = models
        self._tables = tables
        self._grown: dict[str, int] = {}

    def choose(self, model: Model, moves: Sequence[SourceMove], *, only_new: bool) -> Choice:
        """The engine of a model's step, which reads all of its sources or only what is new.

        What it reads is remembered as what its table grows by, for the steps after it.
        """
        size = self._new(model, moves) if only_new else sum(map(self._whole, model.sources))
        self._grown[model.table] = size
        wanted = self._settings.engine
        if not model.is_sql:
            if wanted == "duckdb":
                raise BadInput(
                    f"{model.table} is a Python model, which only Spark can compute.",
                    "Set transform.engine = auto, and Spark computes it.",
                )
            return Choice("spark", "a Python model", size)
        if wanted != "auto":
            return Choice(wanted, "as set", size)
        if size > self._settings.small:
            return Choice("spark", f"{_shown(size)} to read", size)
        doubt = self._doubt(model)
        if doubt is not None:
            return Choice("spark", f"{doubt} may differ on DuckDB", size)
        return Choice("duckdb", f"{_shown(size)} to read", size)

    def _new(self, model: Model, moves: Sequence[SourceMove]) -> int:
        """The sources' new files, and the target where new rows are held against those there."""
        start = {move.table: move.start for move in moves if not move.pending}
        size = sum(self._since(source, start.get(source)) for source in model.sources)
        looks = model.contract.write is not Write.APPEND
        return size + (self._whole(model.table) if looks else 0)

    def _since(self, table: str, start: int | None) -> int:
        """How much came to a source after a snapshot; None is for what this run will bring."""
        if start is None or table not in self._tables:
            return self._grown.get(table, 0)
        state, head = self._tables[table]
        between = state.between(start, head)
        if between is None:
            return self._whole(table)
        return sum(snapshot.count("added-files-size") for snapshot in between)

    def _whole(self, table: str) -> int:
        grown = self._grown.get(table, 0)
        if table not in self._tables:
            return grown
        state, head = self._tables[table]
        return grown + (state.snapshot(head).count("total-files-size") if head is not None else 0)

    def _doubt(self, model: Model) -> str | None:
        from thermocline.transform import alike

        columns = {
            source: {column.name: str(column.type) for column in self._columns(source)}
            for source in model.sources
        }
        return alike.different(model.query(), columns) or alike.different_when(model.contract)

    def _columns(self, source: str) -> Sequence[Column]:
        """A source's columns as the step will find them: a model's contract is seen to first."""
        if source in self._models:
            return self._models[source].contract.table_columns
        return shape_of(self._tables[source][0]).columns if source in self._tables else ()


def _shown(size: int) -> str:
    for unit, of in (("GB", 10**9), ("MB", 10**6)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size / 1000:.0f} kB"
