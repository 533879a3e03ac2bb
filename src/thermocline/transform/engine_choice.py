"""Which engine computes a step: DuckDB in this process where that is cheaper and gives the same.

Decided by the plan, from the tables' metadata. How much a table of the same run will hold is not
known by then: what its own step reads is taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.config import Settings
from thermocline.contract.definition import Column, WriteMode
from thermocline.errors import BadInput
from thermocline.lake.metadata import TableState
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    from thermocline.transform.models import Model
    from thermocline.transform.run_plan import SourceMove


@dataclass(frozen=True)
class Choice:
    """An engine, why it is that one, and about how many bytes the step will read."""

    engine: str
    why: str = ""
    bytes: int = 0
    crew: str = ""
    """Who computes it on DuckDB: this process, a worker for the `model`, or many by `partition`."""

    @property
    def executor(self) -> str:
        """The name under which a run has what computes it."""
        return f"{self.engine} {self.crew}".strip()

    def __str__(self) -> str:
        whose = {"model": " in a worker", "partition": " workers by partition"}.get(self.crew, "")
        return f"{self.engine}{whose} ({self.why})" if self.why else f"{self.engine}{whose}"


SPARK = Choice("spark")


class Sizes:
    """How large the tables of a run are, or will be, as its steps are planned one by one."""

    def __init__(
        self,
        settings: Settings,
        models: Mapping[str, Model],
        tables: Mapping[str, tuple[TableState, int | None]],
    ) -> None:
        self._settings = settings.transform
        self._workers = settings.workers
        self._one_machine = settings.spark.master.startswith("local")
        self._models = models
        self._tables = tables
        self._grown: dict[str, int] = {}

    def choose(
        self,
        model: Model,
        moves: Sequence[SourceMove],
        *,
        only_new: bool,
        workers: str | None = None,
        beyond: int | None = None,
    ) -> Choice:
        """The engine of a model's step, which reads all of its sources or only what is new.

        `workers` is how a person wants DuckDB to work; where it is told, size is no reason against
        it. `beyond` is how much to read was once too much for DuckDB's memory. What the step reads
        is remembered as what its table grows by, for the steps after it.
        """
        size = self._new(model, moves) if only_new else sum(map(self._whole, model.sources))
        self._grown[model.table] = size
        mode = workers or self._workers.mode
        chosen = self._engine(model, size, beyond, mode)
        if chosen.engine == "spark":
            return chosen
        return replace(chosen, crew=self._crew(model, size, mode, only_new=only_new))

    def _crew(self, model: Model, size: int, mode: str, *, only_new: bool) -> str:
        """Who works: in parts where that can be and is asked for, or is more than one will do."""
        if mode in {"off", "dag"} or (mode == "auto" and size <= self._settings.small_bytes):
            return ""
        if mode == "model":
            return mode
        by_parts = not only_new and _in_parts(model)
        return "partition" if by_parts else "model" if mode == "partition" else ""

    def _engine(self, model: Model, size: int, beyond: int | None, mode: str) -> Choice:
        wanted = self._settings.engine
        if model.engine == "polars":
            return Choice("polars", "a Python model", size)
        if not model.is_sql:
            if wanted == "duckdb":
                raise BadInput(
                    f"{model.table} is a Python model, which only Spark can compute.",
                    "Set transform.engine = auto, and Spark computes it.",
                )
            return Choice("spark", "a Python model", size)
        if wanted != "auto":
            return Choice(wanted, "as set", size)
        asked = mode in {"dag", "model", "partition"}
        if beyond is not None and size >= beyond and not asked:
            return Choice("spark", f"{_shown(beyond)} were too much for DuckDB before", size)
        if size > self._settings.small_bytes and not asked:
            in_parts = mode == "auto" and self._one_machine and _in_parts(model)
            if not in_parts:
                return Choice("spark", f"{_shown(size)} to read", size)
        doubt = self._doubt(model)
        if doubt is not None:
            return Choice("spark", f"{doubt} may differ on DuckDB", size)
        return Choice("duckdb", f"{_shown(size)} to read", size)

    def _new(self, model: Model, moves: Sequence[SourceMove]) -> int:
        """The sources' new files, and the target where new rows are held against those there."""
        start = {move.table: move.start for move in moves if not move.pending}
        size = sum(self._since(source, start.get(source)) for source in model.sources)
        looks = model.contract.write is not WriteMode.APPEND
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
        from thermocline.transform import engine_parity

        columns = {
            source: {column.name: str(column.type) for column in self._columns(source)}
            for source in model.sources
        }
        return engine_parity.different(model.query(), columns) or engine_parity.different_when(
            model.contract
        )

    def _columns(self, source: str) -> Sequence[Column]:
        """A source's columns as the step will find them: a model's contract is seen to first."""
        if source in self._models:
            return self._models[source].contract.table_columns
        return shape_of(self._tables[source][0]).columns if source in self._tables else ()


def _in_parts(model: Model) -> bool:
    """Whether a model's partitions can be computed one by one."""
    from thermocline.transform.target_parts import unfit

    return unfit(model) is None


def _shown(size: int) -> str:
    for unit, of in (("GB", 10**9), ("MB", 10**6)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size / 1000:.0f} kB"
