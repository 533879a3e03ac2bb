"""One command of dbt on the lake: prepare, let dbt work, land what it made, publish all at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.check.gate import raise_if_failed
from thermocline.check.tables import check_tables
from thermocline.dbt import invoke, workshop
from thermocline.dbt.invoke import Dbt, Outcome
from thermocline.dbt.landing import Landing, Pins
from thermocline.dbt.report import Landed, Report, Tested
from thermocline.dbt.workshop import DATABASE, Workshop, relation
from thermocline.errors import BadInput, CheckFailed, NotFound, Permanent
from thermocline.lake.faults import crash_point
from thermocline.lake.metadata import MAIN
from thermocline.lake.names import env_branch, new_run_id
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.api import CheckReport, Lakehouse
    from thermocline.dbt.graph import Graph, Node

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
class Order:
    """What is asked of dbt. `arguments` are dbt's own; `schema` is the layer of its tables."""

    command: str
    project: Path
    arguments: tuple[str, ...] = ()
    schema: str | None = None
    env: str | None = None
    quiet: bool = False


def run(lakehouse: Lakehouse, order: Order, *, progress: Progress = SILENT) -> Report:
    """Run a dbt project on the lake. All its tables are published at once, or none of them."""
    began = time.monotonic()
    if order.command not in COMMANDS:
        raise BadInput(
            f"thermo does not run dbt {order.command}.", f"It runs {', '.join(COMMANDS)}."
        )
    name = _project_name(order.project)
    given = invoke.asked(order.command, order.arguments, order.project)
    run_id = new_run_id()
    target = str(given.get("target") or "thermocline")
    with workshop.opened(lakehouse.settings, run_id, order.schema or name, target) as shop:
        shop.write_profile()
        with closing(Dbt(order.project, shop.folder, target, given, quiet=order.quiet)) as dbt:
            asked = _Run(lakehouse, order, shop, dbt, given, run_id, progress)
            try:
                return asked.execute(began)
            finally:
                asked.draft.release()


class _Run:
    """One run on its way."""

    def __init__(
        self,
        lakehouse: Lakehouse,
        order: Order,
        shop: Workshop,
        dbt: Dbt,
        given: dict[str, Any],
        run_id: str,
        progress: Progress,
    ) -> None:
        self.lakehouse = lakehouse
        self.order = order
        self.shop = shop
        self.dbt = dbt
        self.full_refresh = bool(given.get("full_refresh"))
        self.progress = progress
        self.draft = lakehouse.lake.draft(run_id, env_branch(order.env) if order.env else MAIN)

    def execute(self, began: float) -> Report:
        graph = self.dbt.parse()
        kinds = COMMANDS[self.order.command]
        chosen = [graph.nodes[i] for i in self.dbt.selected() if i in graph.nodes]
        selected = [node.id for node in chosen if node.kind in kinds]
        relations = graph.relations()
        databases = sorted({node.relation[0] for node in relations} - {DATABASE, ""})
        self.shop.write_profile(databases)
        writing = [node for node in chosen if node.kind in kinds and node.stored]
        self._refuse_clashes(writing)
        pins = Pins.take(self.lakehouse.lake, {node.table for node in relations}, self.draft.into)
        live = graph.live_views(selected)
        seeds = graph.seeds_read_as_sources([*selected, *(node.id for node in live)])
        self._refuse_missing(graph, selected, pins, [node.id for node in live])
        self._furnish(relations, pins, writing, databases)
        if seeds:  # dbt itself knows no order between a source and the seed that fills it
            self.dbt.make([node.path for node in seeds], command="seed")
        if live:
            self.dbt.make([node.path for node in live])
        crash_point("dbt.prepared")
        passed, outcomes = self.dbt.run(self.order.command, self.order.arguments)
        if not passed:
            raise _refused(self.order.command, graph, outcomes)
        crash_point("dbt.ran")
        tables, checks = self._land(graph, outcomes, pins, [node.id for node in live], databases)
        published = self.draft.publish() if self.draft.tables else None
        return Report(
            run=self.draft.run,
            command=self.order.command,
            tables=tuple(tables),
            tests=tuple(_tested(graph, each) for each in outcomes if _is_test(graph, each)),
            checks=tuple(checks),
            published=published,
            seconds=time.monotonic() - began,
        )

    def _refuse_clashes(self, writing: Sequence[Node]) -> None:
        """Every table has one writer: a model or source of the lakehouse, or one node of dbt."""
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
        self, graph: Graph, selected: Sequence[str], pins: Pins, live: Collection[str]
    ) -> None:
        """Sources that the selection reads must be in the lake, or be seeds of the selection."""
        read = {node.id: node for i in (*selected, *live) for node in graph.reads(i)}
        for node in read.values():
            if node.kind != "source" or node.external or node.table in pins.states:
                continue
            writer = graph.writer_of(node)
            if writer is not None and writer.kind == "seed" and writer.id in selected:
                continue
            next_step = "`thermo tables` lists what it has; a source's schema is the lake's layer."
            if writer is not None:
                next_step = f"{writer.id} of this project makes it: select {writer.name} first."
            raise NotFound(
                f"The source {node.path} is {node.table}, which the lake does not have.", next_step
            )

    def _furnish(
        self,
        relations: Sequence[Node],
        pins: Pins,
        writing: Sequence[Node],
        databases: Sequence[str],
    ) -> None:
        """Put the lake's tables into dbt's database: as views, or copied where dbt changes them."""
        made = {node.relation for node in relations if node.kind != "source"}
        changing = {node.id for node in writing if node.stateful}
        anew = {n.id for n in writing if n.kind == "seed" or (n.stateful and self._rebuilds(n))}
        with self.shop.connect(databases) as connection:
            for node in relations:
                if node.table not in pins.states or node.external or node.id in anew:
                    continue
                if node.kind == "source" and node.relation in made:
                    continue  # the node that makes it has its place
                schema = relation(node.relation[:2])
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                kind = "TABLE" if node.id in changing else "VIEW"
                connection.execute(
                    f"CREATE OR REPLACE {kind} {relation(node.relation)} AS "
                    f"{pins.rows(connection, node.table)}"
                )

    def _rebuilds(self, node: Node) -> bool:
        return node.rebuilt(self.full_refresh)

    def _land(
        self,
        graph: Graph,
        outcomes: Sequence[Outcome],
        pins: Pins,
        live: Collection[str],
        databases: Sequence[str],
    ) -> tuple[list[Landed], list[CheckReport]]:
        made = [graph.nodes[each.id] for each in outcomes if each.id in graph.nodes]
        # Seeds first: what reads one as a source is made from what has just landed.
        stored = sorted((n for n in made if n.stored), key=lambda node: node.kind != "seed")
        landed = []
        with self.shop.connect(databases) as connection:
            contracts = self.lakehouse.contracts
            landing = Landing(self.draft, connection, graph, pins, contracts, live)
            for node in stored:
                landing.shape(node, rebuild=self._rebuilds(node))
            for node in stored:
                self.progress.step(f"land {node.table}")
                landed.append(landing.land(node))
                self.progress.done(_told(landed[-1]))
        checks = check_tables(
            self.lakehouse.lake,
            [landing.contracts[each.table] for each in landed if each.changed],
            landing.heads,
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


def _is_test(graph: Graph, outcome: Outcome) -> bool:
    return outcome.id in graph.nodes and graph.nodes[outcome.id].kind in _TESTS


def _tested(graph: Graph, outcome: Outcome) -> Tested:
    on = tuple(sorted({node.table for node in graph.reads(outcome.id)}))
    return Tested(graph.nodes[outcome.id].name, outcome.status, outcome.failures, on)


def _told(landed: Landed) -> str:
    if not landed.changed:
        return "unchanged"
    return f"+{landed.added:,} −{landed.removed:,} rows"


def _refused(command: str, graph: Graph, outcomes: Sequence[Outcome]) -> Permanent:
    """The error for a run in which nodes failed: a failed test is a check that does not hold."""
    failed = [each for each in outcomes if each.status in {"error", "fail", "runtime error"}]
    lines = [f"{each.id}: {each.message or each.status}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"and {len(failed) - _SHOWN} more")
    only_tests = all(_is_test(graph, each) and each.status == "fail" for each in failed)
    kind = CheckFailed if failed and only_tests else Permanent
    return kind(
        "\n".join([f"dbt {command} failed; nothing was published", *lines]),
        "Mend the project or the data, and run again.",
        nodes=[{"node": each.id, "status": each.status, "message": each.message,
                "failures": each.failures} for each in failed],
    )  # fmt: skip
