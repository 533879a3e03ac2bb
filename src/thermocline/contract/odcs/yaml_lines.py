"""YAML from strangers: plain data with a line for every value, and nothing that can bite.

The text is read as a stream of parser events, never as objects: no tags, one document, at most
`MAX_BYTES` long, `MAX_DEPTH` deep and `MAX_NODES` wide once aliases are written out, no key twice
in a mapping. Plain scalars follow YAML 1.2's core schema, so that `NO` is a country and
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

from thermocline.contract.problems import Where, shown

MAX_BYTES = 1_000_000
MAX_DEPTH = 60
MAX_NODES = 100_000

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


class Flaw(NamedTuple):
    """Something in the text that is not allowed."""

    line: int
    what: str
    hint: str = ""


@dataclass
class Node:
    """A value of the document with the line it begins on. `size` counts what it expands to."""

    line: int
    scalar: Any = None
    items: list[Node] | None = None
    entries: dict[str, tuple[int, Node]] | None = None
    size: int = 1

    def plain(self) -> Any:
        """The value as dicts, lists and scalars."""
        if self.entries is not None:
            return {key: node.plain() for key, (_, node) in self.entries.items()}
        if self.items is not None:
            return [node.plain() for node in self.items]
        return self.scalar


@dataclass
class Document:
    """What a text holds. `data` is None when the text could not be read."""

    root: Node | None = None
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def data(self) -> Any:
        return self.root.plain() if self.root else None

    def line(self, where: Where) -> int:
        """The line of a place, or of the deepest part of it that exists."""
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
    """The text cannot be read any further."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.what)
        self.flaw = flaw


def read_document(raw: bytes) -> Document:
    """The text as a document. Whatever is wrong with it stands in `flaws`; nothing is raised."""
    if len(raw) > MAX_BYTES:
        return _unreadable(1, f"the file is larger than {MAX_BYTES:,} bytes", "split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(raw.count(b"\n", 0, error.start) + 1, "not UTF-8", "save it as UTF-8")
    composer = _Composer()
    try:
        root = composer.document(yaml.parse(text, Loader=_LOADER))
    except _UnreadableError as stop:
        return Document(None, [*composer.flaws, stop.flaw])
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _unreadable(line, "a control character", "remove it")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        return _unreadable(line, f"not YAML: {error.problem or error.context}")
    return Document(root, composer.flaws)


def _unreadable(line: int, what: str, hint: str = "") -> Document:
    return Document(None, [Flaw(line, what, hint)])


class _Composer:
    """Builds nodes from parser events while keeping the limits."""

    def __init__(self) -> None:
        self.flaws: list[Flaw] = []
        self._anchors: dict[str, Node | None] = {}

    def document(self, events: Iterator[Event]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise _UnreadableError(
                        Flaw(_line(event), "a second document", "one contract a file")
                    )
                root = self._node(next(events), events, 1)
        if root is None:
            raise _UnreadableError(Flaw(1, "the file is empty"))
        return root

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _UnreadableError(Flaw(line, f"nested more than {MAX_DEPTH} levels deep"))
        if isinstance(event, AliasEvent):
            return self._alias(str(event.anchor), line)
        self._refuse_tag(event)
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = None
        if isinstance(event, ScalarEvent):
            node = Node(line, _scalar(event))
        elif isinstance(event, MappingStartEvent):
            node = self._mapping(line, events, depth)
        else:
            node = self._sequence(line, events, depth)
        if node.size > MAX_NODES:
            raise _UnreadableError(
                Flaw(line, f"more than {MAX_NODES:,} values once aliases are written out")
            )
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, anchor: str, line: int) -> Node:
        target = self._anchors.get(anchor)
        if target is None:
            raise _UnreadableError(
                Flaw(line, f"alias *{anchor} stands for nothing finished before it")
            )
        return target

    def _refuse_tag(self, event: Event) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.flaws.append(Flaw(_line(event), f"YAML tag {shown(tag)} is not allowed"))

    def _sequence(self, line: int, events: Iterator[Event], depth: int) -> Node:
        node = Node(line, items=[])
        assert node.items is not None
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            item = self._node(event, events, depth + 1)
            node.items.append(item)
            node.size += item.size
        return node

    def _mapping(self, line: int, events: Iterator[Event], depth: int) -> Node:
        node = Node(line, entries={})
        assert node.entries is not None
        for event in events:
            if isinstance(event, CollectionEndEvent):
                break
            key_line = _line(event)
            if not isinstance(event, ScalarEvent):
                raise _UnreadableError(Flaw(key_line, "a key that is not plain text"))
            self._refuse_tag(event)
            key = str(event.value)
            value = self._node(next(events), events, depth + 1)
            if key in node.entries:
                first = node.entries[key][0]
                self.flaws.append(
                    Flaw(key_line, f"key {shown(key)} is there twice", f"first on line {first}")
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
    if value in _WORDS:
        return _WORDS[value]
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    return value
