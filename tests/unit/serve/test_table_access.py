"""Which caller may read which table; leaks are tested on a whole server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.serve.fixed_router import NOW, SNAPSHOT, head

from thermocline.errors import ContractError
from thermocline.serve import table_access
from thermocline.serve.http.metrics import Metrics
from thermocline.serve.table_access import TableAccess
from thermocline.serve.values import Caller, HotCopy, LakeState

TABLES = ("silver.orders", "hr.payroll", "quarantine.payroll")
PAYROLL = TableAccess({"hr.payroll": ["hr", "audit"], "bronze.payroll": ["hr"]})
CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: x
version: "1"
{roles}
schema:
  - name: {name}
    properties:
      - {{name: id, logicalType: integer}}
"""


def caller(*roles: str) -> Caller:
    return Caller("ann", roles)


def lake_state() -> LakeState:
    copies = {name: HotCopy(SNAPSHOT, None, 3, 900) for name in TABLES}
    return LakeState(1, NOW, {name: head(name) for name in TABLES}, {"node-0": copies})


@pytest.mark.parametrize(
    ("roles", "seen"),
    [
        ((), {"silver.orders"}),
        (("sales",), {"silver.orders"}),
        (("sales", "hr"), set(TABLES)),
        (("audit",), {"silver.orders", "hr.payroll"}),
    ],
)
def test_a_caller_sees_what_a_role_of_theirs_may(roles: tuple[str, ...], seen: set[str]) -> None:
    found = PAYROLL.visible_state(lake_state(), caller(*roles))
    assert set(found.table_heads) == seen
    assert set(found.hot_copies["node-0"]) == seen


def test_measurements_of_hidden_tables_are_left_out() -> None:
    metrics = Metrics()
    metrics.update_state(lake_state())
    assert b"hr.payroll" in metrics.exposition()
    some = metrics.exposition({"silver.orders"})
    assert b"payroll" not in some
    assert b'iceberg_metadata_version{table="silver.orders"}' in some
    assert b'table="' not in metrics.exposition(set())


def project(folder: Path, **roles: str) -> Path:
    for name, text in roles.items():
        path = folder / "contracts" / "silver" / f"{name}.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTRACT.format(name=name, roles=text))
    return folder


def test_contracts_name_the_roles(tmp_path: Path) -> None:
    found = table_access.load_table_access(
        project(
            tmp_path,
            open="",
            some="roles: [{role: hr, access: Read}, {role: etl, access: write}, {role: audit}]",
            none="roles: []",
        )
    )
    allowed = {
        name: [
            role
            for role in ("hr", "etl", "audit")
            if found.can_read(caller(role), f"silver.{name}")
        ]
        for name in ("open", "some", "none")
    }
    assert allowed == {"open": ["hr", "etl", "audit"], "some": ["hr", "audit"], "none": []}


def test_nobody_is_let_in_by_a_contract_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ContractError):
        table_access.load_table_access(project(tmp_path, some="roles: [{access: read}]"))
