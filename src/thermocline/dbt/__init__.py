"""Run unmodified dbt projects on the lake.

dbt works in a private DuckDB database, on views of the lake's tables at fixed snapshots. Its tables
are then written to a draft and published in one commit.
"""

from thermocline.dbt.command import COMMANDS, DbtRequest, run
from thermocline.dbt.report import DbtReport

__all__ = ["COMMANDS", "DbtReport", "DbtRequest", "run"]
