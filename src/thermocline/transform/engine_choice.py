"""Choose the engine of a step: DuckDB where it is cheaper and returns the same rows, else Spark.

The plan decides, from the tables' metadata. The size of a table that the same run writes is not
known yet; the plan estimates it by the bytes that its own step reads.
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
    from thermocline.transform.run_plan import SourceChange


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a step, the reason, and about how many bytes the step will read."""

    engine: str
    why: str = ""
    bytes: int = 0
    worker_mode: str = ""
    """Where DuckDB runs: empty is this process; `model` is one worker; `partition` is many."""

    @property
    def executor_key(self) -> str:
        """The key of the executor in a run."""
        return f"{self.engine} {self.worker_mode}".strip()

    def __str__(self) -> str:
        where = {"model": " in a worker", "partition": " workers by partition"}.get(
            self.worker_mode, ""
        )
        return f"{self.engine}{where} ({self.why})" if self.why else f"{self.engine}{where}"


SPARK = EngineChoice("spark")


class EngineSelector:
    """Chooses engines by table sizes, and tracks how the tables of a run grow, step by step."""

    def __init__(
        self,
        settings: Settings,
        models: Mapping[str, Model],
        tables: Mapping[str, tuple[TableState, int | None]],
    ) -> None:
        self._settings = settings.transform
        self._workers = settings.workers
        self._is_local = settings.spark.master.startswith("local")
        self._models = models
        self._tables = tables
        self._growth: dict[str, int] = {}

    def choose(
        self,
        model: Model,
        source_changes: Sequence[SourceChange],
        *,
        only_new: bool,
        workers: str | None = None,
        memory_limit: int | None = None,
    ) -> EngineChoice:
        """Choose the engine of a model's step, which reads all of its sources or only new rows.

        `workers` is the worker mode that the caller requests; with it, size does not exclude
        DuckDB. `memory_limit` is the number of input bytes that once exceeded DuckDB's memory. The
        bytes that the step reads are recorded as the growth of its table, for the later steps.
        """
        size = (
            self._count_new_bytes(model, source_changes)
            if only_new
            else sum(map(self._count_total_bytes, model.sources))
        )
        self._growth[model.table] = size
        mode = workers or self._workers.mode
        chosen = self._choose_engine(model, size, memory_limit, mode)
        if chosen.engine == "spark":
            return chosen
        return replace(
            chosen, worker_mode=self._choose_worker_mode(model, size, mode, only_new=only_new)
        )

    def _choose_worker_mode(self, model: Model, size: int, mode: str, *, only_new: bool) -> str:
        """Choose the worker mode: by partition if possible, and if requested or if it is large."""
        if mode in {"off", "dag"} or (mode == "auto" and size <= self._settings.small_bytes):
            return ""
        if mode == "model":
            return mode
        by_parts = not only_new and _is_partitionable(model)
        return "partition" if by_parts else "model" if mode == "partition" else ""

    def _choose_engine(
        self, model: Model, size: int, memory_limit: int | None, mode: str
    ) -> EngineChoice:
        setting = self._settings.engine
        if model.engine == "polars":
            return EngineChoice("polars", "a Python model", size)
        if not model.is_sql:
            if setting == "duckdb":
                raise BadInput(
                    f"{model.table} is a Python model, which only Spark can compute.",
                    "Set transform.engine = auto, and Spark computes it.",
                )
            return EngineChoice("spark", "a Python model", size)
        if setting != "auto":
            return EngineChoice(setting, "as set", size)
        is_requested = mode in {"dag", "model", "partition"}
        if memory_limit is not None and size >= memory_limit and not is_requested:
            return EngineChoice(
                "spark", f"{_format_bytes(memory_limit)} exceeded DuckDB's memory before", size
            )
        if size > self._settings.small_bytes and not is_requested:
            in_parts = mode == "auto" and self._is_local and _is_partitionable(model)
            if not in_parts:
                return EngineChoice("spark", f"{_format_bytes(size)} to read", size)
        difference = self._find_difference(model)
        if difference is not None:
            return EngineChoice("spark", f"{difference} may differ on DuckDB", size)
        return EngineChoice("duckdb", f"{_format_bytes(size)} to read", size)

    def _count_new_bytes(self, model: Model, source_changes: Sequence[SourceChange]) -> int:
        """Sum the bytes of the sources' new files, and of the target if rows are merged into it."""
        start = {change.table: change.start for change in source_changes if not change.pending}
        size = sum(self._count_added_bytes(source, start.get(source)) for source in model.sources)
        compares = model.contract.write is not WriteMode.APPEND
        return size + (self._count_total_bytes(model.table) if compares else 0)

    def _count_added_bytes(self, table: str, start: int | None) -> int:
        """Sum the bytes added after a snapshot; None means that this run adds them."""
        if start is None or table not in self._tables:
            return self._growth.get(table, 0)
        state, head = self._tables[table]
        between = state.between(start, head)
        if between is None:
            return self._count_total_bytes(table)
        return sum(snapshot.count("added-files-size") for snapshot in between)

    def _count_total_bytes(self, table: str) -> int:
        growth = self._growth.get(table, 0)
        if table not in self._tables:
            return growth
        state, head = self._tables[table]
        return growth + (state.snapshot(head).count("total-files-size") if head is not None else 0)

    def _find_difference(self, model: Model) -> str | None:
        from thermocline.transform import engine_parity

        columns = {
            source: {column.name: str(column.type) for column in self._source_columns(source)}
            for source in model.sources
        }
        return engine_parity.find_difference(
            model.query(), columns
        ) or engine_parity.find_delete_difference(model.contract)

    def _source_columns(self, source: str) -> Sequence[Column]:
        """Return a source's columns; a model's table gets those of its contract before the step."""
        if source in self._models:
            return self._models[source].contract.table_columns
        return shape_of(self._tables[source][0]).columns if source in self._tables else ()


def _is_partitionable(model: Model) -> bool:
    """Return whether a model's partitions can be computed one by one."""
    from thermocline.transform.target_parts import find_partition_blocker

    return find_partition_blocker(model) is None


def _format_bytes(size: int) -> str:
    for unit, of in (("GB", 10**9), ("MB", 10**6)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size / 1000:.0f} kB"
