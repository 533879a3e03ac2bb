"""Manifests that are not opened list nothing that is asked for, whatever was done to the table."""

from __future__ import annotations

import random
import struct
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, LongType, StringType
from tests.contract.random_files import SCHEMA, VALUES, trial

from thermocline.contract import Column, Contract
from thermocline.contract.definition import PartitionField
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.manifest_pruning import ManifestPruner
from thermocline.lake.partition_cardinality import max_partitions, partition_warnings

ONE = "silver.one"


@pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_found_is_what_opening_everything_finds(lake: Lake, seed: int) -> None:
    assert len(trial(lake, seed, steps=18)) == 18


def manifest(*summaries: PartitionFieldSummary, spec: int = 0) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path="m", manifest_length=1, partition_spec_id=spec, content=0,
        added_files_count=1, existing_files_count=0, partitions=list(summaries),
    )  # fmt: skip


def summary(
    kind: IcebergType, values: list[Any], order: Any = None, **changed: Any
) -> PartitionFieldSummary:
    """What a writer says of a partition field's values, which it may put in an order of its own."""
    there = [value for value in values if value is not None and value == value]
    found = {
        "contains_null": None in values,
        "contains_nan": any(value != value for value in values),
        "lower_bound": to_bytes(kind, min(there, key=order)) if there else None,
        "upper_bound": to_bytes(kind, max(there, key=order)) if there else None,
    } | changed
    return PartitionFieldSummary(*found.values())


def cut_by(lake: Lake, column: str) -> Table:
    lake.catalog.create_namespace_if_not_exists("silver")
    table = lake.catalog.create_table(ONE, SCHEMA)
    with table.update_spec() as update:
        update.add_field(column, IdentityTransform(), "p")
    return lake.catalog.load_table(ONE)


@pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", [field.name for field in SCHEMA.fields])
def test_a_manifest_with_a_value_is_never_ruled_out(lake: Lake, column: str) -> None:
    """Whatever a writer left out or cut short, and whatever the column has become since."""
    table, chance = cut_by(lake, column), random.Random(column)
    kind = table.schema().find_type(column)
    assert isinstance(kind, IcebergType)
    pruner, spec, ruled_out = ManifestPruner(table), table.spec().spec_id, 0
    for _ in range(400):
        held = chance.sample([None, *VALUES[type(kind)]], chance.randint(1, 3))
        changed: dict[str, Any] = {}
        for part in ("lower_bound", "upper_bound", "contains_null"):
            if chance.random() < 0.2:
                changed[part] = None
        # Java's order of texts is that of UTF-16 in some versions.
        utf16 = isinstance(kind, StringType) and chance.random() < 0.5
        order = (lambda text: text.encode("utf-16-be")) if utf16 else None
        found = summary(kind, held, order, **changed)
        if isinstance(kind, StringType) and found.upper_bound and chance.random() < 0.3:
            texts = [value for value in held if value is not None]
            found = summary(kind, held, upper_bound=max(texts)[:1].encode())
        if isinstance(kind, LongType) and all(abs(v or 0) < 2**31 for v in held):
            there = [value for value in held if value is not None]
            if there and chance.random() < 0.3:  # as it was written when the column was an int
                low, high = (struct.pack("<i", each) for each in (min(there), max(there)))
                found = summary(kind, held, lower_bound=low, upper_bound=high)
        for value in held:
            assert pruner.may_hold(manifest(found, spec=spec), [Record(value)]), (held, found)
        others = [value for value in VALUES[type(kind)] if value not in held]
        ruled_out += sum(not pruner.may_hold(manifest(found, spec=spec), [(v,)]) for v in others)
    trusted = {"id", "n", "kind", "at", "day", "price"}
    assert (ruled_out > 0) == (column in trusted), "nothing is won, or an order is trusted"


@pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)
def test_what_cannot_be_judged_is_read(lake: Lake) -> None:
    table = cut_by(lake, "id")
    pruner, spec = ManifestPruner(table), table.spec().spec_id
    tens = summary(LongType(), [10, 19])
    assert pruner.may_hold(manifest(tens, spec=spec), [(12,)])
    assert not pruner.may_hold(manifest(tens, spec=spec), [(20,), (None,), (9,)])
    for value in ("12", 30.0, Decimal(30), True, date(2026, 1, 1)):
        assert pruner.may_hold(manifest(tens, spec=spec), [(value,)]), "of another type"
    assert pruner.may_hold(manifest(tens, spec=99), [(30,)]), "a spec that is not known"
    assert pruner.may_hold(manifest(spec=spec), [(30,)]), "no summaries"
    assert pruner.may_hold(manifest(tens, tens, spec=spec), [(30,)]), "too many of them"
    assert pruner.may_hold(manifest(tens, spec=spec), [()]), "a partition of another shape"
    assert not pruner.may_hold(manifest(tens, spec=spec), [])
    with table.update_spec() as update:
        update.remove_field("p")
    with lake.catalog.load_table(ONE).update_schema() as schema:
        schema.delete_column("id")
    gone = ManifestPruner(lake.catalog.load_table(ONE))
    assert gone.may_hold(manifest(tens, spec=spec), [(30,)]), "its column was dropped"


@pytest.mark.parametrize("catalog_environ", ["sqlite"], indirect=True)
def test_the_number_of_partitions_follows_from_the_manifest_list(lake: Lake) -> None:
    days = Contract(
        "silver.days",
        (Column("day", Primitive("date")), Column("kind", Primitive("string"))),
        partition=(PartitionField("day"),),
    )
    kinds = Contract("silver.kinds", days.columns, partition=(PartitionField("kind"),))
    for contract in (days, kinds):
        lake.ensure(contract)
        for first in (0, 3, 20):  # three days each, of which the second begins in the first
            rows = {"day": [date(2026, 1, 1 + first + n) for n in range(4)],
                    "kind": [f"k{first + n}" for n in range(4)]}  # fmt: skip
            lake.iceberg(contract.table).append(pa.table(rows))
        head = lake.state(contract.table).head()
        assert head is not None
        assert max_partitions(lake, contract.table, head) == 11
        assert partition_warnings(lake, contract, head) == ()
    table = lake.iceberg("silver.days")
    manifests = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    assert ManifestPruner(table).max_partition_count(manifests) == 11
    with_null = pa.table({"day": pa.array([None], pa.date32()), "kind": ["x"]})
    table.append(with_null)
    head = lake.state("silver.days").head()
    assert head is not None
    assert max_partitions(lake, "silver.days", head) == 12
