"""How a model's rows meet the rows already in the table, as its contract says.

Every strategy writes to a draft's branch, with the bookmark in the same commit as the rows. What
it leaves behind depends on the rows that ever came, not on their order or how they were batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, Write
from thermocline.errors import ContractError
from thermocline.transform.strategies import merge, plain, scd2
from thermocline.transform.strategies.failures import explained

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
    computed: Column | plain.Partitions | None = None,
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
            case Write.APPEND:
                return plain.append(rows, contract, draft, bookmark=bookmark, full=full)
            case Write.REPLACE:
                return plain.replace(rows, contract, draft, bookmark=bookmark)
            case Write.PARTITIONS:
                return plain.partitions(
                    rows, contract, draft, bookmark=bookmark, full=full, computed=computed
                )
            case Write.SCD2:
                return scd2.write(rows, contract, draft, bookmark=bookmark, full=full)
            case Write.MERGE if contract.order_by:
                return merge.events(rows, contract, draft, bookmark=bookmark, full=full)
            case Write.MERGE:
                return merge.state(
                    rows, contract, draft, bookmark=bookmark, full=full, affected=affected
                )


def require_key(contract: Contract) -> None:
    """Refuse a contract whose strategy finds rows by their key, and that has none."""
    if contract.write in {Write.MERGE, Write.SCD2} and not contract.key:
        raise ContractError(
            [f"{contract.table}: {contract.write} needs a key."],
            "Mark the key's columns with primaryKey: true in the contract.",
        )
