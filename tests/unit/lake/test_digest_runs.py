"""A set of digests in runs is the set of everything that was added, at logarithmic cost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from thermocline.errors import Permanent
from thermocline.lake import digest_runs
from thermocline.lake.digest_runs import WIDTH, DigestRun, RunFiles, digest, stored_location
from thermocline.lake.metadata_files import FileCache


def open_files(folder: Path) -> RunFiles:
    return RunFiles("bronze.a", f"file://{folder}", PyArrowFileIO)


def path_of(folder: Path, run: DigestRun) -> Path:
    return Path(stored_location(str(folder), run.name))


@pytest.mark.parametrize("seed", range(5))
def test_runs_contain_what_was_added_and_old_values_stay_valid(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the runs from before an addition has what it had: a rollback needs no more."""
    monkeypatch.setattr(digest_runs, "_RUNS", FileCache(1 << 20))
    monkeypatch.setattr(digest_runs, "_READ_WHOLE_BYTES", 600)  # larger runs are searched
    rng, files = random.Random(seed), open_files(tmp_path)
    runs: tuple[DigestRun, ...] = ()
    known: set[bytes] = set()
    history = [(runs, frozenset(known))]
    for number in range(40):
        added = {digest(seed, number, n) for n in range(rng.choice((1, 2, 30, 400)))}
        runs, known = files.add(runs, added), known | added
        history.append((runs, frozenset(known)))
    for then, had in rng.sample(history, 8):
        wanted = {*rng.sample(sorted(known), 60), *(digest("no", n) for n in range(20))}
        assert open_files(tmp_path).find(then, wanted) == wanted & had
        for one in rng.sample(sorted(wanted), 10):
            assert files.find(then, [one]) == {one} & had


def test_many_small_additions_make_few_runs_and_rewrite_each_digest_seldom(tmp_path: Path) -> None:
    files, runs, written = open_files(tmp_path), (), 0
    for number in range(512):
        before = runs
        runs = files.add(runs, [digest(number, n) for n in range(4)])
        written += sum(run.count for run in runs if run not in before)
    assert sum(run.count for run in runs) == 2048
    assert len(runs) <= 10
    assert written <= 2048 * 10


def test_a_search_in_a_large_run_reads_a_small_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files(tmp_path)
    all_digests = [digest(n) for n in range(40_000)]
    runs = files.add((), all_digests)
    monkeypatch.setattr(digest_runs, "_RUNS", FileCache(1))
    monkeypatch.setattr(RunFiles, "_load", lambda *_: pytest.fail("the run was read whole"))
    wanted = {*all_digests[:9], *(digest("no", n) for n in range(9))}
    assert files.find(runs, wanted) == set(all_digests[:9])
    edges = [bytes(WIDTH), b"\xff" * WIDTH]
    assert files.find(runs, edges) == set()


@pytest.mark.parametrize("whole", [True, False])
def test_a_lost_or_damaged_run_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """An answer without the run would be: nothing has landed."""
    monkeypatch.setattr(digest_runs, "_RUNS", FileCache(1))
    monkeypatch.setattr(digest_runs, "_READ_WHOLE_BYTES", 1 << 20 if whole else 0)
    files = open_files(tmp_path)
    runs = files.add((), [digest(n) for n in range(4_000)])
    content = path_of(tmp_path, runs[0]).read_bytes()
    path_of(tmp_path, runs[0]).write_bytes(content[: -WIDTH * 3_000])
    with pytest.raises(Permanent, match="is damaged"):
        files.find(runs, [b"\xff" * WIDTH])
    path_of(tmp_path, runs[0]).unlink()
    with pytest.raises(Permanent, match="is not there"):
        files.find(runs, [digest(1)])
