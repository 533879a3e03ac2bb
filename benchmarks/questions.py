"""Ten thousand random queries: the same rows hot, direct, on Spark, and for some on Trino.

Run it with `python -m benchmarks.questions --queries 10000 --trino 300 --seed 1`. The queries read
the shop's tables and a table of edge cases, at the same snapshots on all engines; see
`tests/integration/serve/same_answer.py`. It fails when any two answers differ. Ctrl-C ends the run
and reports the results until then.
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
    """Build a lake, start all engines, change the lake meanwhile, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--queries", type=int, default=10_000, help="queries for all engines but Trino"
    )
    parser.add_argument("--trino", type=int, default=300, help="queries for Trino too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help="a file of queries instead, one per line")
    options = parser.parse_args()

    def queries() -> Iterator[str]:
        if options.file is None:
            return same_answer.endless(options.seed)
        return iter(options.file.read_text(encoding="utf-8").splitlines())

    runs: dict[str, Tally] = {}
    wanted = {"Spark": options.queries, "Trino": options.trino if trino.missing() is None else 0}
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
                same_answer.compare_many(queries(), askers, wanted[engine], tally)
            _report(engine, tally, cost)
    if options.trino and trino.missing():
        print(trino.missing())
    whole = options.file is not None or all(runs[each].same >= wanted[each] for each in runs)
    wrong = any(tally.different or tally.unanswered for tally in runs.values())
    return 1 if wrong or not whole else 0


def _report(engine: str, tally: Tally, cost: Cost) -> None:
    """Report the comparison up to an engine."""
    print(f"\n{tally.asked:,} queries, up to {engine}; seconds: {cost.wall:,.0f} wall, "
          f"{cost.cpu:,.0f} CPU; {machine()}")  # fmt: skip
    print(f"  {tally.same:7,} the same rows from all engines")
    print(f"  {tally.partly:7,} the same rows, beyond the hot window")
    print(f"  {tally.empty:7,} of these without rows")
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
