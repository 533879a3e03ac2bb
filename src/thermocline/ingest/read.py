"""Files of one batch as judged rows: typed columns, the reasons against a row, where it came from.

Nothing is decided here. There is a row for every record of the files; `files` lands those without
a reason and quarantines the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.contract.types import Decimal
from thermocline.engine.spark_types import quoted
from thermocline.ingest import values
from thermocline.ingest.judge import RAW, Stray, judged, nothing
from thermocline.ingest.layout import Layout
from thermocline.ingest.lines import FLAW, Numbered, numbered_lines
from thermocline.ingest.parquet import parquet_rows
from thermocline.ingest.source import Source
from thermocline.ingest.values import Flaw, literal, member

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from thermocline.ingest.stage import Staged

OBJECT = "__tc_object"
"""A JSON object's members as texts."""


@dataclass(frozen=True)
class Records:
    """Records whose fields can be named, but are still text.

    `fields` are the fields that all records have, with the expression of each one's text; None
    where a record names its own, in OBJECT. `flaws` are those of the record itself. `source` is
    the JSON text that numbers of many digits are read from; `carried` columns are passed through.
    """

    frame: DataFrame
    fields: Mapping[str, str] | None
    flaws: Sequence[Flaw]
    source: str | None = None
    carried: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """The expression of a field's text."""
        if self.fields is None:
            return member(OBJECT, name)
        return self.fields.get(name, "cast(null as string)")


def read(spark: SparkSession, files: Numbered, source: Source, contract: Contract) -> DataFrame:
    """All records of the files, judged. Files may differ in format, header or schema."""
    groups: dict[tuple[str, Layout], list[tuple[int, Staged]]] = {}
    for index, file in files:
        if file.examined.expanded:
            key = (file.separator, Layout.of(file.examined, source, contract))
            groups.setdefault(key, []).append((index, file))
    frames = []
    for (separator, layout), members in groups.items():
        if layout.format == "parquet":
            frames.append(parquet_rows(spark, members, contract))
        else:
            lines = numbered_lines(spark, members, separator, header=layout.header)
            frames.append(typed(records(lines, layout), contract))
    if not frames:
        return nothing(spark, contract)
    return reduce(lambda one, other: one.unionByName(other), frames)


def records(lines: DataFrame, layout: Layout) -> Records:
    """Lines (RAW and FLAW among their columns) as records of a layout."""
    return objects(lines) if layout.format == "jsonl" else _cells(lines, layout)


def objects(lines: DataFrame) -> Records:
    """Lines of JSON as records, one object a line."""
    # Parsed as an array that a null of ours ends: what follows the object on its line, and what
    # Spark would pass over, then makes the text invalid or the array longer.
    text = f"concat('[', {RAW}, ',null]')"
    array = f"from_json({text}, 'array<map<string,string>>', {values.STRICT_JSON})"
    parsed = lines.selectExpr("*", f"case when {FLAW} is null then {array} end as __tc_array")
    frame = parsed.selectExpr(
        *lines.columns, f"if(size(__tc_array) = 2, __tc_array[0], null) as {OBJECT}"
    )
    flaws = [
        Flaw(f"{FLAW} is not null", FLAW),
        # A message without a value is a record of its own, whose fields are all missing.
        Flaw(f"({FLAW} is null and {RAW} is not null and {OBJECT} is null)", "'not a JSON object'"),
    ]
    return Records(frame, None, flaws, RAW)


def _cells(lines: DataFrame, layout: Layout) -> Records:
    cells = ", ".join(f"c{i} string" for i in range(len(layout.fields)))
    options = ", ".join(f"{literal(k)}, {literal(v)}" for k, v in layout.csv_options().items())
    parsed = f"from_csv({RAW}, {literal(f'{cells}, __tc_malformed string')}, map({options}))"
    frame = lines.selectExpr("*", f"case when {FLAW} is null then {parsed} end as __tc_cells")
    sound = f"({FLAW} is null and {{}})"
    flaws = [
        Flaw(f"{FLAW} is not null", FLAW),
        Flaw(sound.format(layout.unbalanced(RAW)), "'a quote that is not closed'"),
        Flaw(
            sound.format("__tc_cells.__tc_malformed is not null"),
            literal(f"not {len(layout.fields)} cells"),
        ),
    ]
    fields = {name: f"__tc_cells.c{i}" for i, name in enumerate(layout.fields)}
    return Records(frame, fields, flaws)


def typed(found: Records, contract: Contract) -> DataFrame:
    """Records with the contract's columns, judged."""
    columns = contract.columns
    texts = {column.name: found.text(column.name) for column in columns}
    if found.fields is not None:
        for column in columns:
            if not values.is_nested(column.type) and str(column.type) != "string":
                # An empty cell is no number: who quotes all cells writes a missing one like this.
                texts[column.name] = f"nullif(trim({texts[column.name]}), '')"
    frame = found.frame
    if found.source is not None:
        frame, exact = _exact(frame, found.source, contract, texts)
        texts |= exact
    nested = [column for column in columns if values.is_nested(column.type)]
    shapes = {column.name: quoted(f"__tc_shape_{i}") for i, column in enumerate(nested)}
    # A projection each for shapes, values and reasons: Spark then computes each of them once.
    frame = frame.selectExpr(
        "*", *(f"{values.parsed(c.type, texts[c.name])} as {shapes[c.name]}" for c in nested)
    )
    frame = frame.selectExpr(
        "*",
        *(
            f"{values.value(c.type, shapes.get(c.name, texts[c.name]))} as {quoted(c.name)}"
            for c in columns
        ),
    )
    flaws = list(found.flaws)
    for column in columns:
        name, type_ = column.name, column.type
        if str(type_) != "string":
            typed_by = shapes.get(name, quoted(name))
            flaws.append(values.unreadable(name, type_, texts[name], typed_by))
        if name in shapes:
            flaws += values.flaws(type_, shapes[name], name)
    stray = _stray(found, contract, shapes, texts)
    return _parsed_once(judged(frame, contract, flaws, stray, found.carried))


def _parsed_once(frame: DataFrame) -> DataFrame:
    """The same rows, behind a count that Spark moves no filter across.

    A filter on the reasons would otherwise go below the parsing, and parse each record again for
    every field that it looks at.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    return frame.observe(Observation(), F.count(F.lit(1)).alias("rows"))


def _exact(
    frame: DataFrame, source: str, contract: Contract, texts: Mapping[str, str]
) -> tuple[DataFrame, dict[str, str]]:
    """Read decimals of many digits once more, from the line itself and not through a double."""
    wide = {
        column.name: f"decimal(38,{38 - (column.type.precision - column.type.scale)})"
        for column in contract.columns
        if isinstance(column.type, Decimal) and column.type.precision > values.EXACT_DIGITS
    }
    if not wide:
        return frame, {}
    fields = literal(", ".join(f"{quoted(name)} {type_}" for name, type_ in wide.items()))
    exact = f"case when {OBJECT} is not null then from_json({source}, {fields}) end"
    read = {
        name: f"coalesce(cast(__tc_exact.{quoted(name)} as string), {texts[name]})" for name in wide
    }
    return frame.selectExpr("*", f"{exact} as __tc_exact"), read


def _stray(
    found: Records, contract: Contract, shapes: Mapping[str, str], texts: Mapping[str, str]
) -> Stray:
    """Fields that the contract does not name, at the top of a record and inside its columns."""
    known = [column.name for column in contract.columns]
    flags: list[str] = []
    names: list[str] = []
    saved: list[str] = []
    if found.fields is None:
        listed = ", ".join(literal(name) for name in known)
        stray = f"map_filter({OBJECT}, (k, v) -> k not in ({listed}))"
        flags = [f"coalesce(exists(map_keys({OBJECT}), k -> k not in ({listed})), false)"]
        names, saved = [f"map_keys({stray})"], [stray]
    elif more := [name for name in found.fields if name not in known]:
        flags = ["true"]
        names = [f"array({', '.join(literal(name) for name in more)})"]
        saved = [f"map({', '.join(f'{literal(n)}, {found.fields[n]}' for n in more)})"]
    for column in contract.columns:
        inside = []
        if column.name in shapes:
            inside = list(values.unknown(column.type, shapes[column.name], column.name))
        if not inside:
            continue
        flag = " or ".join(f"coalesce({one}, false)" for one, _ in inside)
        flags.append(flag)
        names += [f"coalesce({named}, array())" for _, named in inside]
        # A member inside a column has no place of its own: the whole column's text is kept.
        one = f"map({literal(column.name)}, {texts[column.name]})"
        saved.append(f"if({flag}, {one}, cast(map() as map<string,string>))")
    if not flags:
        return Stray()
    drifted = " or ".join(flags)
    return Stray(
        f"({drifted})",
        f"if({drifted}, array_distinct(concat({', '.join(names)})), null)",
        f"if({drifted}, map_concat({', '.join(saved)}), null)",
    )
