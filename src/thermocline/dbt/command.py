"""Run one dbt command on the lake: prepare, let dbt work, write its tables, publish all at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.check.gate import raise_if_failed
from thermocline.check.table_checks import check_tables
from thermocline.dbt import invoke
from thermocline.dbt.invoke import DbtProject, NodeResult
from thermocline.dbt.report import DbtReport, DbtTestResult, LandedTable
from thermocline.dbt.table_writer import PinnedTables, TableWriter
from thermocline.dbt.workspace import DATABASE, Workspace, open_workspace, quote_relation
from thermocline.errors import BadInput, CheckFailed, NotFound, Permanent
from thermocline.lake.crash_points import crash_point
from thermocline.lake.metadata import MAIN
from thermocline.lake.naming import env_branch, new_run_id
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api import CheckReport, Lakehouse
    from thermocline.dbt.graph import DbtGraph, DbtNode

# command → the kinds of nodes that it runs
COMMANDS: dict[str, frozenset[str]] = {
    "build": frozenset({"model", "seed", "snapshot", "test", "unit_test"}),
    "run": frozenset({"model"}),
    "seed": frozenset({"seed"}),
    "snapshot": frozenset({"snapshot"}),
    "test": frozenset({"test", "unit_test"}),
}
_TESTS = COMMANDS["test"]
_SHOWN = 10


@dataclass(frozen=True)
class DbtRequest:
    """A dbt command to run. `arguments` are dbt's own; `schema` is the layer of its tables."""

    command: str
    project: Path
    arguments: tuple[str, ...] = ()
    schema: str | None = None
    env: str | None = None
    quiet: bool = False


def run(lakehouse: Lakehouse, request: DbtRequest, *, progress: Progress = SILENT) -> DbtReport:
    """Run a dbt command on the lake. All its tables are published at once, or none of them."""
    started = time.monotonic()
    if request.command not in COMMANDS:
        raise BadInput(
            f"thermo does not run dbt {request.command}.", f"It runs {', '.join(COMMANDS)}."
        )
    name = _project_name(request.project)
    options = invoke.parse_arguments(request.command, request.arguments, request.project)
    run_id = new_run_id()
    target = str(options.get("target") or "thermocline")
    schema = request.schema or name
    with open_workspace(lakehouse.settings, run_id, schema, target) as workspace:
        workspace.write_profile()
        quiet = request.quiet
        project = DbtProject(request.project, workspace.folder, target, options, quiet=quiet)
        with closing(project):
            dbt_run = _DbtRun(lakehouse, request, workspace, project, options, run_id, progress)
            try:
                return dbt_run.execute(started)
            finally:
                dbt_run.draft.release()


class _DbtRun:
    """State of one run."""

    def __init__(
        self,
        lakehouse: Lakehouse,
        request: DbtRequest,
        workspace: Workspace,
        dbt: DbtProject,
        options: dict[str, Any],
        run_id: str,
        progress: Progress,
    ) -> None:
        self.lakehouse = lakehouse
        self.request = request
        self.workspace = workspace
        self.dbt = dbt
        self.full_refresh = bool(options.get("full_refresh"))
        self.progress = progress
        self.draft = lakehouse.lake.draft(run_id, env_branch(request.env) if request.env else MAIN)

    def execute(self, started: float) -> DbtReport:
        graph = self.dbt.parse()
        kinds = COMMANDS[self.request.command]
        chosen = [graph.nodes[i] for i in self.dbt.select_nodes() if i in graph.nodes]
        selected = [node.id for node in chosen if node.kind in kinds]
        relations = graph.relations()
        databases = sorted({node.relation[0] for node in relations} - {DATABASE, ""})
        self.workspace.write_profile(databases)
        writing = [node for node in chosen if node.kind in kinds and node.has_relation]
        self._refuse_clashes(writing)
        names = {node.table for node in relations}
        pins = PinnedTables.load(self.lakehouse.lake, names, self.draft.into)
        upstream = graph.upstream_views(selected)
        seeds = graph.seeds_read_as_sources([*selected, *(node.id for node in upstream)])
        self._refuse_missing(graph, selected, pins, [node.id for node in upstream])
        self._create_relations(relations, pins, writing, databases)
        if seeds:  # dbt does not order a source after the seed that fills it
            self.dbt.make([node.path for node in seeds], command="seed")
        if upstream:
            self.dbt.make([node.path for node in upstream])
        crash_point("dbt.prepared")
        passed, results = self.dbt.run(self.request.command, self.request.arguments)
        if not passed:
            raise _run_failed(self.request.command, graph, results)
        crash_point("dbt.ran")
        tables, checks = self._land(graph, results, pins, [node.id for node in upstream], databases)
        tests = [each for each in results if _is_test(graph, each)]
        published = self.draft.publish() if self.draft.tables else None
        return DbtReport(
            run=self.draft.run,
            command=self.request.command,
            tables=tuple(tables),
            tests=tuple(_build_test_result(graph, each) for each in tests),
            checks=tuple(checks),
            published=published,
            seconds=time.monotonic() - started,
        )

    def _refuse_clashes(self, writing: Sequence[DbtNode]) -> None:
        """Refuse a table with two writers: each is a lakehouse model, a source or one dbt node."""
        writers = {
            source.target: f"sources/{name}" for name, source in self.lakehouse.sources.items()
        }
        writers |= {
            table: f"models/{model.path.name}" for table, model in self.lakehouse.models.items()
        }
        for node in writing:
            other = writers.setdefault(node.table, node.id)
            if other != node.id:
                raise BadInput(
                    f"{node.table} is written by {other}, and by {node.id} too.",
                    "Give the one in the dbt project another schema or alias.",
                )

    def _refuse_missing(
        self,
        graph: DbtGraph,
        selected: Sequence[str],
        pins: PinnedTables,
        upstream: Collection[str],
    ) -> None:
        """Refuse a selection whose sources are neither in the lake nor among the selected seeds."""
        read = {node.id: node for i in (*selected, *upstream) for node in graph.reads(i)}
        for node in read.values():
            if node.kind != "source" or node.is_external or node.table in pins.states:
                continue
            writer = graph.find_writer(node)
            if writer is not None and writer.kind == "seed" and writer.id in selected:
                continue
            next_step = "`thermo tables` lists what it has; a source's schema is the lake's layer."
            if writer is not None:
                next_step = f"{writer.id} of this project creates it: select {writer.name} first."
            raise NotFound(
                f"The source {node.path} is {node.table}, which the lake does not have.", next_step
            )

    def _create_relations(
        self,
        relations: Sequence[DbtNode],
        pins: PinnedTables,
        writing: Sequence[DbtNode],
        databases: Sequence[str],
    ) -> None:
        """Create the lake's tables in dbt's database: views, or copies where dbt changes them."""
        created = {node.relation for node in relations if node.kind != "source"}
        stateful = [node for node in writing if node.is_stateful]
        changing = {node.id for node in stateful}
        rebuilt = {node.id for node in writing if node.kind == "seed"}
        rebuilt |= {node.id for node in stateful if self._is_rebuilt(node)}
        with self.workspace.connect(databases) as connection:
            for node in relations:
                if node.table not in pins.states or node.is_external or node.id in rebuilt:
                    continue
                if node.kind == "source" and node.relation in created:
                    continue  # the node that creates it uses this name
                schema = quote_relation(node.relation[:2])
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                kind = "TABLE" if node.id in changing else "VIEW"
                connection.execute(
                    f"CREATE OR REPLACE {kind} {quote_relation(node.relation)} AS "
                    f"{pins.rows(connection, node.table)}"
                )

    def _is_rebuilt(self, node: DbtNode) -> bool:
        return node.is_rebuilt(self.full_refresh)

    def _land(
        self,
        graph: DbtGraph,
        results: Sequence[NodeResult],
        pins: PinnedTables,
        upstream: Collection[str],
        databases: Sequence[str],
    ) -> tuple[list[LandedTable], list[CheckReport]]:
        made = [graph.nodes[each.id] for each in results if each.id in graph.nodes]
        # Seeds first: a node that reads one as a source must read the rows that just landed.
        stored = sorted((n for n in made if n.has_relation), key=lambda node: node.kind != "seed")
        landed = []
        with self.workspace.connect(databases) as connection:
            contracts = self.lakehouse.contracts
            landing = TableWriter(self.draft, connection, graph, pins, contracts, upstream)
            for node in stored:
                landing.resolve_contract(node, rebuild=self._is_rebuilt(node))
            for node in stored:
                self.progress.step(f"land {node.table}")
                landed.append(landing.land(node))
                self.progress.done(_describe_landed(landed[-1]))
        checks = check_tables(
            self.lakehouse.lake,
            [landing.contracts[each.table] for each in landed if each.changed],
            landing.snapshots,
        )
        raise_if_failed(checks, self.draft.branch)
        return landed, checks


def _project_name(project: Path) -> str:
    import yaml

    path = project / "dbt_project.yml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        return str(found["name"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise BadInput(
            f"{project} holds no dbt project: {path.name} cannot be read ({type(error).__name__}).",
            "Name its folder with --project-dir.",
        ) from error


def _is_test(graph: DbtGraph, result: NodeResult) -> bool:
    return result.id in graph.nodes and graph.nodes[result.id].kind in _TESTS


def _build_test_result(graph: DbtGraph, result: NodeResult) -> DbtTestResult:
    on = tuple(sorted({node.table for node in graph.reads(result.id)}))
    return DbtTestResult(graph.nodes[result.id].name, result.status, result.failures, on)


def _describe_landed(landed: LandedTable) -> str:
    if not landed.changed:
        return "unchanged"
    return f"+{landed.added:,} −{landed.removed:,} rows"


def _run_failed(command: str, graph: DbtGraph, results: Sequence[NodeResult]) -> Permanent:
    """Return the error for failed nodes: CheckFailed when only tests failed."""
    failed = [each for each in results if each.status in {"error", "fail", "runtime error"}]
    lines = [f"{each.id}: {each.message or each.status}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"and {len(failed) - _SHOWN} more")
    only_tests = all(_is_test(graph, each) and each.status == "fail" for each in failed)
    kind = CheckFailed if failed and only_tests else Permanent
    return kind(
        "\n".join([f"dbt {command} failed; nothing was published", *lines]),
        "Fix the project or the data, and run again.",
        nodes=[{"node": each.id, "status": each.status, "message": each.message,
                "failures": each.failures} for each in failed],
    )  # fmt: skip
