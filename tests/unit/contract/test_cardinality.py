from __future__ import annotations

import pytest

from thermocline.contract import PartitionField
from thermocline.contract.cardinality import FieldStatistics, find_warnings


def warnings(
    rows: int, partitions: int, field: PartitionField, files: int | None = None
) -> list[str]:
    return [str(w) for w in find_warnings(rows, [FieldStatistics(field, partitions)], files)]


def test_a_partition_for_every_customer_is_warned_of():
    assert warnings(5_000_000, 1_000_000, PartitionField("customer_id"), files=1_200_000) == [
        "identity partition on customer_id makes ~1,000,000 partitions of ~5 rows "
        "in 1,200,000 files; use bucket[32], or sort by the column"
    ]


def test_a_small_table_is_better_without_partitions():
    assert warnings(5_000, 1_000, PartitionField("customer_id")) == [
        "identity partition on customer_id makes ~1,000 partitions of ~5 rows; "
        "remove the partition field and sort by the column"
    ]


def test_times_have_a_coarser_transform():
    assert warnings(100_000, 8_760, PartitionField("at", "hour")) == [
        "hour partition on at makes ~8,760 partitions of ~11 rows; partition by day(at)"
    ]


@pytest.mark.parametrize(
    ("rows", "partitions", "field"),
    [
        (5_000, 91, PartitionField("order_date", "day")),  # the shop: few, whatever they hold
        (5_000, 365, PartitionField("order_date", "day")),
        (1_000_000_000, 5_000, PartitionField("country_city")),  # many, but each worth it
        (5_000_000, 16, PartitionField("customer_id", "bucket", 16)),
        (0, 0, PartitionField("customer_id")),
    ],
)
def test_what_does_no_harm_is_not_warned_of(rows, partitions, field):
    assert warnings(rows, partitions, field) == []


def test_too_many_partitions_are_too_many_even_when_full():
    (text,) = warnings(10**12, 200_000, PartitionField("sku", "truncate", 3))
    assert text == (
        "truncate partition on sku makes ~200,000 partitions of ~5,000,000 rows; "
        "truncate further, or use bucket[1024]"
    )


def test_only_the_fields_that_are_too_fine_are_named():
    fields = [
        FieldStatistics(PartitionField("day"), 30),
        FieldStatistics(PartitionField("customer_id"), 40_000),
    ]
    assert [w.field.column for w in find_warnings(1_000_000, fields)] == ["customer_id"]
