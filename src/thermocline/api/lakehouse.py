"""An opened project and its lake: the Python API of every command."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from thermocline import config, telemetry
from thermocline.api import environments, ingestion
from thermocline.api.environments import PublishReport
from thermocline.api.file_errors import raise_missing_files, reports_missing_files
from thermocline.api.ingestion import IngestReport
from thermocline.api.table import RollbackReport, Table, TableInfo, summarize_table
from thermocline.contract import Contract, load_contracts
from thermocline.errors import BadInput, NotFound
from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.companions import TOMBSTONES, is_companion, load_unit
from thermocline.lake.metadata import MAIN
from thermocline.lake.naming import env_branch, new_run_id, validate_table_name
from thermocline.lake.time_travel import Moment
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api.doctor import Finding
    from thermocline.api.leftovers import CleanReport
    from thermocline.api.maintenance import Maintenance
    from thermocline.api.query import Result
    from thermocline.check.gate import CheckReport
    from thermocline.config import Settings
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.ingest.stream import PollResult
    from thermocline.lake.changeset import ChangeSet
    from thermocline.recover import Relocation
    from thermocline.transform.models import Model
    from thermocline.transform.run_plan import Plan
    from thermocline.transform.runner import RunReport
    from thermocline.transform.workers.backfill import Backfill, BackfillReport
    from thermocline.transform.workers.partition_map import PartitionMap
    from thermocline.transform.workers.work_unit import WorkResult, WorkUnit


def open(path: str | os.PathLike[str] = ".", profile: str | None = None) -> Lakehouse:
    """Open the project in a folder, or in the nearest folder above it."""
    settings = config.load_settings(config.find_project(Path(path)), profile)
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    return Lakehouse(settings)


class Lakehouse:
    """An opened project. Opening reads only settings; everything else is loaded on first use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lake = Lake(settings)
        self._info_cache: dict[str, tuple[Hashable, TableInfo]] = {}

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        """The project's contracts by table. All their problems are reported together."""
        found = load_contracts(self.settings.project / "contracts")
        for source in self.sources.values():
            if source.has_messages and source.target in found:
                found[source.target] = replace(found[source.target], messages=True)
        return found

    @cached_property
    def models(self) -> dict[str, Model]:
        """The project's models by table."""
        from thermocline.transform.models import load_models

        return load_models(self.settings.project / "models", self.contracts)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The project's sources by name."""
        from thermocline.ingest.source import load_sources

        return load_sources(self.settings.project / "sources")

    @reports_missing_files
    def tables(self, *, companions: bool = False) -> list[TableInfo]:
        """Return a summary of every table; tables that only serve another one are left out."""
        found = self.lake.summarize(summarize_table, self._info_cache)
        return [i for n, i in found.items() if companions or not n.endswith(TOMBSTONES)]

    def table(self, name: str) -> Table:
        """Return one table; raise NotFound when it does not exist."""
        contracts = self.settings.project / "contracts"
        layer, _, bare = validate_table_name(name).partition(".")
        path = contracts / layer / f"{bare}.odcs.yaml"
        contract = self.contracts.get(name) if path.exists() else None
        return Table(self.lake, name, contract)

    @reports_missing_files
    def query(self, sql: str, at: Moment | None = None, engine: str = "auto") -> Result:
        """Execute one SELECT in DuckDB's dialect; `at` is a time, snapshot, tag or branch."""
        from thermocline.api.query import execute_query

        return execute_query(self.lake, sql, at=at, engine=engine)

    @reports_missing_files
    def plan(
        self,
        select: Sequence[str] = (),
        *,
        full_refresh: bool = False,
        env: str | None = None,
        workers: str | None = None,
    ) -> Plan:
        """Return what a run would do and why, without doing it."""
        from thermocline.transform import run_plan

        return run_plan.plan(
            self.lake,
            self.models,
            select=select,
            full_refresh=full_refresh,
            into=env_branch(env) if env else MAIN,
            workers=workers,
        )

    @reports_missing_files
    def run(
        self,
        select: Sequence[str] = (),
        *,
        full_refresh: bool = False,
        env: str | None = None,
        workers: str | None = None,
        progress: Progress = SILENT,
    ) -> RunReport:
        """Update stale tables on a branch, check them there, and publish all at once.

        `workers` selects how DuckDB computes the models it can compute: dag, model or partition.
        """
        from thermocline.transform import runner

        plan = self.plan(select, full_refresh=full_refresh, env=env, workers=workers)
        return runner.run(self.lake, self.models, plan, run_id=new_run_id(), progress=progress)

    @reports_missing_files
    def backfill(
        self,
        table: str,
        first: str | None = None,
        last: str | None = None,
        *,
        workers: int | None = None,
        batch: int | None = None,
        env: str | None = None,
        progress: Progress = SILENT,
    ) -> BackfillReport:
        """Recompute a table's partitions from the first to the last, and publish them.

        Called again after a crash, it resumes. Other runs of the table may continue meanwhile.
        """
        from thermocline.transform.workers import backfill

        prepared = self._prepare_backfill(table, first, last, env, progress)
        return backfill.run(prepared, batch=batch, count=workers)

    @reports_missing_files
    def hand_out(
        self,
        table: str,
        first: str | None = None,
        last: str | None = None,
        *,
        batch: int | None = None,
        env: str | None = None,
    ) -> list[WorkUnit]:
        """Start a backfill and return its pieces, for workers elsewhere (`thermo work`).

        When all pieces are done, `backfill` with the same arguments publishes them.
        """
        prepared = self._prepare_backfill(table, first, last, env, SILENT)
        with closing(prepared):
            prepared.begin()
            return prepared.hand_out(batch)

    @reports_missing_files
    def work(self, unit: WorkUnit) -> WorkResult:
        """Compute one piece of a backfill, in this process."""
        from thermocline.transform.workers.partition_worker import open_worker

        workers = self.settings.workers
        memory = workers.bytes * workers.processes
        with open_worker(self.settings, memory, workers.processes) as worker:
            return worker.compute(unit)

    @reports_missing_files
    def partitions(self, table: str) -> PartitionMap:
        """Return a table's partitions: fresh, stale, or part of an unfinished backfill."""
        from thermocline.transform.workers.partition_map import map_partitions

        return map_partitions(self.lake, self.models, self._require_model(table))

    def _prepare_backfill(
        self, table: str, first: str | None, last: str | None, env: str | None, progress: Progress
    ) -> Backfill:
        from thermocline.transform.spark.executor import SparkExecutor
        from thermocline.transform.workers.backfill import Backfill, parse_range

        model = self._require_model(table)
        return Backfill(
            self.lake,
            model,
            parse_range(model, first, last),
            into=env_branch(env) if env else MAIN,
            fallback=lambda: SparkExecutor(self.lake),
            progress=progress,
        )

    def _require_model(self, table: str) -> Model:
        if table not in self.models:
            raise NotFound(
                f"There is no model of {validate_table_name(table)}.",
                f"There are: {', '.join(sorted(self.models)) or 'none, see models/'}.",
            )
        return self.models[table]

    @reports_missing_files
    def ingest(
        self,
        names: Sequence[str] = (),
        *,
        accept_loss: bool = False,
        progress: Progress = SILENT,
        stop: Event | None = None,
    ) -> IngestReport:
        """Ingest what is new at the sources, each record exactly once, and return.

        `accept_loss` continues where a source has dropped data that was not read yet. When `stop`
        is set, the current batch is the last one.
        """
        run_id = new_run_id()
        targets = []
        for source in self._select_sources(names):
            if stop is not None and stop.is_set():
                break
            progress.step(f"ingest {source.target}")
            target = ingestion.ingest(
                self.lake,
                source,
                self._require_contract(source.target),
                run_id,
                accept_loss,
                progress,
                stop,
            )
            progress.done(str(target))
            targets.append(target)
        return IngestReport(run_id, tuple(targets))

    def stream(
        self,
        names: Sequence[str] = (),
        *,
        then: Sequence[str] = (),
        every: float = 2.0,
        limits: BatchLimits | None = None,
        accept_loss: bool = False,
        stop: Event | None = None,
    ) -> Iterator[PollResult]:
        """Ingest continuously from the sources until `stop` is set.

        Yields a result for every poll of a source. After each batch the models that `then` selects
        are updated. Killed at any moment, the next call resumes where this one stopped.
        """
        from thermocline.ingest.stream import open_ingester, poll_sources

        follow = None if not then else lambda: [step.table for step in self.run(then).steps]
        with ExitStack() as opened:
            ingesters = []
            for source in self._select_sources(names):
                contract = self._require_contract(source.target)
                ingester = open_ingester(
                    self.lake, source, contract, limits=limits, accept_loss=accept_loss
                )
                ingesters.append(opened.enter_context(closing(ingester)))
            with raise_missing_files(self.lake):
                yield from poll_sources(
                    self.lake, ingesters, every=every, stop=stop or Event(), then=follow
                )

    @reports_missing_files
    def check(self, select: Sequence[str] = (), *, at: Moment | None = None) -> list[CheckReport]:
        """Check tables against the rules of their contracts."""
        from thermocline.check.table_checks import check_tables, find_tables_read
        from thermocline.lake.time_travel import resolve_snapshot

        chosen = [self.contracts[name] for name in self._select_tables(select)]
        snapshots = {
            table: resolve_snapshot(state, at)
            for table, state in self.lake.states(find_tables_read(chosen)).items()
            if state.head() is not None and (at is None or at in state.refs)
        }
        return check_tables(self.lake, chosen, snapshots, carry_forward=False)

    @reports_missing_files
    def diff(self, env: str) -> list[ChangeSet]:
        """Return the differences between an environment's tables and main."""
        return environments.diff(self.lake, env)

    @reports_missing_files
    def publish(self, env: str) -> PublishReport:
        """Publish an environment to main, all of its tables at once.

        Refused when main has moved since: changes that others published would be lost.
        """
        return environments.publish(self.lake, env)

    def drop_env(self, env: str) -> list[str]:
        """Drop an environment in all tables and return the tables that had it."""
        return environments.drop(self.lake, env)

    def clean(
        self, runs: Sequence[str] = (), *, plan: bool = False, force: bool = False
    ) -> CleanReport:
        """Drop the branches that failed and killed runs left; `plan` only reports them.

        Runs at work are never dropped; resumable backfills only when they are named.
        """
        from thermocline.api import leftovers

        return leftovers.clean(self.lake, runs, plan=plan, force=force)

    @reports_missing_files
    def rollback(self, run: str) -> RollbackReport:
        """Undo what a run published, in all tables at once, unless a later commit builds on it."""
        changes: list[TableChange] = []
        done: dict[str, tuple[int | None, int]] = {}
        for table, state in self.lake.states().items():
            head = state.head()
            made = [s for s in state.ancestry(head) if s.summary.get(bookmarks.RUN) == run]
            if not made or is_companion(table):
                continue
            parent = made[-1].parent
            if made[0].id != head or parent is None:
                raise BadInput(
                    f"{table} was changed after run {run}.",
                    f"Roll back what came after it first: thermo history {table}.",
                )
            unit = load_unit(self.lake, table)
            changes += unit.rollback(parent)
            done |= unit.plan_moves(parent)
        if not changes:
            raise NotFound(f"No table has a commit of run {run}.", "See `thermo history TABLE`.")
        self.lake.commit(changes)
        return RollbackReport(done)

    @reports_missing_files
    def quarantine(self, table: str | None = None) -> list[Any]:
        """Return quarantined rows of a table, source or all tables that have not been replayed."""
        from thermocline.ingest import quarantine

        if table is not None and "." not in table and table in self.sources:
            table = self.sources[table].target
        return list(quarantine.list_rows(self.lake, table))

    @reports_missing_files
    def replay(
        self, source: str, file: Path | None = None, ids: Sequence[str] | None = None
    ) -> Any:
        """Ingest quarantined rows of a source or table again, corrected or unchanged."""
        from thermocline.ingest import quarantine

        found, contract = self._find_quarantine(source)
        return quarantine.replay(self.lake, found, contract, file=file, ids=ids, run=new_run_id())

    def export_quarantine(
        self, source: str, ids: Sequence[str] | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """Return quarantined rows of a source or table in the form that `replay` accepts.

        The second value counts entries left out: whole files, which cannot be corrected here.
        """
        from thermocline.ingest import quarantine

        return quarantine.export(self.lake, *self._find_quarantine(source), ids)

    def _find_quarantine(self, name: str) -> tuple[Source, Contract]:
        """Return a source by its name, its table or the quarantine table of that table."""
        found = self.sources.get(name) or next(
            (s for s in self.sources.values() if name in {s.target, s.quarantine}), None
        )
        if found is None:
            raise NotFound(f"There is no source {name}.", f"There are: {', '.join(self.sources)}.")
        return found, self._require_contract(found.target)

    def doctor(self, *, fix: bool = False, progress: Progress = SILENT) -> list[Finding]:
        """Check that everything is in place, and find what dead runs left behind.

        Changes nothing, unless `fix` asks to repair what can be repaired without losing anything.
        """
        from thermocline.api import doctor

        return [*(doctor.fix(self) if fix else ()), *doctor.diagnose(self, progress)]

    def relocate(
        self,
        *,
        old: str | None = None,
        shared: bool = False,
        plan: bool = False,
        progress: Progress = SILENT,
    ) -> Relocation:
        """Move all tables to the project's warehouse, after the project was copied or moved.

        The original files are never changed, and no table is switched before every snapshot has
        been compared. `plan` only reports, `old` names the former warehouse when it cannot be
        found, and `shared` allows changing a catalog that other projects may use.
        """
        from thermocline.recover import relocate

        return relocate(self.settings, old=old, shared=shared, plan=plan, progress=progress)

    @cached_property
    def maintain(self) -> Maintenance:
        """Maintenance of the tables: its plan, its application and its history."""
        from thermocline.api.maintenance import Maintenance

        return Maintenance(self.lake)

    def orphans(self, table: str) -> list[tuple[str, int]]:
        """Return the files of a table that no snapshot needs, with their sizes."""
        from thermocline.lake.orphans import find_orphans

        return find_orphans(self.lake.iceberg(table))

    def close(self) -> None:
        """Close the engines and the catalog."""
        self.lake.close()

    def _select_sources(self, names: Sequence[str]) -> list[Source]:
        unknown = sorted(set(names) - set(self.sources))
        if unknown:
            raise NotFound(
                f"There is no source {', '.join(unknown)}.",
                f"There are: {', '.join(sorted(self.sources)) or 'none, see sources/'}.",
            )
        return [self.sources[name] for name in dict.fromkeys(names) or self.sources]

    def _require_contract(self, table: str) -> Contract:
        if table not in self.contracts:
            path = f"contracts/{table.replace('.', '/')}.odcs.yaml"
            raise NotFound(f"{table} has no contract.", f"Write {path}.")
        return self.contracts[table]

    def _select_tables(self, select: Sequence[str]) -> list[str]:
        there = set(self.lake.tables())
        if not select:
            return sorted(there & set(self.contracts))
        direct = [name for name in select if name in self.contracts]
        rest = [name for name in select if name not in self.contracts]
        if rest:
            from thermocline.transform import model_graph

            direct += sorted(model_graph.select(self.models, rest))
        missing = [name for name in direct if name not in there]
        if missing:
            raise NotFound(
                f"There is no table {', '.join(missing)} yet.", "Run `thermo run` first."
            )
        return direct

    def __repr__(self) -> str:
        return f"<Lakehouse {self.settings.name} in {self.settings.project}>"
