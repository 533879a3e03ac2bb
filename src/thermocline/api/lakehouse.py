"""A project and its lake, opened: everything that can be done with it."""

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
from thermocline.api.ingestion import IngestReport
from thermocline.api.missing import missing_named, names_missing
from thermocline.api.table import Rollback, Table, TableInfo, info
from thermocline.contract import Contract, load_contracts
from thermocline.errors import BadInput, NotFound
from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.atomic import TableChange
from thermocline.lake.companions import TOMBSTONES, is_companion, load_unit
from thermocline.lake.metadata import MAIN
from thermocline.lake.moments import Moment
from thermocline.lake.names import env_branch, new_run_id, table_name
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api.answer import Result
    from thermocline.api.health import Finding
    from thermocline.api.leftovers import CleanReport
    from thermocline.check.gate import Report
    from thermocline.config import Settings
    from thermocline.ingest.source import Limits, Source
    from thermocline.ingest.stream import Beat
    from thermocline.lake.changeset import ChangeSet
    from thermocline.recover import Relocation
    from thermocline.transform.models import Model
    from thermocline.transform.plan import Plan
    from thermocline.transform.runner import RunReport
    from thermocline.transform.workers.backfill import Backfill, BackfillReport
    from thermocline.transform.workers.partition_map import PartitionMap
    from thermocline.transform.workers.piece import Done, Piece


def open(path: str | os.PathLike[str] = ".", profile: str | None = None) -> Lakehouse:
    """Open the project in a folder, or in one of the folders above it."""
    settings = config.load(config.find_project(Path(path)), profile)
    telemetry.hide(secret.reveal() for secret in settings.secrets())
    return Lakehouse(settings)


class Lakehouse:
    """An opened project. Opening reads only settings; the rest is loaded when asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lake = Lake(settings)
        self._infos: dict[str, tuple[Hashable, TableInfo]] = {}

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        """The project's contracts by table. All problems in them are reported together."""
        found = load_contracts(self.settings.project / "contracts")
        for source in self.sources.values():
            if source.messages and source.target in found:
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

    @names_missing
    def tables(self, *, companions: bool = False) -> list[TableInfo]:
        """All tables, each in a line; those that only serve another are left out."""
        found = self.lake.summarize(info, self._infos)
        return [i for n, i in found.items() if companions or not n.endswith(TOMBSTONES)]

    def table(self, name: str) -> Table:
        """One table."""
        contracts = self.settings.project / "contracts"
        layer, _, bare = table_name(name).partition(".")
        path = contracts / layer / f"{bare}.odcs.yaml"
        contract = self.contracts.get(name) if path.exists() else None
        return Table(self.lake, name, contract)

    @names_missing
    def query(self, sql: str, at: Moment | None = None, engine: str = "auto") -> Result:
        """Answer one SELECT in DuckDB's dialect; `at` is a time, snapshot, tag or branch."""
        from thermocline.api.answer import answer

        return answer(self.lake, sql, at=at, engine=engine)

    @names_missing
    def plan(
        self,
        select: Sequence[str] = (),
        *,
        full_refresh: bool = False,
        env: str | None = None,
        workers: str | None = None,
    ) -> Plan:
        """What a run would do and why, without doing it."""
        from thermocline.transform import plan

        return plan.plan(
            self.lake,
            self.models,
            select=select,
            full_refresh=full_refresh,
            into=env_branch(env) if env else MAIN,
            workers=workers,
        )

    @names_missing
    def run(
        self,
        select: Sequence[str] = (),
        *,
        full_refresh: bool = False,
        env: str | None = None,
        workers: str | None = None,
        progress: Progress = SILENT,
    ) -> RunReport:
        """Bring stale tables up to date on a branch, check them there, publish all at once.

        `workers` says how DuckDB computes what it may compute: dag, model or partition.
        """
        from thermocline.transform import runner

        plan = self.plan(select, full_refresh=full_refresh, env=env, workers=workers)
        return runner.run(self.lake, self.models, plan, run_id=new_run_id(), progress=progress)

    @names_missing
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
        """Compute a table's partitions anew, from the first to the last, and publish them.

        Called again after it died, it goes on where it was. Other runs of the table may go on
        meanwhile.
        """
        from thermocline.transform.workers import backfill

        begun = self._backfill(table, first, last, env, progress)
        return backfill.run(begun, batch=batch, count=workers)

    @names_missing
    def hand_out(
        self,
        table: str,
        first: str | None = None,
        last: str | None = None,
        *,
        batch: int | None = None,
        env: str | None = None,
    ) -> list[Piece]:
        """Begin a backfill and give its pieces, for workers elsewhere (`thermo work`).

        When they are done, `backfill` with the same arguments finds them so, and publishes.
        """
        begun = self._backfill(table, first, last, env, SILENT)
        with closing(begun):
            begun.begin()
            return begun.hand_out(batch)

    @names_missing
    def work(self, piece: Piece) -> Done:
        """Do one piece of a backfill, in this process."""
        from thermocline.transform.workers.opened import worker

        told = self.settings.workers
        with worker(self.settings, told.bytes * told.processes, told.processes) as hand:
            return hand.do(piece)

    @names_missing
    def partitions(self, table: str) -> PartitionMap:
        """A table's partitions: which are fresh, which are stale, and what a backfill is at."""
        from thermocline.transform.workers.partition_map import partition_map

        return partition_map(self.lake, self.models, self._model(table))

    def _backfill(
        self, table: str, first: str | None, last: str | None, env: str | None, progress: Progress
    ) -> Backfill:
        from thermocline.transform.spark.executor import SparkExecutor
        from thermocline.transform.workers.backfill import Backfill, ranged

        model = self._model(table)
        return Backfill(
            self.lake,
            model,
            ranged(model, first, last),
            into=env_branch(env) if env else MAIN,
            spare=lambda: SparkExecutor(self.lake),
            progress=progress,
        )

    def _model(self, table: str) -> Model:
        if table not in self.models:
            raise NotFound(
                f"There is no model of {table_name(table)}.",
                f"There are: {', '.join(sorted(self.models)) or 'none, see models/'}.",
            )
        return self.models[table]

    @names_missing
    def ingest(
        self,
        names: Sequence[str] = (),
        *,
        accept_loss: bool = False,
        progress: Progress = SILENT,
        stop: Event | None = None,
    ) -> IngestReport:
        """Take in what is new at the sources, each record exactly once, and stop.

        `accept_loss` goes on where a source no longer has what was not read yet. When `stop` is
        set, the batch in hand is the last one.
        """
        run_id = new_run_id()
        targets = []
        for source in self._chosen_sources(names):
            if stop is not None and stop.is_set():
                break
            progress.step(f"ingest {source.target}")
            target = ingestion.ingest(
                self.lake,
                source,
                self._contract(source.target),
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
        limits: Limits | None = None,
        accept_loss: bool = False,
        stop: Event | None = None,
    ) -> Iterator[Beat]:
        """Take in what comes at the sources, on and on, until `stop` is set.

        A beat comes for every look at a source. After each batch the models that `then` selects
        are brought up to date. Killed at any moment, the next call goes on where this one was.
        """
        from thermocline.ingest.stream import beats, intake_of

        follow = None if not then else lambda: [step.table for step in self.run(then).steps]
        with ExitStack() as opened:
            intakes = []
            for source in self._chosen_sources(names):
                contract = self._contract(source.target)
                intake = intake_of(
                    self.lake, source, contract, limits=limits, accept_loss=accept_loss
                )
                intakes.append(opened.enter_context(closing(intake)))
            with missing_named(self.lake):
                yield from beats(self.lake, intakes, every=every, stop=stop or Event(), then=follow)

    @names_missing
    def check(self, select: Sequence[str] = (), *, at: Moment | None = None) -> list[Report]:
        """Hold tables against the rules of their contracts."""
        from thermocline.check.tables import check_tables, involved
        from thermocline.lake.moments import resolve

        chosen = [self.contracts[name] for name in self._select_tables(select)]
        snapshots = {
            table: resolve(state, at)
            for table, state in self.lake.states(involved(chosen)).items()
            if state.head() is not None and (at is None or at in state.refs)
        }
        return check_tables(self.lake, chosen, snapshots, carried=False)

    @names_missing
    def diff(self, env: str) -> list[ChangeSet]:
        """How the tables of an environment differ from main."""
        return environments.diff(self.lake, env)

    @names_missing
    def publish(self, env: str) -> PublishReport:
        """Make main what an environment is, in all its tables at once.

        Main must not have moved since: what others published would be lost.
        """
        return environments.publish(self.lake, env)

    def drop_env(self, env: str) -> list[str]:
        """Forget an environment in all tables."""
        return environments.drop(self.lake, env)

    def clean(
        self, runs: Sequence[str] = (), *, plan: bool = False, force: bool = False
    ) -> CleanReport:
        """Drop the branches that failed and killed runs left, in all tables; `plan` only says.

        Runs at work are never dropped; backfills that can go on only when they are named.
        """
        from thermocline.api import leftovers

        return leftovers.clean(self.lake, runs, plan=plan, force=force)

    @names_missing
    def rollback(self, run: str) -> Rollback:
        """Undo what a run published, in all tables at once, if nothing was built on it since."""
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
            done |= unit.moves(parent)
        if not changes:
            raise NotFound(f"No table has a commit of run {run}.", "See `thermo history TABLE`.")
        self.lake.commit(changes)
        return Rollback(done)

    @names_missing
    def quarantine(self, table: str | None = None) -> list[Any]:
        """Rows of a table, or source, that were set aside and have not been replayed."""
        from thermocline.ingest import quarantine

        if table is not None and "." not in table and table in self.sources:
            table = self.sources[table].target
        return list(quarantine.rows(self.lake, table))

    @names_missing
    def replay(
        self, source: str, file: Path | None = None, ids: Sequence[str] | None = None
    ) -> Any:
        """Put quarantined rows of a source, or table, through again, mended or as they were."""
        from thermocline.ingest import quarantine

        found, contract = self._quarantined(source)
        return quarantine.replay(self.lake, found, contract, mended=file, ids=ids, run=new_run_id())

    def export_quarantine(
        self, source: str, ids: Sequence[str] | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """Give quarantined rows of a source, or table, as `replay` takes them when mended.

        Also how many were left out, because they are whole files that nobody can mend here.
        """
        from thermocline.ingest import quarantine

        return quarantine.export(self.lake, *self._quarantined(source), ids)

    def _quarantined(self, name: str) -> tuple[Source, Contract]:
        """A source by its name, or by its table or the quarantine of that."""
        found = self.sources.get(name) or next(
            (s for s in self.sources.values() if name in {s.target, s.quarantine}), None
        )
        if found is None:
            raise NotFound(f"There is no source {name}.", f"There are: {', '.join(self.sources)}.")
        return found, self._contract(found.target)

    def doctor(self, *, fix: bool = False, progress: Progress = SILENT) -> list[Finding]:
        """Whether everything is in place, and what dead runs left behind.

        Changes nothing, unless `fix` asks for what can be mended without losing anything.
        """
        from thermocline.api import health

        return [*(health.fix(self) if fix else ()), *health.examine(self, progress)]

    def relocate(
        self,
        *,
        old: str | None = None,
        shared: bool = False,
        plan: bool = False,
        progress: Progress = SILENT,
    ) -> Relocation:
        """Bring all tables to the warehouse, after the project was copied or moved.

        Nothing that lies elsewhere is changed, and nothing is switched before every snapshot was
        compared. `plan` only says what would be done, `old` names the warehouse that the tables
        were in where it cannot be seen, `shared` allows changing a catalog that others may use.
        """
        from thermocline.recover import relocate

        return relocate(self.settings, old=old, shared=shared, plan=plan, progress=progress)

    def orphans(self, table: str) -> list[tuple[str, int]]:
        """Files of a table that no snapshot needs, with their sizes."""
        from thermocline.lake.files import orphans

        return orphans(self.lake.iceberg(table))

    def close(self) -> None:
        """Close the engines."""
        self.lake.close()

    def _chosen_sources(self, names: Sequence[str]) -> list[Source]:
        unknown = sorted(set(names) - set(self.sources))
        if unknown:
            raise NotFound(
                f"There is no source {', '.join(unknown)}.",
                f"There are: {', '.join(sorted(self.sources)) or 'none, see sources/'}.",
            )
        return [self.sources[name] for name in dict.fromkeys(names) or self.sources]

    def _contract(self, table: str) -> Contract:
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
            from thermocline.transform import graph

            direct += sorted(graph.select(self.models, rest))
        missing = [name for name in direct if name not in there]
        if missing:
            raise NotFound(f"There is no table {', '.join(missing)} yet.", "Run thermo run first.")
        return direct

    def __repr__(self) -> str:
        return f"<Lakehouse {self.settings.name} in {self.settings.project}>"
