"""The entry point: cheap to start, errors in two lines, exit codes as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from thermocline import errors
from thermocline.cli import main
from thermocline.cli.invocation import Command

CANARY = "c4nary-s3cret"
HEAVY = ("pyspark", "duckdb", "pyarrow", "pyiceberg", "pandas", "polars", "sqlglot", "pydantic")
HEAVY += ("open_data_contract_standard", "sqlalchemy", "yaml")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "thermocline.toml").write_text('[lake]\nname = "shop"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Puts a command `act` that does what the test wants into the table of commands."""

    def register(action: Callable[[], object]) -> None:
        module = types.ModuleType("thermocline.cli.act")
        module.act = Command("act", callback=action)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "thermocline.cli.act", module)
        monkeypatch.setattr(main, "COMMANDS", {"Test": {"act": ("act", "Act.")}})

    return register


def loaded_after(*calls: list[str], cwd: Path | None = None) -> tuple[set[str], str]:
    """The modules that a fresh process holds after these calls, and what they printed."""
    script = (
        "import sys, json; from thermocline.cli.main import run;"
        "[run(call) for call in json.loads(sys.argv[1])];"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(calls)],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    return set(done.stderr.split()), done.stdout


def test_help_loads_neither_an_engine_nor_a_command() -> None:
    loaded, text = loaded_after(["--help"])
    assert "Update stale tables" in text
    assert not loaded & {*HEAVY, "rich", "asyncio", "tomllib", "logging", "difflib"}
    ours = {name for name in loaded if name.startswith("thermocline.")}
    assert ours == {
        "thermocline.cli",
        "thermocline.cli.main",
        "thermocline.cli.invocation",
        "thermocline.errors",
    }


def test_help_of_a_command_loads_no_engine() -> None:
    names = [name for section in main.COMMANDS.values() for name in section]
    loaded, text = loaded_after(*([name, "--help"] for name in names))
    assert not loaded & {*HEAVY, "rich", "thermocline.api"}
    for name in names:
        assert f"Usage: thermo {name}" in text


def test_config_loads_no_engine(project: Path) -> None:
    loaded, text = loaded_after(["config"], cwd=project)
    assert "lake.name" in text
    assert not loaded & set(HEAVY)


def test_the_help_line_of_each_command_is_in_the_table(run: Run) -> None:
    _, text, _ = run("--help")
    for section in main.COMMANDS.values():
        for name, (_, line) in section.items():
            assert f"{name} " in text
            assert line in text


def test_no_command_shows_the_help(run: Run) -> None:
    assert run() == run("--help")


def test_version(run: Run) -> None:
    code, text, _ = run("--version")
    assert (code, text.split()[0]) == (0, "thermocline")
    assert text.split()[1][0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "cause", "next_step"),
    [
        (["tabels"], "There is no command 'tabels'. Did you mean 'tables'?", "thermo --help"),
        (["show"], "Missing argument 'TABLE'.", "thermo show --help"),
        (["run", "--selct", "x"], "No such option '--selct'. (Did you mean", "thermo run --help"),
        (["quarantine", "reply"], "No such command 'reply'", "thermo quarantine --help"),
    ],
)
def test_misuse_is_two_lines_and_exit_2(
    run: Run, arguments: list[str], cause: str, next_step: str
) -> None:
    code, out, err = run(*arguments)
    first, second = err.splitlines()
    assert (code, out) == (2, "")
    assert first.startswith(cause)
    assert second == f"  Run `{next_step}` to see its arguments and options."


def test_misuse_in_json_has_the_shape_of_every_error(run: Run) -> None:
    code, out, err = run("show", "--json")
    assert (code, err) == (2, "")
    assert json.loads(out) == {
        "error": {
            "code": "usage",
            "cause": "Missing argument 'TABLE'.",
            "next_step": "Run `thermo show --help` to see its arguments and options.",
            "transient": False,
            "details": {},
        }
    }


def test_outside_a_project_the_next_step_is_init(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("config")
    first, second = err.splitlines()
    assert (code, out) == (2, "")
    assert first == f"No thermocline.toml in {tmp_path} or any folder above it."
    assert "thermo init" in second


OUR_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ThermoclineError)
]


@pytest.mark.parametrize("kind", OUR_ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_ends_with_its_own_code(
    run: Run, command: Callable[..., None], kind: type[errors.ThermoclineError]
) -> None:
    problems: object = ["a:1 x", "b:2 y"] if kind is errors.ContractError else "It broke."

    def act() -> None:
        raise kind(problems, "Mend it.")  # type: ignore[arg-type]

    command(act)
    code, out, err = run("act")
    cause = "a:1 x\nb:2 y" if kind is errors.ContractError else "It broke."
    assert (code, out, err) == (kind.exit_code, "", f"{cause}\n  Mend it.\n")
    code, out, err = run("--json", "act")
    assert (code, err) == (kind.exit_code, "")
    assert json.loads(out)["error"]["code"] == kind.code
    assert json.loads(out)["error"]["next_step"] == "Mend it."
    _, _, err = run("act", "--debug")
    assert "Traceback" in err
    assert err.endswith("  Mend it.\n")


def test_what_nobody_foresaw_is_called_a_bug(run: Run, command: Callable[..., None]) -> None:
    def act() -> None:
        raise KeyError("a\nb\x1b[31m")

    command(act)
    code, out, err = run("act")
    assert (code, out) == (70, "")
    assert err == (
        "This is a bug: KeyError: 'a\\nb\\x1b[31m'\n"
        "  Run the command again with --debug and report the output.\n"
    )
    _, _, err = run("act", "--debug")
    assert "in act\n" in err
    code, out, _ = run("act", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (70, "bug")


def test_an_exit_code_that_a_command_returns_is_kept(
    run: Run, command: Callable[..., None]
) -> None:
    command(lambda: 4)
    assert run("act")[0] == 4
    command(lambda: None)
    assert run("act")[0] == 0


def test_interrupt_is_130(run: Run, command: Callable[..., None]) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    command(act)
    code, out, err = run("act")
    assert (code, out) == (130, "")
    assert err.strip() == "Interrupted."


def test_a_reader_that_leaves_is_no_failure(project: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", "config", "--json"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        cwd=project,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "--profile", "t", "config"],
        ["config", "--json", "--profile", "t"],
        ["--profile", "t", "config", "--json"],
        ["--profile", "other", "config", "--json", "--profile", "t"],
    ],
)
def test_global_options_stand_before_or_after(
    run: Run, project: Path, arguments: list[str]
) -> None:
    (project / "thermocline.toml").write_text('[profile.t.lake]\nname = "team"\n')
    code, out, _ = run(*arguments)
    assert code == 0
    document = json.loads(out)
    assert document["profile"] == "t"
    assert document["settings"]["lake.name"] == {"value": "team", "origin": "profile t"}


def test_project_names_another_folder(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    for arguments in (["-C", str(project), "config"], ["config", "--project", str(project)]):
        _, out, _ = run(*arguments, "--json")
        assert json.loads(out)["project"] == str(project)


def test_config_shows_each_value_and_its_origin(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERMOCLINE_ENGINE__DUCKDB__THREADS", "3")
    _, out, _ = run("config")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["lake.name"] == ["shop", "thermocline.toml"]
    assert lines["engine.duckdb.threads"] == ["3", "environment"]
    assert lines["lake.s3.path_style"] == ["false", "default"]
    assert lines["lake.warehouse"] == [str(project / "lake"), "default"]


def test_a_canary_is_never_shown(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., None]
) -> None:
    for name in ("CATALOG__PASSWORD", "CATALOG__TOKEN", "CATALOG__CREDENTIAL"):
        monkeypatch.setenv(f"THERMOCLINE_LAKE__{name}", CANARY)
    for name in ("ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"THERMOCLINE_LAKE__S3__{name}", CANARY)
    for arguments in (["config"], ["config", "--json"], ["config", "--debug"]):
        code, out, err = run(*arguments)
        assert code == 0
        assert out.count("***") == 5
        assert CANARY not in out + err

    def act() -> None:
        from thermocline.config import load_settings

        context = click.get_current_context()
        context.obj.settings()
        password = load_settings(project).catalog.password
        assert password is not None
        raise RuntimeError(f"could not connect with {password.reveal()}")

    command(act)
    for arguments in (["act"], ["act", "--debug"], ["act", "--json", "--debug"]):
        code, out, err = run(*arguments)
        assert code == 70
        assert CANARY not in out + err
        assert "could not connect with ***" in out + err


def test_a_canary_in_the_environment_is_hidden_before_a_project_is_open(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: Callable[..., None]
) -> None:
    monkeypatch.setenv("THERMOCLINE_LAKE__CATALOG__TOKEN", "an0ther-canary")

    def act() -> None:
        raise RuntimeError("refused: an0ther-canary")

    command(act)
    for arguments in (["act"], ["act", "--debug"], ["act", "--json"]):
        _, out, err = run(*arguments)
        assert "an0ther-canary" not in out + err
        assert "refused: ***" in out + err


def test_a_secrets_file_open_to_all_is_warned_of_on_stderr(run: Run, project: Path) -> None:
    (project / "secrets.toml").write_text(f'[lake.s3]\nsecret_key = "{CANARY}"\n')
    (project / "secrets.toml").chmod(0o644)
    code, out, err = run("config", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["lake.s3.secret_key"]["value"] == "***"
    assert err.startswith("warning: secrets.toml can be read by everybody")


def test_a_terminal_without_unicode_is_no_failure(project: Path) -> None:
    (project / "thermocline.toml").write_text('[lake]\nname = "Übung"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", "config"],
        capture_output=True,
        cwd=project,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?bung" in done.stdout
