"""Call dbt in this process, through its programmatic interface."""

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
from thermocline.dbt.graph import DbtGraph
from thermocline.dbt.workspace import PROFILE
from thermocline.errors import BadInput, EngineUnavailable, Permanent

# Options that select nodes; `dbt ls` accepts them.
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
class NodeResult:
    """dbt's status and message for one node."""

    id: str
    status: str
    message: str
    failures: int
    seconds: float


def parse_arguments(command: str, arguments: Sequence[str], project: Path) -> dict[str, Any]:
    """Parse dbt's arguments with dbt's own parser and return the options that were set."""
    import click

    for word in arguments:
        if word.partition("=")[0] in _OURS:
            raise BadInput(
                f"{word} cannot be passed to dbt here: Thermocline writes dbt's profile.",
                "Name the dbt project with --project-dir; --target is accepted.",
            )
    # Without these options dbt looks for its folders in the home directory, and fails.
    words = ["--project-dir", str(project), "--profiles-dir", str(project), *arguments]
    try:
        made = _import_dbt().cli.commands[command].make_context(command, words)
    except click.UsageError as error:
        raise BadInput(f"dbt {command}: {error.format_message()}", "See `dbt --help`.") from error
    options = {
        name: value
        for name, value in made.params.items()
        if made.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for name, option in _PARTIAL.items():
        if options.get(name):
            raise BadInput(
                f"{option} creates incomplete tables.",
                "Run without it, or run the project with dbt itself.",
            )
    return options


class DbtProject:
    """One dbt project in one workspace. `quiet` keeps dbt's output off standard output."""

    def __init__(
        self, project: Path, profiles: Path, target: str, options: Mapping[str, Any], *, quiet: bool
    ) -> None:
        self._runner = _import_dbt().dbtRunner()
        self._quiet = quiet
        self._options = options
        places = {"--project-dir": project, "--profiles-dir": profiles, "--profile": PROFILE}
        places |= {"--target": target}
        self._places = [word for pair in places.items() for word in map(str, pair)]
        if variables := options.get("vars"):
            self._places += ["--vars", json.dumps(variables)]

    def parse(self) -> DbtGraph:
        """Parse the project; later commands reuse the parsed manifest."""
        manifest = self._invoke_quietly(["parse", *self._places]).result
        self._runner.manifest = manifest
        return graph.read_manifest(manifest)

    def select_nodes(self) -> list[str]:
        """Return the ids of all nodes that the arguments select."""
        words = ["ls", *self._places, "--output", "json", "--output-keys", "unique_id"]
        for name, option in _SELECTING.items():
            value = self._options.get(name)
            if value:
                words += [option, *([value] if isinstance(value, str) else map(str, value))]
        return [json.loads(line)["unique_id"] for line in self._invoke_quietly(words).result or ()]

    def make(self, paths: Sequence[str], command: str = "run") -> None:
        """Build some models or seeds that other nodes read."""
        self._invoke_quietly(
            [command, *self._places, "--select", *(f"fqn:{path}" for path in paths)]
        )

    def run(self, command: str, arguments: Sequence[str]) -> tuple[bool, list[NodeResult]]:
        """Run a command with the caller's arguments; return success and a result per node."""
        with redirect_stdout(sys.stderr) if self._quiet else nullcontext():
            done = self._invoke([command, *arguments, *self._places])
        if done.exception is not None:
            raise _dbt_stopped(done.exception)
        return bool(done.success), [
            _node_result(each) for each in getattr(done.result, "results", ())
        ]

    def close(self) -> None:
        """Close dbt's database connections, which it keeps open between commands."""
        from dbt.adapters.duckdb.connections import DuckDBConnectionManager

        DuckDBConnectionManager.close_all_connections()

    def _invoke_quietly(self, words: list[str]) -> Any:
        printed = io.StringIO()
        with redirect_stdout(printed):
            done = self._invoke(words)
        if done.exception is not None:
            raise _dbt_stopped(done.exception)
        if not done.success:
            found = [each.message for each in getattr(done.result, "results", ()) if each.message]
            raise _dbt_stopped(found[0] if found else printed.getvalue())
        return done

    def _invoke(self, words: list[str]) -> Any:
        done = self._runner.invoke([*words, "--no-send-anonymous-usage-stats"])
        if done.exception is not None and not isinstance(done.exception, Exception):
            raise done.exception  # Ctrl-C, which dbt's runner only records
        return done


def _import_dbt() -> Any:
    try:
        import dbt.adapters.duckdb
        import dbt.cli.main
    except ImportError as error:
        raise EngineUnavailable(
            f"dbt is not installed: {error.msg}.", "Install it: pip install 'thermocline[dbt]'."
        ) from error
    return dbt.cli.main


def _dbt_stopped(why: Exception | str) -> Permanent:
    text = " ".join(str(why).split()) or type(why).__name__
    return Permanent(f"dbt stopped: {text}", "Nothing was published.")


def _node_result(result: Any) -> NodeResult:
    return NodeResult(
        id=result.node.unique_id,
        status=str(result.status),
        message=" ".join(str(result.message or "").split()),
        failures=int(result.failures or 0),
        seconds=float(result.execution_time),
    )
