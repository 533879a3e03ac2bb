"""Read the files of a batch with Spark into validated rows: typed columns, reasons, provenance.

There is a row for every record of the files. `batch` lands rows without a reason and quarantines
the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.engine.spark_types import quote_identifier
from thermocline.ingest import value_expressions
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import FLAW, NumberedFiles, read_numbered_lines
from thermocline.ingest.source import Source
from thermocline.ingest.spark_parquet import read_parquet
from thermocline.ingest.validation import RAW, UnknownFields, empty_frame, validate
from thermocline.ingest.value_expressions import FlawExpression, literal, member

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from thermocline.ingest.stage import StagedFile

OBJECT, EMPTY, MISMATCH = "__tc_object", "__tc_empty", "__tc_odd"
"""A JSON object's members as texts by name; whether there is no text; and whether the number of
members differs from the number of columns with a value."""

CELLS, MALFORMED = "__tc_cells", "__tc_malformed"
"""The cells of a line, c0, c1, …, and the line itself if their number is wrong."""

FIELDS = "__tc_fields"
"""All fields of a record as texts by name."""


@dataclass(frozen=True)
class TextRecords:
    """Records split into named fields that are still text.

    `texts` has a text expression for every column of the contract, and `unknown_fields` describes
    other fields. `flaws` are those of the record itself. If the condition `mismatch` (over the
    typed columns) is false, every text has become a value. `passthrough` columns are kept as they
    are.
    """

    frame: DataFrame
    texts: Mapping[str, str]
    flaws: Sequence[FlawExpression]
    unknown_fields: UnknownFields
    mismatch: str = "true"
    passthrough: tuple[str, ...] = ()


def read_files(
    spark: SparkSession,
    files: NumberedFiles,
    source: Source,
    contract: Contract,
    *,
    will_filter: bool = False,
) -> DataFrame:
    """Read and validate all records of the files, which may differ in format, header or schema.

    `will_filter` says that the caller filters the rows by their reasons.
    """
    groups: dict[tuple[str, Layout], list[tuple[int, StagedFile]]] = {}
    for index, file in files:
        if file.inspected.expanded:
            key = (file.separator, Layout.from_file(file.inspected, source, contract))
            groups.setdefault(key, []).append((index, file))
    frames = []
    for (separator, layout), members in groups.items():
        if layout.format == "parquet":
            frames.append(read_parquet(spark, members, contract))
        else:
            lines = read_numbered_lines(spark, members, separator, header=layout.header)
            frames.append(
                convert_and_validate(
                    parse_records(lines, layout, contract), contract, will_filter=will_filter
                )
            )
    if not frames:
        return empty_frame(spark, contract)
    return reduce(lambda one, other: one.unionByName(other), frames)


def parse_records(lines: DataFrame, layout: Layout, contract: Contract) -> TextRecords:
    """Parse lines (with RAW and FLAW) as records of a layout."""
    if layout.format == "jsonl":
        return parse_objects(lines, contract)
    return _parse_cells(lines, layout, contract)


def parse_objects(lines: DataFrame, contract: Contract) -> TextRecords:
    """Parse lines of JSON as records, one object per line."""
    # Parsed inside an array that ends with null: text after the object, which Spark would ignore,
    # then makes the JSON invalid or the array longer.
    text = f"concat('[', {value_expressions.exact_numbers(RAW)}, ',null]')"
    array = f"from_json({text}, 'array<map<string,string>>', {value_expressions.STRICT_JSON})"
    parsed = lines.selectExpr(
        "*", f"{RAW} is null as {EMPTY}", f"case when {FLAW} is null then {array} end as __tc_array"
    )
    frame = parsed.selectExpr(
        *lines.columns, EMPTY, f"if(size(__tc_array) = 2, __tc_array[0], null) as {OBJECT}"
    )
    texts = {column.name: member(OBJECT, column.name) for column in contract.columns}
    # If there are as many members as values, each member is known, unique and readable. Only other
    # records need a search through their members.
    filled = " + ".join(f"if({quote_identifier(name)} is null, 0, 1)" for name in texts) or "0"
    mismatch = f"coalesce(size({OBJECT}) <> {filled}, false)"
    names = f"map_keys({OBJECT})"
    is_repeated = f"({MISMATCH} and size(array_distinct({names})) < size({OBJECT}))"
    flaws = [
        FlawExpression(f"{FLAW} is not null", FLAW),
        # A message without a value is a record whose fields are all missing.
        FlawExpression(
            f"({FLAW} is null and not {EMPTY} and {OBJECT} is null)", "'not a JSON object'"
        ),
        FlawExpression(is_repeated, "'a field that is there twice'"),
        value_expressions.unpaired_surrogate(RAW),
    ]
    known = f"array({', '.join(literal(name) for name in texts)})"
    unknown = f"array_except({names}, {known})"
    # Not map_filter: Spark can only interpret it, and it fails on a map with a repeated key.
    pairs = ", ".join(f"struct({literal(n)} as key, {it} as value)" for n, it in texts.items())
    others = f"map_from_entries(array_except(map_entries({OBJECT}), array({pairs})))"
    unknown_fields = UnknownFields(
        f"({MISMATCH} and size({unknown}) > 0)",
        unknown,
        f"if({is_repeated}, null, {others})" if texts else OBJECT,
    )
    return TextRecords(frame, texts, flaws, unknown_fields, mismatch)


def extract_fields(lines: DataFrame, layout: Layout) -> DataFrame:
    """Add FIELDS to lines, regardless of a contract; null if a line cannot be parsed."""
    if layout.format == "jsonl":
        exact = value_expressions.exact_numbers(RAW)
        everything = f"from_json({exact}, 'map<string,string>', {value_expressions.STRICT_JSON})"
        return lines.selectExpr("*", f"{everything} as {FIELDS}")
    cells = ", ".join(f"{literal(n)}, {CELLS}.c{i}" for i, n in enumerate(layout.fields))
    return _split_cells(lines, layout).selectExpr(
        *lines.columns, f"if({CELLS} is null, null, map({cells})) as {FIELDS}"
    )


def _split_cells(lines: DataFrame, layout: Layout) -> DataFrame:
    cells = ", ".join(f"c{i} string" for i in range(len(layout.fields)))
    options = ", ".join(f"{literal(k)}, {literal(v)}" for k, v in layout.csv_options().items())
    parsed = f"from_csv({RAW}, {literal(f'{cells}, {MALFORMED} string')}, map({options}))"
    return lines.selectExpr("*", f"case when {FLAW} is null then {parsed} end as {CELLS}")


def _parse_cells(lines: DataFrame, layout: Layout, contract: Contract) -> TextRecords:
    sound = f"({FLAW} is null and {{}})"
    flaws = [
        FlawExpression(f"{FLAW} is not null", FLAW),
        FlawExpression(
            sound.format(layout.open_quote_condition(RAW)), "'a quote that is not closed'"
        ),
        FlawExpression(
            sound.format(f"{CELLS}.{MALFORMED} is not null"),
            literal(f"not {len(layout.fields)} cells"),
        ),
    ]
    fields = {name: f"{CELLS}.c{i}" for i, name in enumerate(layout.fields)}
    texts = {}
    for column in contract.columns:
        text = fields.pop(column.name, "cast(null as string)")
        if not value_expressions.is_nested(column.type) and str(column.type) != "string":
            # An empty cell is a missing value: writers that quote all cells write it as "".
            text = f"nullif(trim({text}), '')"
        texts[column.name] = text
    unknown_fields = UnknownFields()
    if fields:
        unknown_fields = UnknownFields(
            "true",
            f"array({', '.join(literal(name) for name in fields)})",
            f"map({', '.join(f'{literal(name)}, {it}' for name, it in fields.items())})",
        )
    return TextRecords(_split_cells(lines, layout), texts, flaws, unknown_fields)


def convert_and_validate(
    records: TextRecords, contract: Contract, *, will_filter: bool = False
) -> DataFrame:
    """Convert records to the contract's columns and validate them. See `read_files`."""
    columns = contract.columns
    frame, texts = records.frame, dict(records.texts)
    nested = [column for column in columns if value_expressions.is_nested(column.type)]
    shapes = {column.name: quote_identifier(f"__tc_shape_{i}") for i, column in enumerate(nested)}
    # Separate projections for shapes, values and reasons, so that Spark computes each once.
    frame = frame.selectExpr(
        "*",
        *(f"{value_expressions.parse(c.type, texts[c.name])} as {shapes[c.name]}" for c in nested),
    )
    frame = frame.selectExpr(
        "*",
        *(
            f"{value_expressions.value(c.type, shapes.get(c.name, texts[c.name]))}"
            f" as {quote_identifier(c.name)}"
            for c in columns
        ),
    )
    frame = frame.selectExpr("*", f"{records.mismatch} as {MISMATCH}")
    frame = _parse_once(frame) if will_filter else frame
    flaws = list(records.flaws)
    for column in columns:
        name, type_ = column.name, column.type
        if str(type_) != "string":
            typed_by = shapes.get(name, quote_identifier(name))
            flaw = value_expressions.unreadable_flaw(name, type_, texts[name], typed_by)
            flaws.append(replace(flaw, condition=f"({MISMATCH} and {flaw.condition})"))
        if name in shapes:
            flaws += value_expressions.flaws(type_, shapes[name], name)
    unknown_fields = _add_nested_unknown(records.unknown_fields, contract, shapes, texts)
    return validate(frame, contract, flaws, unknown_fields, records.passthrough)


def _parse_once(frame: DataFrame) -> DataFrame:
    """Return the same rows behind an observation, which Spark does not push filters through.

    A filter on the reasons would otherwise be pushed below the parsing, and parse each record again
    for every field that it uses.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    return frame.observe(Observation(), F.count(F.lit(1)).alias("rows"))


def _add_nested_unknown(
    outer: UnknownFields, contract: Contract, shapes: Mapping[str, str], texts: Mapping[str, str]
) -> UnknownFields:
    """Combine the unknown fields of a record with the unknown members inside its columns."""
    flags, names, saved = [outer.drifted], [outer.names], [outer.texts]
    for column in contract.columns:
        inside = []
        if column.name in shapes:
            inside = list(
                value_expressions.unknown_members(column.type, shapes[column.name], column.name)
            )
        if not inside:
            continue
        flag = " or ".join(f"coalesce({one}, false)" for one, _ in inside)
        flags.append(flag)
        names += [named for _, named in inside]
        # An unknown member has no column of its own, so the whole column's text is rescued.
        saved.append(f"if({flag}, map({literal(column.name)}, {texts[column.name]}), null)")
    if outer == UnknownFields() and len(flags) == 1:
        return outer
    drifted = " or ".join(f"({flag})" for flag in flags)
    listed = ", ".join(f"coalesce({each}, array())" for each in names)
    kept = ", ".join(f"coalesce({each}, cast(map() as map<string,string>))" for each in saved)
    return UnknownFields(
        f"({drifted})",
        f"if({drifted}, array_distinct(concat({listed})), null)",
        f"if({drifted}, map_concat({kept}), null)",
    )
