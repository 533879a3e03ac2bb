"""How a model's rows meet the rows already in the table, on DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Contract, WriteMode
from thermocline.transform.duck import append_overwrite, merge, scd2
from thermocline.transform.duck.session import Session
from thermocline.transform.duck.write_errors import explained
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
    """Write what a query gives, with the meaning and the errors of `spark.strategies.write`.

    `affected` names a table of keys.
    """
    require_key(contract)
    with explained(session, rows, contract):
        match contract.write:
            case WriteMode.APPEND:
                return append_overwrite.append(
                    session, rows, contract, draft, bookmark=bookmark, full=full
                )
            case WriteMode.REPLACE:
                return append_overwrite.append(
                    session, rows, contract, draft, bookmark=bookmark, full=True
                )
            case WriteMode.PARTITIONS:
                return append_overwrite.partitions(
                    session, rows, contract, draft, bookmark=bookmark, full=full, computed=computed
                )
            case WriteMode.SCD2:
                return scd2.write(session, rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE if contract.order_by:
                return merge.events(session, rows, contract, draft, bookmark=bookmark, full=full)
            case WriteMode.MERGE:
                return merge.state(
                    session, rows, contract, draft, bookmark=bookmark, full=full, affected=affected
                )
