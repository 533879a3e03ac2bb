"""How a model's rows meet the rows already in the table, as its contract says.

Every strategy writes to a draft's branch, with the bookmark in the same commit as the rows. What
it leaves behind depends on the rows that ever came, not on their order or how they were batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.transform.spark import append_overwrite, merge, scd2
from thermocline.transform.spark.write_errors import explained
from thermocline.transform.write_rules import require_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from thermocline.lake.draft import Draft


def write(
    rows: DataFrame,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Mapping[str, Any] | None,
    full: bool = False,
    affected: DataFrame | None = None,
    computed: Column | append_overwrite.Partitions | None = None,
) -> int:
    """Write a model's rows to the draft and say which snapshot that made.

    With `full` the rows are everything there is to know, and take the place of the table.
    `affected` (merge without orderBy) are the keys that were computed: those without a row are
    deleted. `computed` (partitions) says which partitions were: those without a row are emptied.
    Rows that do not fit the contract raise CheckFailed, a model without a column of the contract
    raises ContractError; in both cases nothing is committed to the table.
    """
    require_key(contract)
    # Spark computes constants while it plans, so a value may fail before anything is written.
    with explained(rows, contract):
        match contract.write:
            case WriteMode.APPEND:
                return append_overwrite.append(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.REPLACE:
                return append_overwrite.replace(rows, contract, draft, bookmark=bookmark)
            case WriteMode.PARTITIONS:
                return append_overwrite.partitions(
                    rows, contract, draft, bookmark=bookmark, full=full, computed=computed
                )
            case WriteMode.SCD2:
                return scd2.write(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE if contract.order_by:
                return merge.events(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE:
                return merge.state(
                    rows, contract, draft, bookmark=bookmark, full=full, affected=affected
                )
