"""Scratch folders: nobody loses a folder while its process lives, and none is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thermocline.config.scratch import ScratchFolder, remove_abandoned

HOLD = """
import sys, time
from pathlib import Path
from thermocline.config.scratch import ScratchFolder
scratch = ScratchFolder(Path(sys.argv[1]), "run-")
(scratch.path / "rows").write_text("x")
print(scratch.path, flush=True)
time.sleep(60)
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, parent], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process, folder = holder(tmp_path)
    with ScratchFolder(tmp_path, "run-") as own:
        assert (folder / "rows").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert own.exists()
        assert folder.exists()
        with ScratchFolder(tmp_path, "run-") as another:
            assert sorted(tmp_path.iterdir()) == sorted([own, another])
    assert list(tmp_path.iterdir()) == []


def test_others_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run-file").write_text("x")
    (tmp_path / "run-left").mkdir()
    remove_abandoned(tmp_path, "run-")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"postgres", "elsewhere", "run-link", "run-file"}


def test_sweeping_beside_making_takes_nobodys_folder(tmp_path: Path) -> None:
    failures: list[str] = []

    def make() -> None:
        for _ in range(200):
            scratch = ScratchFolder(tmp_path, "run-")
            (scratch.path / "rows").write_text(str(os.getpid()))
            remove_abandoned(tmp_path, "run-")
            if not (scratch.path / "rows").exists():
                failures.append(str(scratch.path))
            scratch.close()

    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make) for _ in range(4)]:
            made.result()
    assert failures == []
    assert list(tmp_path.iterdir()) == []
