"""How records are written in a file: its format, its fields, and how cells are told apart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from thermocline.contract.definition import Contract
from thermocline.ingest.source import Source
from thermocline.ingest.value_expressions import literal

if TYPE_CHECKING:
    from thermocline.ingest.inspection import InspectedFile


@dataclass(frozen=True)
class Layout:
    """Enough to read a record again long after its file is gone; quarantine keeps it."""

    format: str
    fields: tuple[str, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    header: bool = False
    schema: str = ""

    @classmethod
    def from_file(cls, examined: InspectedFile, source: Source, contract: Contract) -> Layout:
        """The layout of a file; files of one layout are read together."""
        if examined.format == "parquet":
            return cls("parquet", schema=str(examined.schema))
        if examined.format == "jsonl":
            return cls("jsonl")
        options = source.options
        fields = examined.fields if options.header else tuple(c.name for c in contract.columns)
        return cls(
            "csv", fields, options.delimiter, options.quote, options.escape, options.null,
            options.header,
        )  # fmt: skip

    @classmethod
    def read(cls, text: str) -> Layout:
        """A layout that quarantine kept."""
        kept = json.loads(text)
        return cls(**{**kept, "fields": tuple(kept["fields"])})

    def to_json(self) -> str:
        """The layout as quarantine keeps it. A Parquet row is kept as JSON."""
        if self.format == "parquet":
            return Layout("jsonl").to_json()
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    def csv_options(self) -> dict[str, str]:
        """The options of Spark's CSV parser."""
        return {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": "__tc_malformed",
            "sep": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "nullValue": self.null,
            "maxCharsPerColumn": "-1",
            "lineSep": "\0",
        }

    def open_quote_condition(self, text: str) -> str:
        """A condition under which a quote in a record is opened and not closed."""
        if self.escape != self.quote:
            escape = literal(self.escape)
            pair, quote = literal(self.escape * 2), literal(self.escape + self.quote)
            text = f"replace(replace({text}, {pair}, ''), {quote}, '')" if escape else text
        return f"(length({text}) - length(replace({text}, {literal(self.quote)}, ''))) % 2 = 1"
