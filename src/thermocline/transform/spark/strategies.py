"""Write a model's rows into its table on Spark, as its contract says.

Every strategy writes to a draft's branch, with the bookmark in the same commit as the rows. The
table depends on all rows that ever arrived, not on their order or batching.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.transform.spark import append_overwrite, merge, scd2
from thermocline.transform.spark.write_errors import explain_errors
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
    """Write a model's rows to the draft and return the new snapshot.

    With `full`, the rows replace the whole table. `affected` (merge without orderBy) are the keys
    that were computed: those without a row are deleted. `computed` (partitions) are the partitions
    that were computed: those without a row are emptied. Rows that do not fit the contract raise
    CheckFailed, a model without a column of the contract raises ContractError; in both cases
    nothing is committed to the table.
    """
    require_key(contract)
    # Spark computes constants while it plans, so a value may fail before anything is written.
    with explain_errors(rows, contract):
        match contract.write:
            case WriteMode.PARTITIONS if not full:
                return append_overwrite.partitions(
                    rows, contract, draft, bookmark=bookmark, computed=computed
                )
            case WriteMode.APPEND | WriteMode.REPLACE | WriteMode.PARTITIONS:
                full = full or contract.write is not WriteMode.APPEND
                return append_overwrite.append(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.SCD2:
                return scd2.write(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE if contract.order_by:
                return merge.write_events(rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE:
                return merge.write_states(
                    rows, contract, draft, bookmark=bookmark, full=full, affected=affected
                )
