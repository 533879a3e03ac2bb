"""Ten thousand questions by chance: the same rows hot, direct, on Spark, and of some on Trino.

Run it with `python -m benchmarks.questions --queries 10000 --trino 300 --seed 1`. The questions are
about the shop's tables and about facts that are made to be awkward, at the same snapshots for all;
see `tests/integration/serve/same_answer.py`. It fails when any two answers differ. Ctrl-C ends the
asking, and what came of it until then is said.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.integration.serve import asking, lean_spark, same_answer, served
from tests.integration.serve.same_answer import Asker, Tally
from tests.servers import trino

from benchmarks.measure import Cost, machine, measured


def main() -> int:
    """Make a lake, start everybody, change the lake under them, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=10_000, help="answered by all but Trino")
    parser.add_argument("--trino", type=int, default=300, help="answered by Trino, too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help="a file of questions instead, one a line")
    given = parser.parse_args()

    def questions() -> Iterator[str]:
        if given.file is None:
            return same_answer.endless(given.seed)
        return iter(given.file.read_text(encoding="utf-8").splitlines())

    runs: dict[str, Tally] = {}
    wanted = {"Spark": given.queries, "Trino": given.trino if trino.missing() is None else 0}
    with (
        tempfile.TemporaryDirectory(prefix="questions-") as folder,
        contextlib.ExitStack() as stack,
    ):
        lake = same_answer.build(Path(folder) / "lake", lean_spark.SETTINGS)
        router = stack.enter_context(served.serving(lake))
        same_answer.stir(lake)
        router.settled()
        askers: dict[str, Asker] = {"hot": router.hot, "direct": router.direct}
        for engine in filter(wanted.get, wanted):
            begun = lean_spark.lean(lake) if engine == "Spark" else asking.other(
                lake, lake.settings.project, "trino")  # fmt: skip
            askers[engine] = stack.enter_context(begun)
            tally = runs[engine] = Tally()
            with measured() as cost, contextlib.suppress(KeyboardInterrupt):
                same_answer.compare_many(questions(), askers, wanted[engine], tally)
            _report(engine, tally, cost)
    if given.trino and trino.missing():
        print(trino.missing())
    whole = given.file is not None or all(runs[each].same >= wanted[each] for each in runs)
    wrong = any(tally.different or tally.unanswered for tally in runs.values())
    return 1 if wrong or not whole else 0


def _report(engine: str, tally: Tally, cost: Cost) -> None:
    """Say what came of the questions that were asked up to an engine."""
    print(f"\n{tally.asked:,} questions, up to {engine}; seconds: {cost.wall:,.0f} wall, "
          f"{cost.cpu:,.0f} CPU; {machine()}")  # fmt: skip
    print(f"  {tally.same:7,} the same rows from everybody")
    print(f"  {tally.partly:7,} the same rows, but more than is hot was asked for")
    print(f"  {tally.empty:7,} of these without any row")
    for name, count in tally.answered.items():
        print(f"  {count:7,} answered {name}")
    for name, found in (("refused", tally.refused), ("fail everywhere", tally.failed)):
        print(f"  {sum(found.values()):7,} {name}")
        for cause, count in found.most_common(10):
            print(f"          {count:5,} {cause[:110]}")
    for name, listed in (("ANSWERED BY SOME", tally.unanswered), ("DIFFERENT", tally.different)):
        print(f"  {len(listed):7,} {name}")
        for sql, why in listed[:40]:
            print(f"    {sql}\n        {why[:400]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
