"""What is carried from one snapshot to the next is what measuring the whole table gives."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from thermocline.check import measures
from thermocline.check.gate import CheckReport
from thermocline.check.rules import list_rules
from thermocline.check.table_checks import check_tables
from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField, Rule, UpdateMode
from thermocline.contract.types import Decimal, Field, Primitive, Struct
from thermocline.lake import Draft, Lake
from thermocline.lake.metadata import location_path
from thermocline.lake.naming import new_run_id

TABLE = "silver.t"
COLUMNS = (
    Column("id", Primitive("long"), True),
    Column("day", Primitive("date")),
    Column("kind", Primitive("string")),
    Column("price", Decimal(9, 2)),
    Column("share", Primitive("double")),
    Column("code", Primitive("uuid")),
    Column("at", Primitive("timestamptz")),
    Column("deep", Struct((Field("x", Primitive("long")),))),
)
RULES = (
    Rule("missing", ("kind",), (("values", ("", "N/A")),), name="said"),
    Rule("missing", ("price",), bounds=(("mustBeLessThan", 50),), unit="percent"),
    Rule("accepted", ("kind",), (("values", ("a", "b", "")),)),
    Rule("range", ("price",), (("min", 0), ("max", 50))),
    Rule("range", ("share",), (("exclusive_min", 0),)),
    Rule("range", ("day",), (("min", date(2026, 1, 3)),)),
    Rule("length", ("kind",), (("max", 2),)),
    Rule("pattern", ("kind",), (("pattern", "^[a-c]*$"),)),
    Rule("row_count", bounds=(("mustBeBetween", (5, 60)),)),
    Rule("pattern", ("code",), (("pattern", "^0"),)),
    Rule("range", ("deep.x",), (("min", 0),)),
    Rule("duplicates", ("kind", "day")),
    Rule("freshness", ("at",), (("within", timedelta(days=1)),)),
    Rule("reference", ("id",), (("table", "silver.other"), ("columns", ("id",)))),
    Rule("sql", (), (("query", "select max(price) from {object}"),)),
)
ADDING = {"missing", "accepted", "range", "length", "pattern", "row_count"}
NOW = datetime(2026, 6, 1, tzinfo=UTC)

pytestmark = pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)


def contract(on_read: bool) -> Contract:
    updates = UpdateMode.MERGE_ON_READ if on_read else UpdateMode.COPY_ON_WRITE
    part = (PartitionField("day"),)
    return Contract(TABLE, COLUMNS, key=("id",), partition=part, updates=updates, rules=RULES)


def rows(chance: random.Random, count: int) -> pa.Table:
    def some(*values: Any) -> list[Any]:
        return [chance.choice([None, *values]) for _ in range(count)]

    moments = some(NOW, NOW - timedelta(days=3))
    return pa.table(
        {
            "id": pa.array([chance.randrange(40) for _ in range(count)], pa.int64()),
            "day": pa.array(some(*(date(2026, 1, day) for day in (1, 2, 3, 4))), pa.date32()),
            "kind": pa.array(some("", "a", "bb", "N/A", "zzz", "\U0001f600")),
            "price": pa.array(some(Number("-1.50"), Number("3.25"), Number("60.00")),
                              pa.decimal128(9, 2)),
            "share": pa.array(some(0.0, -0.0, 1.5, float("nan"), -2.0), pa.float64()),
            "code": pa.array(some("00000000-0000-0000-0000-000000000001",
                                  "f0000000-0000-0000-0000-000000000001")),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "deep": pa.array(some({"x": 1}, {"x": -1}, {"x": None}),
                             pa.struct([("x", pa.int64())])),
        }
    )  # fmt: skip


def change(lake: Lake, draft: Draft, chance: random.Random, *, on_read: bool) -> None:
    """Add rows, put some in the place of a partition, or take some out of files."""
    from thermocline.engine.duck import build_scan

    act = chance.choice(["append", "partition", "rows", "rows", "everything", "nothing"])
    new = rows(chance, chance.randint(0, 8))
    if act == "append":
        draft.append(TABLE, new, bookmark=None, operation="append")
    elif act == "partition":
        wanted = [{"day": day} for day in set(new["day"].to_pylist()) | {date(2026, 1, 2)}]
        draft.replace_partitions(TABLE, new, wanted, bookmark=None, operation="partitions")
    elif act == "everything" and chance.random() < 0.3:
        draft.replace(TABLE, new, bookmark=None, operation="replace")
    elif act == "rows":
        draft.begin(TABLE)
        source = build_scan(lake.state(TABLE).metadata_location, draft.head(TABLE))
        found = lake.duck.connection.execute(
            f"select filename, list(file_row_number) from {source} "
            f"where id in ({chance.randrange(40)}, {chance.randrange(40)}) group by filename"
        ).fetchall()
        gone = {path: pa.array(sorted(at)).to_numpy() for path, at in found}
        if gone:
            draft.replace_rows(TABLE, new, gone, on_read=on_read, bookmark=None, operation="merge")


def checked(lake: Lake, contract: Contract, head: int) -> CheckReport:
    heads = {TABLE: head, "silver.other": lake.state("silver.other").head() or 0}
    (report,) = check_tables(lake, [contract], heads, NOW)
    return report


def shown(report: CheckReport) -> Any:
    """Everything but which rows are shown of those that break a rule."""
    found = report.as_dict()
    for outcome in found["outcomes"]:
        outcome["sample"] = len(outcome["sample"])
    return found


@pytest.mark.parametrize("on_read", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_carried_measures_are_those_of_the_whole_table(
    lake: Lake, project: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, on_read: bool
) -> None:
    monkeypatch.setattr(measures, "_MAX_SHARE", 100)  # these tables change more than they stay
    chance, given = random.Random(f"{seed} {on_read}"), contract(on_read)
    lake.ensure(Contract("silver.other", COLUMNS[:1]))
    lake.ensure(given)
    kept, carried = project / ".thermocline" / "measures", 0
    for step in range(8):
        draft = lake.draft(new_run_id())
        for _ in range(chance.randint(1, 3)):
            change(lake, draft, chance, on_read=on_read)
        draft.begin(TABLE)
        head = draft.head(TABLE)
        before = measures.carry_forward(lake, given, lake.state(TABLE), head)
        carried += before is not None and before.snapshot == head
        one = checked(lake, given, head)
        shutil.rmtree(kept)
        whole = checked(lake, given, head)
        assert shown(one) == shown(whole)
        again = measures.carry_forward(lake, given, lake.state(TABLE), head)
        assert again is not None and again.rows == whole.rows
        for rule, value, found in zip(list_rules(given), again.values, whole.measured, strict=True):
            plain = not {"code", "deep.x"} & set(rule.columns)
            assert (value is not None) == (rule.kind in ADDING and plain), rule
            assert value is None or value == found
        if before is not None:
            assert (before.rows, before.values) == (again.rows, again.values)
        if step % 2:
            draft.publish()
    assert carried > 3


def test_what_was_kept_counts_only_for_the_same_rules_and_columns(lake: Lake) -> None:
    given = contract(on_read=True)
    lake.ensure(Contract("silver.other", COLUMNS[:1]))
    lake.ensure(given)
    draft = lake.draft(new_run_id())
    draft.append(TABLE, rows(random.Random(1), 30), bookmark=None, operation="append")
    head = draft.head(TABLE)
    state = lake.state(TABLE)
    assert measures.carry_forward(lake, given, state, head) is None
    checked(lake, given, head)
    assert measures.carry_forward(lake, given, state, head) is not None
    others = [
        Contract(TABLE, COLUMNS, key=("id",), rules=RULES[1:]),
        Contract(TABLE, COLUMNS, rules=RULES),
        Contract(TABLE, COLUMNS[1:], key=("id",), rules=RULES),
    ]
    for other in others:
        assert measures.carry_forward(lake, other, state, head) is None
    path = measures._path(lake, state)
    for damage in ("", "[]", "{}", '{"snapshot": 1}', path.read_text().replace("[", '["x",')):
        path.write_text(damage)
        assert measures.carry_forward(lake, given, state, head) is None
        checked(lake, given, head)
    path.write_text(path.read_text().replace('"rows": 30', '"rows": 31'))
    assert checked(lake, given, head).rows == 30, "what is kept disagrees with the table"


def test_a_rule_that_adds_up_opens_no_file_that_did_not_change(lake: Lake) -> None:
    """The old partitions' files are gone: whoever looked at them would fail."""
    rules = (
        Rule("row_count", bounds=(("mustBeGreaterThan", 1),)),
        Rule("missing", ("price",), bounds=(("mustBeLessThan", 90),), unit="percent"),
        Rule("range", ("price",), (("max", 100),)),
        Rule("length", ("kind",), (("max", 9),)),
    )
    plain = Contract(TABLE, COLUMNS[1:], partition=(PartitionField("day"),), rules=rules)
    lake.ensure(plain)
    new = rows(random.Random(2), 30).drop_columns(["id"])
    draft = lake.draft(new_run_id())
    draft.append(TABLE, new, bookmark=None, operation="append")
    first = check_tables(lake, [plain], {TABLE: draft.head(TABLE)}, NOW)[0]
    table = lake.iceberg(TABLE)
    head = table.snapshot_by_id(draft.head(TABLE))
    for manifest in head.manifests(table.io):  # type: ignore[union-attr]
        for entry in manifest.fetch_manifest_entry(table.io):
            location_path(entry.data_file.file_path).unlink()
    more = new.slice(0, 3)
    draft.append(TABLE, more, bookmark=None, operation="append")
    second = check_tables(lake, [plain], {TABLE: draft.head(TABLE)}, NOW)
    assert second[0].rows == first.rows + 3
