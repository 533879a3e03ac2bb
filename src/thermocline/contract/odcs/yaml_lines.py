"""Parse untrusted YAML safely, with a line number for every value.

The text is read as a stream of parser events, never as objects. It must have no tags, one document,
no duplicate keys, and at most `MAX_BYTES` bytes, `MAX_DEPTH` levels and `MAX_NODES` values after
alias expansion. Plain scalars follow the core schema of YAML 1.2, so that `NO` is a country and
`2026-01-01` a text; its hexadecimal and octal integers and its infinities stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from thermocline.contract.problems import DocumentPath, quote

MAX_BYTES = 1_000_000
MAX_DEPTH = 60
MAX_NODES = 100_000

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?")
_KEYWORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


class YamlProblem(NamedTuple):
    """Something in the text that is not allowed: its line, and how to fix it."""

    line: int
    what: str
    hint: str = ""


@dataclass
class YamlNode:
    """A value of the document with its first line. `size` counts values after alias expansion."""

    line: int
    scalar: Any = None
    items: list[YamlNode] | None = None
    entries: dict[str, tuple[int, YamlNode]] | None = None
    size: int = 1

    def to_python(self) -> Any:
        """Return the value as dicts, lists and scalars."""
        if self.entries is not None:
            return {key: node.to_python() for key, (_, node) in self.entries.items()}
        if self.items is not None:
            return [node.to_python() for node in self.items]
        return self.scalar


@dataclass
class YamlDocument:
    """A parsed document. `data` is None if the text could not be parsed."""

    root: YamlNode | None = None
    problems: list[YamlProblem] = field(default_factory=list)

    @property
    def data(self) -> Any:
        return self.root.to_python() if self.root else None

    def line(self, where: DocumentPath) -> int:
        """Return the line of a place, or of its deepest existing part."""
        line, node = 1, self.root
        for step in where:
            if node is None:
                break
            if isinstance(step, str) and node.entries is not None and step in node.entries:
                line, node = node.entries[step]
            elif isinstance(step, int) and node.items is not None and step < len(node.items):
                node = node.items[step]
                line = node.line
            else:
                break
        return line


class _UnreadableError(Exception):
    """The text cannot be parsed further."""

    def __init__(self, problem: YamlProblem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def read_document(raw: bytes) -> YamlDocument:
    """Parse the text as a document. Problems are in `problems`; nothing is raised."""
    if len(raw) > MAX_BYTES:
        return _unreadable_document(1, f"the file is larger than {MAX_BYTES:,} bytes", "split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable_document(
            raw.count(b"\n", 0, error.start) + 1, "not UTF-8", "save it as UTF-8"
        )
    composer = _Composer()
    try:
        root = composer.compose(yaml.parse(text, Loader=_LOADER))
    except _UnreadableError as stop:
        return YamlDocument(None, [*composer.problems, stop.problem])
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _unreadable_document(line, "a control character", "remove it")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        return _unreadable_document(line, f"not YAML: {error.problem or error.context}")
    return YamlDocument(root, composer.problems)


def _unreadable_document(line: int, what: str, hint: str = "") -> YamlDocument:
    return YamlDocument(None, [YamlProblem(line, what, hint)])


class _Composer:
    """Builds nodes from parser events within the limits."""

    def __init__(self) -> None:
        self.problems: list[YamlProblem] = []
        self._anchors: dict[str, YamlNode | None] = {}

    def compose(self, events: Iterator[Event]) -> YamlNode:
        root: YamlNode | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise _UnreadableError(
                        YamlProblem(
                            _line(event), "a second document", "write one contract per file"
                        )
                    )
                root = self._compose_node(next(events), events, 1)
        if root is None:
            raise _UnreadableError(YamlProblem(1, "the file is empty"))
        return root

    def _compose_node(self, event: Event, events: Iterator[Event], depth: int) -> YamlNode:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _UnreadableError(YamlProblem(line, f"nested more than {MAX_DEPTH} levels deep"))
        if isinstance(event, AliasEvent):
            return self._resolve_alias(str(event.anchor), line)
        self._refuse_tag(event)
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = None
        if isinstance(event, ScalarEvent):
            node = YamlNode(line, _scalar(event))
        elif isinstance(event, MappingStartEvent):
            node = self._compose_mapping(line, events, depth)
        else:
            node = self._compose_sequence(line, events, depth)
        if node.size > MAX_NODES:
            raise _UnreadableError(
                YamlProblem(line, f"more than {MAX_NODES:,} values after alias expansion")
            )
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _resolve_alias(self, anchor: str, line: int) -> YamlNode:
        target = self._anchors.get(anchor)
        if target is None:
            raise _UnreadableError(
                YamlProblem(line, f"alias *{anchor} refers to no complete value before it")
            )
        return target

    def _refuse_tag(self, event: Event) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.problems.append(YamlProblem(_line(event), f"YAML tag {quote(tag)} is not allowed"))

    def _compose_sequence(self, line: int, events: Iterator[Event], depth: int) -> YamlNode:
        node = YamlNode(line, items=[])
        assert node.items is not None
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            item = self._compose_node(event, events, depth + 1)
            node.items.append(item)
            node.size += item.size
        return node

    def _compose_mapping(self, line: int, events: Iterator[Event], depth: int) -> YamlNode:
        node = YamlNode(line, entries={})
        assert node.entries is not None
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            key_line = _line(event)
            if not isinstance(event, ScalarEvent):
                raise _UnreadableError(YamlProblem(key_line, "a key that is not text"))
            self._refuse_tag(event)
            key = str(event.value)
            value = self._compose_node(next(events), events, depth + 1)
            if key in node.entries:
                first = node.entries[key][0]
                self.problems.append(
                    YamlProblem(key_line, f"key {quote(key)} is repeated", f"first on line {first}")
                )
                continue
            node.entries[key] = (key_line, value)
            node.size += value.size
        return node


def _line(event: Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 1


def _scalar(event: ScalarEvent) -> Any:
    value = str(event.value)
    if event.style not in (None, ""):
        return value
    if value in _KEYWORDS:
        return _KEYWORDS[value]
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    return value
