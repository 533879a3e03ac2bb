"""The form in which every record is judged, whatever file it came from.

FILE is the file's number in its batch, POSITION the record's number in the file, RAW its text,
BAD whether anything stands against it, REASONS what (empty when nothing does), DRIFTED whether it
has fields that the contract does not name, UNKNOWN their names, RESCUED their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.check.violating_rows import row_breaks, row_reasons
from thermocline.contract.definition import INGEST_COLUMNS, MESSAGE_COLUMNS, Contract, DriftMode
from thermocline.engine.spark_types import quote_identifier
from thermocline.ingest.value_expressions import FlawExpression, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE, POSITION, RAW = "__tc_file", "__tc_position", "__tc_raw"
BAD, REASONS = "__tc_bad", "__tc_reasons"
HAS_DRIFT, UNKNOWN_FIELDS, RESCUED = "__tc_drifted", "__tc_unknown", "_rescued"

KEY, HEADERS, EVENT_TIME, PAYLOAD = "__tc_key", "__tc_headers", "__tc_event_time", "__tc_payload"
MESSAGE = {"_key": KEY, "_headers": HEADERS, "_event_time": EVENT_TIME, "_raw": PAYLOAD}
"""What comes with a message: the columns of bronze, and where they are on the way there."""

NO_NAMES = "cast(null as array<string>)"
NO_TEXTS = "cast(null as map<string,string>)"


@dataclass(frozen=True)
class UnknownFields:
    """Expressions for fields that the contract does not name: whether, which, their texts."""

    drifted: str = "false"
    names: str = NO_NAMES
    texts: str = NO_TEXTS


def validate(
    frame: DataFrame,
    contract: Contract,
    flaws: Sequence[FlawExpression],
    stray: UnknownFields,
    carried: Sequence[str] = (),
) -> DataFrame:
    """Rows that already have the contract's columns, with what stands against each."""
    rescued = NO_TEXTS if contract.drift is DriftMode.REFUSE else stray.texts
    return frame.selectExpr(
        FILE,
        POSITION,
        RAW,
        f"{_bad_expression(flaws, contract)} as {BAD}",
        f"{_reasons_expression(flaws, contract)} as {REASONS}",
        f"{stray.drifted} as {HAS_DRIFT}",
        f"{stray.names} as {UNKNOWN_FIELDS}",
        f"{rescued} as {RESCUED}",
        *carried,
        *(quote_identifier(column.name) for column in contract.columns),
    )


def strip_provenance(contract: Contract) -> Contract:
    """The contract of what a source brings: an author may list provenance columns, we fill them."""
    system = INGEST_COLUMNS + MESSAGE_COLUMNS if contract.messages else INGEST_COLUMNS
    ours = {column.name for column in system}
    return replace(contract, columns=tuple(c for c in contract.columns if c.name not in ours))


def reject_unknown_fields(frame: DataFrame) -> DataFrame:
    """Rows whose fields the contract does not name are bad ones: where each is judged alone.

    A file with such a field can wait as a whole until somebody has looked at it; a message cannot.
    """
    said = f"concat('fields that the contract does not name: ', array_join({UNKNOWN_FIELDS}, ', '))"
    reasons = f"if({HAS_DRIFT} and size({REASONS}) = 0, array({said}), {REASONS})"
    kept = (name for name in frame.columns if name not in {BAD, REASONS, HAS_DRIFT})
    return frame.selectExpr(
        *(quote_identifier(name) for name in kept),
        f"{BAD} or {HAS_DRIFT} as {BAD}",
        f"{reasons} as {REASONS}",
        f"false as {HAS_DRIFT}",
    )


def empty_frame(spark: SparkSession, contract: Contract) -> DataFrame:
    """No rows, in the same form."""
    columns = [f"{quote_identifier(c.name)} {spark_type(c.type)}" for c in contract.columns]
    fixed = (
        f"{FILE} int, {POSITION} long, {RAW} string, {BAD} boolean, {REASONS} array<string>, "
        f"{HAS_DRIFT} boolean, "
        f"{UNKNOWN_FIELDS} array<string>, {RESCUED} map<string,string>"
    )
    return spark.createDataFrame([], ", ".join([fixed, *columns]))


def _bad_expression(flaws: Sequence[FlawExpression], contract: Contract) -> str:
    """Whether there is a reason. Apart from the reasons, which Spark can only interpret: where
    nothing else is asked, it compiles reading, judging and writing into one loop."""
    return " or ".join([*_flaw_conditions(flaws), row_breaks(contract, "spark")])


def _flaw_conditions(flaws: Sequence[FlawExpression]) -> list[str]:
    return [f"coalesce({flaw.when}, false)" for flaw in flaws]


def _reasons_expression(flaws: Sequence[FlawExpression], contract: Contract) -> str:
    """What could not be read, or else, in a row that could, the rules it breaks."""
    rules = row_reasons(contract, "spark")
    if not flaws:
        return rules
    # First a cheap yes or no for the many good rows, then words for the few bad ones.
    said = ", ".join(f"case when {flaw.when} then {flaw.says} end" for flaw in flaws)
    any_flaw = " or ".join(_flaw_conditions(flaws))
    return f"if({any_flaw}, filter(array({said}), r -> r is not null), {rules})"
