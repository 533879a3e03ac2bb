"""Contracts of tables (ODCS): parsed from files, validated, and compared with tables.

`evolution.plan_evolution(shape, contract)` returns how a table differs from its contract.
"""

from thermocline.contract.definition import (
    Column,
    Contract,
    DriftMode,
    PartitionField,
    Rule,
    SortField,
    TableShape,
    UpdateMode,
    WriteMode,
)
from thermocline.contract.evolution import Evolution
from thermocline.contract.parse import load_contract, load_contracts
from thermocline.contract.problems import Problem
from thermocline.contract.schema_changes import (
    AddColumn,
    ChangeKey,
    ChangePartitioning,
    ChangeSortOrder,
    DropColumn,
    MakeOptional,
    PromoteType,
    RenameColumn,
    ReorderColumns,
    SchemaChange,
    SetDoc,
)
from thermocline.contract.type_syntax import parse_type

__all__ = [
    "AddColumn",
    "ChangeKey",
    "ChangePartitioning",
    "ChangeSortOrder",
    "Column",
    "Contract",
    "DriftMode",
    "DropColumn",
    "Evolution",
    "MakeOptional",
    "PartitionField",
    "Problem",
    "PromoteType",
    "RenameColumn",
    "ReorderColumns",
    "Rule",
    "SchemaChange",
    "SetDoc",
    "SortField",
    "TableShape",
    "UpdateMode",
    "WriteMode",
    "load_contract",
    "load_contracts",
    "parse_type",
]
