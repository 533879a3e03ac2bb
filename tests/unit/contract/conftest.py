"""Contract files made from the few lines that a test is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest

from thermocline.contract import Contract, load_contract
from thermocline.errors import ContractError

HEAD = """\
apiVersion: v3.1.0
kind: DataContract
id: shop.silver.orders
version: 1.2.0
schema:
  - name: orders
    properties:
"""
COLUMNS = """\
- {name: order_id, logicalType: string, required: true, primaryKey: true}
- {name: status, logicalType: string}
- {name: quantity, physicalType: int}
- {name: net_amount, physicalType: "decimal(12,2)"}
- {name: day, physicalType: date}
- {name: updated_at, physicalType: timestamptz}
- {name: tags, physicalType: "list<string>"}
"""


def contract_text(
    columns: str = COLUMNS, quality: str = "", rest: str = "", schema: str = ""
) -> str:
    """A contract with these columns, quality rules, other keys of the schema and of the file."""
    text = HEAD + indent(dedent(columns), " " * 6) + indent(dedent(schema), " " * 4)
    if quality:
        text += "    quality:\n" + indent(dedent(quality), " " * 6)
    return text + dedent(rest)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes contracts/<table>.odcs.yaml below a fresh project and returns its path."""

    def _write(text: str, table: str = "silver/orders") -> Path:
        path = tmp_path / "contracts" / f"{table}.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return _write


@pytest.fixture
def load(write: Callable[..., Path]) -> Callable[..., Contract]:
    """Loads a contract made of the given parts, as in `contract_text`."""

    def _load(columns: str = COLUMNS, **parts: str) -> Contract:
        return load_contract(write(contract_text(columns, **parts)))

    return _load


@pytest.fixture
def problems(load: Callable[..., Contract]) -> Callable[..., list[str]]:
    """The problems of such a contract as "line  text", without the file's name."""

    def _problems(columns: str = COLUMNS, **parts: str) -> list[str]:
        with pytest.raises(ContractError) as caught:
            load(columns, **parts)
        texts = [str(problem) for problem in caught.value.problems]
        file = "contracts/silver/orders.odcs.yaml:"
        assert all(text.startswith(file) for text in texts)
        return [text.removeprefix(file) for text in texts]

    return _problems
