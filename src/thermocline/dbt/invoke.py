"""dbt itself, called in this process through its own programming interface."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thermocline.dbt import graph
from thermocline.dbt.graph import Graph
from thermocline.dbt.workshop import PROFILE
from thermocline.errors import BadInput, EngineUnavailable, Permanent

# Options that decide what is selected. `dbt ls` takes them, and tells the rest nothing new.
_SELECTING = {
    "select": "--select",
    "exclude": "--exclude",
    "selector": "--selector",
    "resource_types": "--resource-type",
    "exclude_resource_types": "--exclude-resource-type",
    "indirect_selection": "--indirect-selection",
}
_OURS = {"--profile", "--profiles-dir", "--project-dir"}
_PARTIAL = {"empty": "--empty", "sample": "--sample"}


@dataclass(frozen=True)
class Outcome:
    """What became of one node: dbt's own status and message."""

    id: str
    status: str
    message: str
    failures: int
    seconds: float


def asked(command: str, arguments: Sequence[str], project: Path) -> dict[str, Any]:
    """What dbt's arguments say, by dbt's own reading of them."""
    import click

    for word in arguments:
        if word.partition("=")[0] in _OURS:
            raise BadInput(
                f"{word} is not for dbt here: its profile is made by thermo.",
                "Name the dbt project with --project-dir; --target may be given.",
            )
    # Without folders dbt looks for them at home, and insists that they are there.
    words = ["--project-dir", str(project), "--profiles-dir", str(project), *arguments]
    try:
        made = _dbt().cli.commands[command].make_context(command, words)
    except click.UsageError as error:
        raise BadInput(f"dbt {command}: {error.format_message()}", "See `dbt --help`.") from error
    given = {
        name: value
        for name, value in made.params.items()
        if made.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for name, option in _PARTIAL.items():
        if given.get(name):
            raise BadInput(
                f"{option} makes tables that are not whole.",
                "Run without it, or try the project with dbt itself.",
            )
    return given


class Dbt:
    """One dbt project in one workshop. `quiet` keeps dbt's words off standard output."""

    def __init__(
        self, project: Path, profiles: Path, target: str, given: Mapping[str, Any], *, quiet: bool
    ) -> None:
        self._runner = _dbt().dbtRunner()
        self._quiet = quiet
        self._given = given
        places = {"--project-dir": project, "--profiles-dir": profiles, "--profile": PROFILE}
        places |= {"--target": target}
        self._places = [word for pair in places.items() for word in map(str, pair)]
        if variables := given.get("vars"):
            self._places += ["--vars", json.dumps(variables)]

    def parse(self) -> Graph:
        """Read the project; what is asked later works on what was read."""
        manifest = self._silent(["parse", *self._places]).result
        self._runner.manifest = manifest
        return graph.read(manifest)

    def selected(self) -> list[str]:
        """The ids of all nodes that the arguments select."""
        words = ["ls", *self._places, "--output", "json", "--output-keys", "unique_id"]
        for name, option in _SELECTING.items():
            value = self._given.get(name)
            if value:
                words += [option, *([value] if isinstance(value, str) else map(str, value))]
        return [json.loads(line)["unique_id"] for line in self._silent(words).result or ()]

    def make(self, paths: Sequence[str], command: str = "run") -> None:
        """Make some models or seeds, for others to read."""
        self._silent([command, *self._places, "--select", *(f"fqn:{path}" for path in paths)])

    def run(self, command: str, arguments: Sequence[str]) -> tuple[bool, list[Outcome]]:
        """Run a command with its arguments as they were given. False when a node failed."""
        with redirect_stdout(sys.stderr) if self._quiet else nullcontext():
            done = self._invoke([command, *arguments, *self._places])
        if done.exception is not None:
            raise _failed(done.exception)
        return bool(done.success), [_outcome(each) for each in getattr(done.result, "results", ())]

    def close(self) -> None:
        """Have dbt let go of its database, which it keeps open from one command to the next."""
        from dbt.adapters.duckdb.connections import DuckDBConnectionManager

        DuckDBConnectionManager.close_all_connections()

    def _silent(self, words: list[str]) -> Any:
        said = io.StringIO()
        with redirect_stdout(said):
            done = self._invoke(words)
        if done.exception is not None:
            raise _failed(done.exception)
        if not done.success:
            found = [each.message for each in getattr(done.result, "results", ()) if each.message]
            raise _failed(found[0] if found else said.getvalue())
        return done

    def _invoke(self, words: list[str]) -> Any:
        done = self._runner.invoke([*words, "--no-send-anonymous-usage-stats"])
        if done.exception is not None and not isinstance(done.exception, Exception):
            raise done.exception  # Ctrl-C, which dbt's runner only notes
        return done


def _dbt() -> Any:
    try:
        import dbt.adapters.duckdb
        import dbt.cli.main
    except ImportError as error:
        raise EngineUnavailable(
            f"dbt is not installed: {error.msg}.", "Install it: pip install 'thermocline[dbt]'."
        ) from error
    return dbt.cli.main


def _failed(why: Exception | str) -> Permanent:
    text = " ".join(str(why).split()) or type(why).__name__
    return Permanent(f"dbt stopped: {text}", "Nothing was published.")


def _outcome(result: Any) -> Outcome:
    return Outcome(
        id=result.node.unique_id,
        status=str(result.status),
        message=" ".join(str(result.message or "").split()),
        failures=int(result.failures or 0),
        seconds=float(result.execution_time),
    )
