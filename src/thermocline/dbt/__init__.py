"""dbt projects on the lake, unchanged: dbt works in a DuckDB database of its own, on views of the
lake's tables at fixed snapshots; what it has made is then written to a draft and published at once.
"""

from thermocline.dbt.command import COMMANDS, Order, run
from thermocline.dbt.report import Report

__all__ = ["COMMANDS", "Order", "Report", "run"]
