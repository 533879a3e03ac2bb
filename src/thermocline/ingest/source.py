"""Sources: where raw data comes from, and into which bronze table it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from thermocline.contract.identifiers import check_name
from thermocline.contract.problems import Problem, ProblemReport, did_you_mean, quote
from thermocline.errors import BadInput, ContractError
from thermocline.lake.companions import quarantine_of

FORMATS = ("auto", "jsonl", "csv", "parquet")
MAX_LINE_BYTES = 16 * 1024 * 1024
BAD_SHARE = 0.5
ENCODINGS = ("utf-8", "latin-1", "iso-8859-1", "cp1252", "windows-1252", "utf-16")

# kind → the module that reads its settings (KEYS, read) and opens it (open_feed)
KINDS = {
    "files": "",
    "kafka": "thermocline.ingest.kafka.source",
    "postgres": "thermocline.ingest.postgres.source",
    "api": "thermocline.ingest.api.source",
}
_COMMON_KEYS = ("name", "kind", "target", "badShare", "batch", "description")
_FILE_KEYS = ("path", "pattern", "format", "options", "maxLineBytes", "settle", "lane")
LANES = ("auto", "spark")


@dataclass(frozen=True)
class TextOptions:
    """The format of text files. `null` is the text of a missing value in a CSV cell."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    header: bool = True
    null: str = ""
    multiline: bool = False
    encoding: str = "utf-8"


@dataclass(frozen=True)
class BatchLimits:
    """The limits of one batch; the first one reached applies."""

    rows: int = 500_000
    bytes: int = 256 << 20


@dataclass(frozen=True)
class Source:
    """Where raw data comes from, and the table it feeds.

    For files this is a landing folder: `path` on local disk (absolute) or on S3. For other kinds
    `connection` holds the settings that the kind's module read. `max_line_bytes` limits a record.
    `bad_share` is the share of bad rows above which a whole batch is refused. A file that changed
    within the last `settle` seconds counts as growing. `lane` is "spark" to read all files with
    Spark.
    """

    name: str
    path: str
    target: str
    pattern: str = "*"
    format: str = "auto"
    options: TextOptions = field(default_factory=TextOptions)
    max_line_bytes: int = MAX_LINE_BYTES
    bad_share: float = BAD_SHARE
    settle: float = 0.0
    lane: str = "auto"
    kind: str = "files"
    limits: BatchLimits = field(default_factory=BatchLimits)
    connection: Any = None
    defined_in: Path | None = field(default=None, compare=False)

    @property
    def quarantine(self) -> str:
        """The table that keeps this source's bad rows."""
        return quarantine_of(self.target)

    @property
    def has_messages(self) -> bool:
        """Whether records are messages, each with a key, a time and a payload."""
        return self.kind != "files"

    @property
    def is_remote(self) -> bool:
        """Whether the files lie on S3."""
        return self.path.startswith("s3://")

    def matches(self, name: str) -> bool:
        """Whether the pattern matches this file's path in the folder or its last part."""
        last = name.rpartition("/")[2]
        return fnmatchcase(name, self.pattern) or fnmatchcase(last, self.pattern)


def load_sources(folder: Path | str, *, warehouse: str | None = None) -> dict[str, Source]:
    """Load all sources of a project's `sources` folder by name; none if there is no such folder.

    All problems of all files are reported together, with file and line. `path` is relative to the
    project, the parent of `sources`. A landing folder and the warehouse must not contain one
    another.
    """
    folder = Path(folder).absolute()
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for path in sorted(p for p in folder.glob("*") if p.suffix in {".yaml", ".yml"}):
        source, found = _load(path, folder.parent, warehouse)
        problems += found
        if source is None:
            continue
        if source.name in sources:
            what = f"{quote(source.name)} is defined in two files"
            problems.append(Problem(_short_path(path, folder), 1, "name", what, "rename one"))
        for other in sources.values():
            if other.target == source.target and other.has_messages != source.has_messages:
                what = f"{source.target} already takes files or messages of {quote(other.name)}"
                problems.append(
                    Problem(_short_path(path, folder), 1, "target", what, "choose another table")
                )
            if other.target != source.target and other.quarantine == source.quarantine:
                what = f"{source.quarantine} already keeps the bad rows for {other.target}"
                problems.append(
                    Problem(
                        _short_path(path, folder), 1, "target", what, "give the table another name"
                    )
                )
        sources[source.name] = source
    if problems:
        what = "that" if len(problems) == 1 else f"those {len(problems)} problems"
        raise ContractError(list(problems), f"Fix {what} in the source. Nothing was read.")
    return sources


def find_source(sources: Mapping[str, Source], name: str) -> Source:
    """Return a source by name; the error for an unknown name lists the existing ones."""
    if name in sources:
        return sources[name]
    known = ", ".join(sorted(sources)) or "none"
    raise BadInput(f"There is no source {quote(name)}.", f"The project's sources: {known}.")


def _load(path: Path, project: Path, warehouse: str | None) -> tuple[Source | None, list[Problem]]:
    from thermocline.contract.odcs.yaml_lines import MAX_BYTES, read_document

    with path.open("rb") as file:
        document = read_document(file.read(MAX_BYTES + 1))
    report = ProblemReport(_short_path(path, path.parent), document.line)
    for flaw in document.problems:
        report.problems.append(Problem(report.path, flaw.line, "", flaw.what, flaw.hint))
    if document.root is None:
        return None, report.problems
    if not isinstance(document.data, dict):
        report.add((), "", "a source is a mapping of settings", "begin with name:")
        return None, report.problems
    source = _read_source(SettingsReader(document.data, report, project), path, warehouse)
    return (None if report.problems else source), report.problems


class SettingsReader:
    """Reads the settings of one source and reports what is wrong with each."""

    def __init__(self, data: Mapping[str, Any], report: ProblemReport, project: Path) -> None:
        self.data = data
        self.report = report
        self.project = project

    def report_flaw(self, key: str, what: str, hint: str = "") -> None:
        """Report what is wrong with a setting."""
        self.report.add((key,), key, what, hint)

    def required_text(self, key: str, hint: str) -> str:
        """Return a required text."""
        if key not in self.data:
            self.report.add_missing((), key, "is missing", hint)
            return ""
        return self.text(key, "")

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            self.report_flaw(key, f"{quote(value)} is not a text")
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; a single text may be written without a list."""
        value = self.data.get(key, [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            self.report_flaw(key, f"{quote(value)} is not a list of texts")
            return ()
        return tuple(listed)

    def one_of(self, key: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed values."""
        value = self.text(key, default)
        if value not in allowed:
            hint = did_you_mean(value, tuple(allowed)) or f"use {', '.join(allowed)}"
            self.report_flaw(key, f"{quote(value)} is not in this version", hint)
        return value

    def number(self, key: str, default: float, minimum: float, maximum: float) -> float:
        """Return a number between `minimum` and `maximum`, both included."""
        value: object = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.report_flaw(key, f"{quote(value)} is not a number")
            return default
        if not minimum <= value <= maximum:
            self.report_flaw(key, f"{value:g} is not between {minimum:g} and {maximum:g}")
            return default
        number: float = value
        return number

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a mapping of names to values."""
        value = self.data.get(key) or {}
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            self.report_flaw(key, "must be a mapping")
            return {}
        return value

    def file(self, key: str) -> Path | None:
        """Return the path of a file of the project, if the setting exists."""
        if key not in self.data:
            return None
        path = (self.project / self.text(key, "")).absolute()
        if not path.resolve().is_relative_to(self.project.resolve()) or not path.is_file():
            self.report_flaw(key, f"{quote(self.data[key])} is no file of the project")
        return path


def _read_source(fields: SettingsReader, path: Path, warehouse: str | None) -> Source:
    kind = fields.one_of("kind", "files", tuple(KINDS))
    module = _load_module(kind)
    known = (*_COMMON_KEYS, *(module.KEYS if module else _FILE_KEYS))
    for key in fields.data:
        if key not in known:
            fields.report.add((key,), "", f"unknown {quote(key)}", did_you_mean(key, known))
    source = Source(
        name=_read_name(fields, path),
        path="",
        target=_read_target(fields),
        bad_share=fields.number("badShare", BAD_SHARE, 0, 1),
        kind=kind,
        limits=_read_limits(fields),
        defined_in=path,
    )
    if module is not None:
        return replace(source, connection=module.read(fields))
    return replace(
        source,
        path=_read_location(fields, warehouse),
        pattern=fields.text("pattern", "*"),
        format=fields.one_of("format", "auto", FORMATS),
        options=_read_options(fields),
        max_line_bytes=int(fields.number("maxLineBytes", MAX_LINE_BYTES, 1, 1 << 30)),
        settle=fields.number("settle", 0, 0, 86_400),
        lane=fields.one_of("lane", "auto", LANES),
    )


def _load_module(kind: str) -> Any:
    """Return the module that reads and opens a kind of source; None for files."""
    place = KINDS.get(kind)
    return import_module(place) if place else None


def _read_name(fields: SettingsReader, path: Path) -> str:
    name = fields.text("name", path.stem)
    flaw = check_name(name, 128)
    if flaw:
        fields.report_flaw("name", *flaw)
    return name


def _read_target(fields: SettingsReader) -> str:
    if "target" not in fields.data:
        fields.required_text("target", "name the table, as bronze.raw_orders")
        return "bronze.missing"
    target = fields.text("target", "")
    layer, _, name = target.partition(".")
    flaw = check_name(name, 128)
    if layer != "bronze" or flaw:
        hint = "raw data lands in bronze: write it as bronze.raw_orders"
        fields.report_flaw("target", f"{quote(target)} cannot be a target", hint)
    return target


def _read_limits(fields: SettingsReader) -> BatchLimits:
    limits = SettingsReader(fields.mapping("batch"), fields.report, fields.project)
    for key in limits.data:
        if key not in {"rows", "bytes"}:
            hint = did_you_mean(key, ("rows", "bytes"))
            fields.report.add(("batch", key), "batch", f"unknown {quote(key)}", hint)
    return BatchLimits(
        int(limits.number("rows", BatchLimits.rows, 1, 1 << 40)),
        int(limits.number("bytes", BatchLimits.bytes, 1, 1 << 50)),
    )


def _read_location(fields: SettingsReader, warehouse: str | None) -> str:
    if "path" not in fields.data:
        return fields.required_text("path", "name the landing folder")
    text = fields.text("path", "")
    if "\0" in text or ".." in PurePosixPath(text).parts or not text.strip():
        fields.report_flaw("path", f"{quote(text)} cannot be used", "leave out '..'")
        return ""
    if "://" in text and not text.startswith("s3://"):
        hint = "use a folder, or s3://bucket/prefix"
        fields.report_flaw("path", f"{quote(text)} is not in this version", hint)
        return ""
    location = text.rstrip("/") if "://" in text else str((fields.project / text).absolute())
    if warehouse and folders_overlap(location, warehouse):
        what = "the landing folder and the warehouse overlap"
        hint = "keep raw files outside the warehouse, and the warehouse outside the folder"
        fields.report_flaw("path", what, hint)
    return location


def _read_options(fields: SettingsReader) -> TextOptions:
    known = TextOptions.__dataclass_fields__
    values: dict[str, Any] = {}
    for key, value in fields.mapping("options").items():
        flaw = _explain_option(key, value)
        if key not in known:
            hint = did_you_mean(key, tuple(known))
            fields.report.add(("options", key), "options", f"unknown {quote(key)}", hint)
        elif flaw:
            fields.report.add(("options", key), f"options.{key}", flaw)
        else:
            values[key] = value.lower() if key == "encoding" else value
    return TextOptions(**values)


def _explain_option(key: str, value: Any) -> str | None:
    if key in {"header", "multiline"}:
        return None if isinstance(value, bool) else f"{quote(value)} is not true or false"
    if not isinstance(value, str):
        return f"{quote(value)} is not a text"
    if key in {"delimiter", "quote", "escape"} and (len(value) != 1 or value in "\r\n\0"):
        return f"{quote(value)} is not one character"
    if key == "encoding" and value.lower() not in ENCODINGS:
        return f"{quote(value)} is not in this version; use {', '.join(ENCODINGS)}"
    return None


def folders_overlap(landing: str, warehouse: str) -> bool:
    """Whether one of two locations contains the other."""
    if landing.startswith("s3://") != warehouse.startswith("s3://"):
        return False
    if landing.startswith("s3://"):
        one, other = landing.rstrip("/") + "/", warehouse.rstrip("/") + "/"
        return one.startswith(other) or other.startswith(one)
    first, second = Path(landing).resolve(), Path(warehouse).resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _short_path(path: Path, folder: Path) -> str:
    return f"{folder.name}/{path.name}"
