"""What a killed writer left behind goes with the next one; what a living one holds stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tl_aniso.staging import staging

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no advisory locks")

WRITER = (
    "import sys, time; from pathlib import Path; from tl_aniso.staging import staging\n"
    "with staging(Path(sys.argv[1])) as directory:\n"
    "    (directory / 'half').write_text('half'); print('here', flush=True); time.sleep(60)"
)


def aged(directory: Path) -> None:
    for path in directory.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)


def write(target: Path) -> None:
    with staging(target) as directory:
        (directory / "whole").write_text("whole")
        directory.rename(target)


def test_a_killed_writer_leaves_nothing_beyond_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"here"
    aged(tmp_path)
    write(tmp_path / "out")  # a second writer, while the first lives
    assert len(list(tmp_path.iterdir())) == 3
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert len(list(tmp_path.iterdir())) == 3
    write(tmp_path / "other")  # another target is no business of ours
    assert len(list(tmp_path.iterdir())) == 4
    with staging(tmp_path / "out"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_neither_living_nor_young_writers_are_disturbed(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as first:
        aged(tmp_path)  # long at work: only its lock speaks for it
        (first / "part").write_text("part")
        write(tmp_path / "out")
        assert (first / "part").read_text() == "part"
    # Made a moment ago, not yet locked.
    lock = tmp_path / ".out.abc.starting"
    lock.touch()
    with staging(tmp_path / "out"):
        pass
    assert lock.exists()
    aged(tmp_path)
    with staging(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_directories_without_a_lock_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / ".out.mine").mkdir()
    aged(tmp_path)
    write(tmp_path / "out")
    assert (tmp_path / ".out.mine").is_dir()


def test_what_was_not_renamed_goes_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with staging(tmp_path / "out") as directory:
            (directory / "half").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
