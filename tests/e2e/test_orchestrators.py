"""The examples for orchestrators do what they say: their commands exist, run and answer."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.conftest import SETTINGS

import thermocline
from thermocline.api import init
from thermocline.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "orchestrators"


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The functions of the Airflow example, with this Python's `thermo` on the path."""
    command = tmp_path / "bin" / "thermo"
    command.parent.mkdir()
    code = "import sys; from thermocline.cli.main import run; sys.exit(run())"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    house = thermocline.open(init(tmp_path / "shop"))
    for contract in house.contracts.values():
        if contract.layer == "bronze":
            house.lake.ensure(contract)
    monkeypatch.setenv("THERMOCLINE_PROJECT", str(house.settings.project))
    spec = importlib.util.spec_from_file_location("airflow_dag", EXAMPLES / "airflow_dag.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_airflows_functions_call_the_project(
    airflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = airflow.stale()
    assert len(stale) == 8
    assert stale.index("silver.orders") < stale.index("gold.daily_revenue")
    with pytest.raises(airflow.Refused, match="No model matches 'nothing'"):
        airflow.thermo("plan", "--select", "nothing")
    monkeypatch.setenv("THERMOCLINE_LAKE__CATALOG__TYPE", "rest")
    monkeypatch.setenv("THERMOCLINE_LAKE__CATALOG__URI", "http://127.0.0.1:9/")
    with pytest.raises(airflow.TryAgain, match="rest catalog cannot be used"):
        airflow.stale()


def states() -> dict[str, Any]:
    machine = json.loads((EXAMPLES / "stepfunctions.json").read_text())
    assert machine["StartAt"] in machine["States"]
    found: dict[str, Any] = machine["States"]
    return found


def test_the_state_machine_leads_from_its_start_to_an_end() -> None:
    machine = json.loads((EXAMPLES / "stepfunctions.json").read_text())
    seen, at = [], machine["StartAt"]
    while at is not None:
        assert at not in seen
        seen.append(at)
        state = machine["States"][at]
        assert ("Next" in state) != state.get("End", False)
        at = state.get("Next")
    assert seen == list(machine["States"])


@pytest.mark.parametrize("name", list(states()))
def test_the_state_machines_commands_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    (override,) = states()[name]["Parameters"]["Overrides"]["ContainerOverrides"]
    program, *words = override["Command"]
    assert program == "thermo"
    assert run(["--project", str(tmp_path), *words]) == 0
    json.loads(capsys.readouterr().out)
