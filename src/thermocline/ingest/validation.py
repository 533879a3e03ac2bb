"""The form of validated records, and Spark expressions that produce it.

FILE is the file's number in its batch, POSITION the record's number in the file, and RAW its text.
BAD says whether the record is bad, and REASONS lists why (empty if it is good). HAS_DRIFT says
whether it has fields that the contract does not name, UNKNOWN_FIELDS lists their names, and RESCUED
has their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.check.violating_rows import compile_row_reasons, compile_row_violation
from thermocline.contract.definition import INGEST_COLUMNS, MESSAGE_COLUMNS, Contract, DriftMode
from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.ingest.value_expressions import FlawExpression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE, POSITION, RAW = "__tc_file", "__tc_position", "__tc_raw"
BAD, REASONS = "__tc_bad", "__tc_reasons"
HAS_DRIFT, UNKNOWN_FIELDS, RESCUED = "__tc_drifted", "__tc_unknown", "_rescued"

KEY, HEADERS, EVENT_TIME, PAYLOAD = "__tc_key", "__tc_headers", "__tc_event_time", "__tc_payload"
MESSAGE = {"_key": KEY, "_headers": HEADERS, "_event_time": EVENT_TIME, "_raw": PAYLOAD}
"""The message columns of bronze, and their names in validated records."""

NO_NAMES = "cast(null as array<string>)"
NO_TEXTS = "cast(null as map<string,string>)"


@dataclass(frozen=True)
class UnknownFields:
    """Expressions for fields that the contract does not name: a condition, names and texts."""

    drifted: str = "false"
    names: str = NO_NAMES
    texts: str = NO_TEXTS


def validate(
    frame: DataFrame,
    contract: Contract,
    flaws: Sequence[FlawExpression],
    unknown_fields: UnknownFields,
    passthrough: Sequence[str] = (),
) -> DataFrame:
    """Add BAD, REASONS and drift columns to rows that have the contract's columns."""
    rescued = NO_TEXTS if contract.drift is DriftMode.REFUSE else unknown_fields.texts
    return frame.selectExpr(
        FILE,
        POSITION,
        RAW,
        f"{_bad_expression(flaws, contract)} as {BAD}",
        f"{_reasons_expression(flaws, contract)} as {REASONS}",
        f"{unknown_fields.drifted} as {HAS_DRIFT}",
        f"{unknown_fields.names} as {UNKNOWN_FIELDS}",
        f"{rescued} as {RESCUED}",
        *passthrough,
        *(quote_identifier(column.name) for column in contract.columns),
    )


def strip_provenance(contract: Contract) -> Contract:
    """Return the contract without provenance columns, which ingestion fills itself."""
    system = INGEST_COLUMNS + MESSAGE_COLUMNS if contract.messages else INGEST_COLUMNS
    provenance = {column.name for column in system}
    return replace(contract, columns=tuple(c for c in contract.columns if c.name not in provenance))


def reject_unknown_fields(frame: DataFrame) -> DataFrame:
    """Mark rows with unknown fields as bad: for messages and replays, which are decided one by one.

    A file with such a field can be refused as a whole; a message cannot.
    """
    message = (
        f"concat('fields that the contract does not name: ', array_join({UNKNOWN_FIELDS}, ', '))"
    )
    reasons = f"if({HAS_DRIFT} and size({REASONS}) = 0, array({message}), {REASONS})"
    kept = (name for name in frame.columns if name not in {BAD, REASONS, HAS_DRIFT})
    return frame.selectExpr(
        *(quote_identifier(name) for name in kept),
        f"{BAD} or {HAS_DRIFT} as {BAD}",
        f"{reasons} as {REASONS}",
        f"false as {HAS_DRIFT}",
    )


def empty_frame(spark: SparkSession, contract: Contract) -> DataFrame:
    """Return a frame without rows in the form of validated records."""
    columns = [f"{quote_identifier(c.name)} {to_ddl(c.type)}" for c in contract.columns]
    fixed = (
        f"{FILE} int, {POSITION} long, {RAW} string, {BAD} boolean, {REASONS} array<string>, "
        f"{HAS_DRIFT} boolean, "
        f"{UNKNOWN_FIELDS} array<string>, {RESCUED} map<string,string>"
    )
    return spark.createDataFrame([], ", ".join([fixed, *columns]))


def _bad_expression(flaws: Sequence[FlawExpression], contract: Contract) -> str:
    """Return a condition for a bad row, separate from the reasons.

    Spark can only interpret the reasons. Without them it compiles reading, validating and writing
    into one loop.
    """
    return " or ".join([*_flaw_conditions(flaws), compile_row_violation(contract, "spark")])


def _flaw_conditions(flaws: Sequence[FlawExpression]) -> list[str]:
    return [f"coalesce({flaw.condition}, false)" for flaw in flaws]


def _reasons_expression(flaws: Sequence[FlawExpression], contract: Contract) -> str:
    """Return the flaws of a row, or, if it has none, the rules that it violates."""
    rules = compile_row_reasons(contract, "spark")
    if not flaws:
        return rules
    # First a cheap condition for the many good rows, then texts for the few bad ones.
    message = ", ".join(f"case when {flaw.condition} then {flaw.reason} end" for flaw in flaws)
    any_flaw = " or ".join(_flaw_conditions(flaws))
    return f"if({any_flaw}, filter(array({message}), r -> r is not null), {rules})"
