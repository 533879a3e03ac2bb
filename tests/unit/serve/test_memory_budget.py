"""When the rows of copies are compressed."""

from __future__ import annotations

import pytest

from thermocline.serve.node.engine import open_engine
from thermocline.serve.node.memory_budget import MemoryBudget

ROWS = 2_000_000


def test_while_a_query_reads_what_was_dropped_compressing_waits_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = open_engine(1 << 30, 1)
    writer, reader = engine.cursor(), engine.cursor()
    room = MemoryBudget(writer, 1 << 30)
    writer.execute("CREATE TABLE old AS SELECT 1 AS a")
    reader.execute("BEGIN")
    assert reader.execute("SELECT a FROM old").fetchall() == [(1,)]
    writer.execute("DROP TABLE old")
    writer.execute(f"CREATE TABLE new AS SELECT range AS a FROM range({ROWS})")
    loose = room.used_bytes()
    room.compact()
    assert room.used_bytes() >= loose  # it could not be done
    reader.execute("COMMIT")
    room.compact()
    assert room.used_bytes() < loose / 2
    assert caplog.messages == []
    engine.close()
