"""Column types: those of the Iceberg specification, without importing an engine."""

from __future__ import annotations

from dataclasses import dataclass, field

PRIMITIVES = frozenset(
    {
        "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz",
        "string", "uuid", "binary",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Primitive:
    """A type without parameters, named as in the Iceberg specification."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decimal:
    """A fixed-point number."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class Fixed:
    """A byte string of one length."""

    length: int

    def __str__(self) -> str:
        return f"fixed[{self.length}]"


@dataclass(frozen=True)
class Field:
    """A named member of a struct.

    Attributes that a table does not store (classification, former name, line in the contract) do
    not take part in comparisons.
    """

    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    classification: str | None = field(default=None, compare=False)
    renamed_from: str | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {_member(self.type, self.required)}"


@dataclass(frozen=True)
class Struct:
    """A row inside a row."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(str(member) for member in self.fields)}>"


@dataclass(frozen=True)
class List:
    """A sequence of one element type."""

    element: Type
    element_required: bool = False

    def __str__(self) -> str:
        return f"list<{_member(self.element, self.element_required)}>"


@dataclass(frozen=True)
class Map:
    """Keys to values; keys are never null."""

    key: Type
    value: Type
    value_required: bool = False

    def __str__(self) -> str:
        return f"map<{self.key}, {_member(self.value, self.value_required)}>"


Type = Primitive | Decimal | Fixed | Struct | List | Map


def _member(type_: Type, required: bool) -> str:
    return f"{type_} not null" if required else str(type_)
