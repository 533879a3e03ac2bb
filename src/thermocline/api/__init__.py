"""Thermocline in Python: everything the command line can do, as objects.

import thermocline as tc

lakehouse = tc.open("demo")
lakehouse.query("select count(*) from silver.orders", at="yesterday 18:00").to_pandas()
"""

from thermocline.api.doctor import Finding
from thermocline.api.example import DemoReport, demo, init
from thermocline.api.ingestion import IngestReport, IngestTarget
from thermocline.api.lakehouse import Lakehouse, open
from thermocline.api.query import Result
from thermocline.api.table import HistoryEntry, Table, TableInfo, TableSnapshot
from thermocline.check.gate import CheckReport
from thermocline.transform.run_plan import Plan
from thermocline.transform.runner import RunReport

__all__ = [
    "CheckReport", "DemoReport", "Finding", "HistoryEntry", "IngestReport", "IngestTarget",
    "Lakehouse", "Plan", "Result", "RunReport", "Table", "TableInfo", "TableSnapshot", "demo",
    "init", "open",
]  # fmt: skip
