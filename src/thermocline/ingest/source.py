"""What a source is: where raw data comes from, and into which bronze table it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from thermocline.contract.names import flaw_of_name
from thermocline.contract.problems import Problem, Report, did_you_mean, shown
from thermocline.errors import BadInput, ContractError

FORMATS = ("auto", "jsonl", "csv", "parquet")
MAX_LINE_BYTES = 16 * 1024 * 1024
BAD_SHARE = 0.5
ENCODINGS = ("utf-8", "latin-1", "iso-8859-1", "cp1252", "windows-1252", "utf-16")

_KEYS = (
    "name", "kind", "path", "pattern", "format", "target", "options", "maxLineBytes", "badShare",
    "settle", "description",
)  # fmt: skip


@dataclass(frozen=True)
class TextOptions:
    """How text files are written. `null` is what stands for a missing value in a CSV cell."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    header: bool = True
    null: str = ""
    multiline: bool = False
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Source:
    """A landing folder, on local disk (an absolute path) or on S3, and the table it feeds.

    `max_line_bytes` bounds a record; `bad_share` is the share of bad rows above which a batch is
    refused as a whole; a file that changed within the last `settle` seconds is still growing.
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
    kind: str = "files"
    defined_in: Path | None = field(default=None, compare=False)

    @property
    def quarantine(self) -> str:
        """The table that keeps this source's bad rows."""
        return f"quarantine.{self.target.split('.', 1)[1]}"

    @property
    def remote(self) -> bool:
        """Whether the files lie on S3."""
        return self.path.startswith("s3://")

    def wants(self, name: str) -> bool:
        """Whether the pattern names this file, by its path in the folder or by its last part."""
        return fnmatchcase(name, self.pattern) or fnmatchcase(
            PurePosixPath(name).name, self.pattern
        )


def load_sources(folder: Path | str, *, warehouse: str | None = None) -> dict[str, Source]:
    """All sources of a project's `sources` folder by name; none when there is no such folder.

    Every problem of every file is reported together, with file and line. `path` is meant from
    the project, the folder that holds `sources`; a landing folder and the warehouse may not lie
    inside one another.
    """
    folder = Path(folder).absolute()
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for path in sorted(p for p in folder.glob("*") if p.suffix in {".yaml", ".yml"}):
        source, found = _read(path, folder.parent, warehouse)
        problems += found
        if source is None:
            continue
        if source.name in sources:
            what = f"{shown(source.name)} is defined in two files"
            problems.append(Problem(_shown(path, folder), 1, "name", what, "rename one"))
        sources[source.name] = source
    if problems:
        what = "that" if len(problems) == 1 else f"those {len(problems)} problems"
        raise ContractError(list(problems), f"Mend {what} in the source. Nothing was read.")
    return sources


def find_source(sources: Mapping[str, Source], name: str) -> Source:
    """A source by name, or an error that lists the ones there are."""
    if name in sources:
        return sources[name]
    known = ", ".join(sorted(sources)) or "none"
    raise BadInput(f"There is no source {shown(name)}.", f"The project's sources: {known}.")


def _read(path: Path, project: Path, warehouse: str | None) -> tuple[Source | None, list[Problem]]:
    from thermocline.contract.odcs.yaml_lines import MAX_BYTES, read_document

    with path.open("rb") as file:
        document = read_document(file.read(MAX_BYTES + 1))
    report = Report(_shown(path, path.parent), document.line)
    for flaw in document.flaws:
        report.problems.append(Problem(report.path, flaw.line, "", flaw.what, flaw.hint))
    if document.root is None:
        return None, report.problems
    if not isinstance(document.data, dict):
        report.add((), "", "a source is a mapping of settings", "begin with name:")
        return None, report.problems
    source = _Reader(document.data, report, path, project, warehouse).source()
    return (None if report.problems else source), report.problems


class _Reader:
    """Reads one source's settings and reports what is wrong with each."""

    def __init__(
        self,
        data: Mapping[str, Any],
        report: Report,
        path: Path,
        project: Path,
        warehouse: str | None,
    ) -> None:
        self._data = data
        self._report = report
        self._path = path
        self._project = project
        self._warehouse = warehouse

    def source(self) -> Source:
        for key in self._data:
            if key not in _KEYS:
                self._report.add((key,), "", f"unknown {shown(key)}", did_you_mean(key, _KEYS))
        kind = self._text("kind", "files")
        if kind != "files":
            self._report.add(
                ("kind",), "kind", f"{shown(kind)} is not in this version", "use files"
            )
        name = self._name()
        return Source(
            name=name,
            path=self._location(),
            target=self._target(),
            pattern=self._text("pattern", "*"),
            format=self._one_of("format", "auto", FORMATS),
            options=self._options(),
            max_line_bytes=int(self._number("maxLineBytes", MAX_LINE_BYTES, 1, 1 << 30)),
            bad_share=self._number("badShare", BAD_SHARE, 0, 1),
            settle=self._number("settle", 0, 0, 86_400),
            kind=kind,
            defined_in=self._path,
        )

    def _name(self) -> str:
        name = self._text("name", self._path.stem)
        flaw = flaw_of_name(name, 128)
        if flaw:
            self._report.add(("name",), "name", *flaw)
        return name

    def _target(self) -> str:
        if "target" not in self._data:
            self._report.lacks((), "target", "is missing", "name the table, as bronze.raw_orders")
            return "bronze.missing"
        target = self._text("target", "")
        layer, _, name = target.partition(".")
        flaw = flaw_of_name(name, 128)
        if layer != "bronze" or flaw:
            hint = "raw data lands in bronze: write it as bronze.raw_orders"
            self._report.add(("target",), "target", f"{shown(target)} cannot be a target", hint)
        return target

    def _location(self) -> str:
        if "path" not in self._data:
            self._report.lacks((), "path", "is missing", "name the landing folder")
            return ""
        text = self._text("path", "")
        if "\0" in text or ".." in PurePosixPath(text).parts or not text.strip():
            self._report.add(("path",), "path", f"{shown(text)} cannot be used", "leave out '..'")
            return ""
        if "://" in text and not text.startswith("s3://"):
            hint = "use a folder, or s3://bucket/prefix"
            self._report.add(("path",), "path", f"{shown(text)} is not in this version", hint)
            return ""
        location = text.rstrip("/") if "://" in text else str((self._project / text).absolute())
        if self._warehouse and overlap(location, self._warehouse):
            what = "the landing folder and the warehouse overlap"
            hint = "keep raw files outside the warehouse, and the warehouse outside the folder"
            self._report.add(("path",), "path", what, hint)
        return location

    def _options(self) -> TextOptions:
        given = self._data.get("options") or {}
        if not isinstance(given, dict):
            self._report.add(("options",), "options", "must be a mapping")
            return TextOptions()
        known = TextOptions.__dataclass_fields__
        values: dict[str, Any] = {}
        for key, value in given.items():
            flaw = _flaw_of_option(key, value)
            if key not in known:
                hint = did_you_mean(key, tuple(known))
                self._report.add(("options", key), "options", f"unknown {shown(key)}", hint)
            elif flaw:
                self._report.add(("options", key), f"options.{key}", flaw)
            else:
                values[key] = value.lower() if key == "encoding" else value
        return TextOptions(**values)

    def _text(self, key: str, default: str) -> str:
        value = self._data.get(key, default)
        if not isinstance(value, str):
            self._report.add((key,), key, f"{shown(value)} is not a text")
            return default
        return value

    def _one_of(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._text(key, default)
        if value not in allowed:
            hint = did_you_mean(value, allowed) or f"use {', '.join(allowed)}"
            self._report.add((key,), key, f"{shown(value)} is not in this version", hint)
        return value

    def _number(self, key: str, default: float, least: float, most: float) -> float:
        value = self._data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._report.add((key,), key, f"{shown(value)} is not a number")
            return default
        if not least <= value <= most:
            self._report.add((key,), key, f"{value:g} is not between {least:g} and {most:g}")
            return default
        return value


def _flaw_of_option(key: str, value: Any) -> str | None:
    if key in {"header", "multiline"}:
        return None if isinstance(value, bool) else f"{shown(value)} is not true or false"
    if not isinstance(value, str):
        return f"{shown(value)} is not a text"
    if key in {"delimiter", "quote", "escape"} and (len(value) != 1 or value in "\r\n\0"):
        return f"{shown(value)} is not one character"
    if key == "encoding" and value.lower() not in ENCODINGS:
        return f"{shown(value)} is not in this version; use {', '.join(ENCODINGS)}"
    return None


def overlap(landing: str, warehouse: str) -> bool:
    if landing.startswith("s3://") != warehouse.startswith("s3://"):
        return False
    if landing.startswith("s3://"):
        one, other = landing.rstrip("/") + "/", warehouse.rstrip("/") + "/"
        return one.startswith(other) or other.startswith(one)
    first, second = Path(landing).resolve(), Path(warehouse).resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _shown(path: Path, folder: Path) -> str:
    return f"{folder.name}/{path.name}"
