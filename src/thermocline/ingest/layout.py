"""The layout of records in a file: format, fields, delimiter and quoting."""

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
    """Everything needed to parse a record again after its file is gone; quarantine stores it."""

    format: str
    fields: tuple[str, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    header: bool = False
    schema: str = ""

    @classmethod
    def from_file(cls, inspected: InspectedFile, source: Source, contract: Contract) -> Layout:
        """Return the layout of a file. Files of one layout are read together."""
        if inspected.format == "parquet":
            return cls("parquet", schema=str(inspected.schema))
        if inspected.format == "jsonl":
            return cls("jsonl")
        options = source.options
        fields = inspected.fields if options.header else tuple(c.name for c in contract.columns)
        return cls(
            "csv", fields, options.delimiter, options.quote, options.escape, options.null,
            options.header,
        )  # fmt: skip

    @classmethod
    def read(cls, text: str) -> Layout:
        """Parse a layout that quarantine stored."""
        kept = json.loads(text)
        return cls(**{**kept, "fields": tuple(kept["fields"])})

    def to_json(self) -> str:
        """Format the layout for quarantine. A Parquet row is stored as JSON."""
        if self.format == "parquet":
            return Layout("jsonl").to_json()
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    def csv_options(self) -> dict[str, str]:
        """Return the options of Spark's CSV parser."""
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
        """Return a condition for a record with a quote that is not closed."""
        if self.escape != self.quote:
            escape = literal(self.escape)
            pair, quote = literal(self.escape * 2), literal(self.escape + self.quote)
            text = f"replace(replace({text}, {pair}, ''), {quote}, '')" if escape else text
        return f"(length({text}) - length(replace({text}, {literal(self.quote)}, ''))) % 2 = 1"
