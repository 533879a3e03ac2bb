"""What a table promises: ODCS contracts as values, read from files and compared with tables.

`compare.compare(shape, contract)` says how a table differs from its contract.
"""

from thermocline.contract.changes import (
    Add,
    Change,
    Describe,
    Drop,
    Promote,
    Rekey,
    Relax,
    Rename,
    Reorder,
    Repartition,
    Resort,
)
from thermocline.contract.compare import Evolution
from thermocline.contract.definition import (
    Column,
    Contract,
    Drift,
    Partition,
    Rule,
    Shape,
    Sort,
    Updates,
    Write,
)
from thermocline.contract.parse import load_contract, load_contracts
from thermocline.contract.problems import Problem
from thermocline.contract.type_syntax import parse_type

__all__ = [
    "Add",
    "Change",
    "Column",
    "Contract",
    "Describe",
    "Drift",
    "Drop",
    "Evolution",
    "Partition",
    "Problem",
    "Promote",
    "Rekey",
    "Relax",
    "Rename",
    "Reorder",
    "Repartition",
    "Resort",
    "Rule",
    "Shape",
    "Sort",
    "Updates",
    "Write",
    "load_contract",
    "load_contracts",
    "parse_type",
]
