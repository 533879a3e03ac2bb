"""The commands for versions of tables: history, tag, branch, publish, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from thermocline.cli import output
from thermocline.cli.invocation import Command, Invocation, pass_invocation
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from thermocline.api import HistoryEntry


@click.command(cls=Command)
@click.argument("table")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many snapshots to print; JSON has all of them.",
)
@pass_invocation
def history(invocation: Invocation, table: str, limit: int) -> None:
    """List the snapshots of TABLE, newest first. Starts no engine."""
    entries = invocation.lakehouse().table(table).history()
    invocation.show(entries, lambda found: _render_history(found, limit))


def _render_history(entries: Sequence[HistoryEntry], limit: int) -> RenderableType:
    if not entries:
        return output.line("The table has no snapshots yet.")
    return output.table(
        ["when", "snapshot", "what", "rows", "by", "bookmark", ""],
        [
            [
                output.ago(entry.when),
                str(entry.snapshot),
                entry.operation,
                output.counts(added=entry.added, changed=entry.changed, removed=entry.removed),
                entry.by,
                entry.bookmark,
                " ".join(entry.refs),
            ]
            for entry in entries[:limit]
        ],
    )


@click.command(cls=Command)
@click.argument("table", required=False)
@click.option("--to", "to", metavar="WHEN", help="Time, snapshot or tag to roll back to.")
@click.option(
    "--run", "run_id", metavar="ID", help="Undo this run in all tables that it published."
)
@pass_invocation
def rollback(invocation: Invocation, table: str | None, to: str | None, run_id: str | None) -> None:
    """Roll back TABLE to an earlier version, or every table that a run published."""
    lakehouse = invocation.lakehouse()
    if run_id is not None and table is None and to is None:
        done = lakehouse.rollback(run=run_id)
    elif table is not None and to is not None and run_id is None:
        done = lakehouse.table(table).rollback(to)
    else:
        raise BadInput(
            "A rollback needs a table and a version, or a run.",
            "Run `thermo rollback TABLE --to WHEN` or `thermo rollback --run ID`.",
        )
    invocation.show(done, str)


@click.command(cls=Command)
@click.argument("table")
@click.argument("name", required=False)
@click.option("--at", metavar="WHEN", help="Time, snapshot or branch to tag; by default now.")
@click.option("--drop", is_flag=True, help="Remove the tag.")
@pass_invocation
def tag(invocation: Invocation, table: str, name: str | None, at: str | None, drop: bool) -> None:
    """Tag a snapshot of TABLE with NAME so that it is kept; without NAME, list the tags."""
    found = invocation.lakehouse().table(table)
    if name is None:
        _list_refs(invocation, found.info().tags, "tag")
    elif drop:
        found.drop_ref(name)
        invocation.show({"table": table, "dropped": name}, lambda _: f"dropped tag {name}")
    else:
        snapshot = found.tag(name, at=at)
        done = {"table": table, "tag": name, "snapshot": snapshot}
        invocation.show(done, lambda _: f"{table}@{snapshot} is {name}")


@click.command(cls=Command)
@click.argument("table")
@click.argument("name", required=False)
@click.option("--at", metavar="WHEN", help="Time, snapshot or tag to branch from; by default now.")
@click.option("--drop", is_flag=True, help="Remove the branch.")
@pass_invocation
def branch(
    invocation: Invocation, table: str, name: str | None, at: str | None, drop: bool
) -> None:
    """Create the branch NAME of TABLE; without NAME, list its branches."""
    found = invocation.lakehouse().table(table)
    if name is None:
        _list_refs(invocation, found.branches(), "branch")
    elif drop:
        found.drop_ref(name)
        invocation.show({"table": table, "dropped": name}, lambda _: f"dropped branch {name}")
    else:
        snapshot = found.branch(name, at=at)
        done = {"table": table, "branch": name, "snapshot": snapshot}
        invocation.show(done, lambda _: f"branch {name} of {table} starts at {snapshot}")


def _list_refs(invocation: Invocation, names: Sequence[str], kind: str) -> None:
    invocation.show(list(names), lambda found: "\n".join(found) or f"There is no {kind}.")


@click.command(cls=Command)
@click.option("--env", metavar="NAME", required=True, help="Name of the environment.")
@click.option("--discard", is_flag=True, help="Drop the environment instead; main is not changed.")
@pass_invocation
def publish(invocation: Invocation, env: str, discard: bool) -> None:
    """Publish an environment to main: all tables in one commit."""
    lakehouse = invocation.lakehouse()
    if discard:
        dropped = lakehouse.drop_env(env)
        left = f"dropped {env} from {output.plural(len(dropped), 'table')}; main is unchanged"
        invocation.show({"env": env, "discarded": dropped}, lambda _: left)
        return
    invocation.show(lakehouse.publish(env=env), str)
