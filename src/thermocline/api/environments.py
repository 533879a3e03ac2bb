"""Environments: branches of one name on many tables, compared and published together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import NotFound
from thermocline.lake import Lake, PublishResult, refs
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.companions import is_companion
from thermocline.lake.metadata import MAIN
from thermocline.lake.naming import env_branch
from thermocline.lake.run_branches import drop_branch

if TYPE_CHECKING:
    from thermocline.lake.atomic_commit import TableChange
    from thermocline.lake.changeset import ChangeSet


@dataclass(frozen=True)
class PublishReport:
    """What a publish made visible on main."""

    published: PublishResult
    env: str

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        tables = {t: after for t, (_, after) in self.published.tables.items()}
        return {"env": self.env, "tables": tables}

    def __str__(self) -> str:
        count = len(self.published.tables)
        if not count:
            return f"nothing to publish in {self.env}"
        return f"published {count} table{'' if count == 1 else 's'} in one commit"


def diff(lake: Lake, env: str) -> list[ChangeSet]:
    """Return the differences between an environment's tables and main."""
    from thermocline.lake import schema as schemas
    from thermocline.lake.changes import diff_snapshots

    found = []
    heads = _environment_heads(lake, env)
    states = lake.states(heads)
    for table, (main, head) in heads.items():
        if not is_companion(table) and head != main:
            key = schemas.shape_of(states[table]).key
            found.append(diff_snapshots(lake.iceberg(table), main, head, key=key))
    return found


def publish(lake: Lake, env: str) -> PublishReport:
    """Point main to an environment's snapshots in one commit; refuse when main has moved since."""
    branch = env_branch(env)
    moved: list[str] = []
    changes: list[TableChange] = []
    published: dict[str, tuple[int | None, int]] = {}
    for table, (main, head) in _environment_heads(lake, env).items():
        state = lake.state(table)
        if not state.is_ancestor(main, of=head):
            moved.append(table)
            continue
        if head != main:
            changes.append(refs.set_ref(table, MAIN, head, was=main))
            published[table] = (main, head)
        changes.append(refs.drop_ref(table, branch, was=head))
    if moved:
        raise _main_moved(env, moved)
    lake.commit(refs.merge_changes(*changes))
    return PublishReport(PublishResult(env, MAIN, published), env)


def drop(lake: Lake, env: str) -> list[str]:
    """Drop an environment's branches and return the tables that had them."""
    _environment_heads(lake, env)
    branch = env_branch(env)
    having = [table for table, state in lake.states().items() if branch in state.refs]
    return drop_branch(lake, branch, having)


def _environment_heads(lake: Lake, env: str) -> dict[str, tuple[int, int]]:
    """Return the current snapshots of main and of the environment, by table."""
    branch = env_branch(env)
    heads = {}
    for table, state in lake.states().items():
        head, main = state.head(branch), state.head()
        if head is not None and main is not None:
            heads[table] = (main, head)
    if not heads:
        raise NotFound(f"There is no environment {env}.", f"Create it: thermo run --env {env}.")
    return heads


def _main_moved(env: str, tables: list[str]) -> MainMoved:
    error = MainMoved(tables, MAIN)
    error.next_step = (
        f"Rebuild it on the new main: thermo publish --env {env} --discard, "
        f"then thermo run --env {env}."
    )
    return error
