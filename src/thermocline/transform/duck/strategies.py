"""Write a model's rows into its table on DuckDB, as its contract says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.transform.duck import append_overwrite, merge, scd2
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import explain_errors
from thermocline.transform.write_rules import require_key

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft


def write(
    session: Session,
    rows: str,
    contract: Contract,
    draft: Draft,
    *,
    bookmark: Mapping[str, Any] | None,
    full: bool = False,
    affected: str | None = None,
    computed: Any = None,
) -> int:
    """Write a query's rows, with the semantics and the errors of `spark.strategies.write`.

    `affected` is the name of a table of keys.
    """
    require_key(contract)
    with explain_errors(session, rows, contract):
        match contract.write:
            case WriteMode.PARTITIONS if not full:
                return append_overwrite.partitions(
                    session, rows, contract, draft, bookmark=bookmark, computed=computed
                )
            case WriteMode.APPEND | WriteMode.REPLACE | WriteMode.PARTITIONS:
                full = full or contract.write is not WriteMode.APPEND
                return append_overwrite.append(
                    session, rows, contract, draft, bookmark=bookmark, full=full
                )
            case WriteMode.SCD2:
                return scd2.write(session, rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE if contract.order_by:
                return merge.write_events(
                    session, rows, contract, draft, bookmark=bookmark, full=full
                )
            case WriteMode.MERGE:
                return merge.write_states(
                    session, rows, contract, draft, bookmark=bookmark, full=full, affected=affected
                )
