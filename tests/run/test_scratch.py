"""Folders for what is of no use afterwards: nobody else writes there, and those of killed runs are swept."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from onnxq.errors import BadOutput
from onnxq.files import staging


def test_scratch_of_killed_runs_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies where the system keeps what is of no use afterwards, too."""
    code = "import os; from onnxq.files import staging\n"
    code += "with staging.scratch() as f: print(f, flush=True); os.kill(os.getpid(), 9)"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    left = Path(done.stdout.strip())
    assert done.returncode == -signal.SIGKILL and left.is_dir() and left.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with staging.scratch() as found:
        assert found.parent == left.parent and not left.exists()
        with staging.scratch() as other:
            assert found.is_dir() and other.is_dir()
    assert not any(left.parent.iterdir())


@pytest.mark.parametrize(
    "spoil", [lambda p: p.symlink_to("/tmp"), lambda p: p.touch(), lambda p: p.mkdir(0o777) or p.chmod(0o777)]
)
def test_scratch_never_lies_where_others_write(spoil: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"onnxq-{os.geteuid()}"
    spoil(place)  # type: ignore[operator]
    with staging.scratch() as found:
        assert found.parent == tmp_path and found.is_dir()
    assert not found.exists()


def test_a_folder_goes_though_the_process_has_no_file_left_to_open(tmp_path: Path) -> None:
    """Removing one takes descriptors too; one that cannot even be begun leaves nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = list[int]()

    def take_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with staging.staging(tmp_path / "out") as folder:
            (folder / "bundle" / "samples").mkdir(parents=True)
            (folder / "bundle" / "samples" / "0.npz").touch()
            take_all()
        os.close(taken.pop())  # which looking into a folder takes
        assert not [*tmp_path.iterdir()]
        for free in range(staging.REMOVING + 2):
            take_all()
            for _ in range(free):
                os.close(taken.pop())
            with pytest.raises(BadOutput, match="Too many open files"), staging.staging(tmp_path / "out"):
                pass
            os.close(taken.pop())
            assert not [*tmp_path.iterdir()]
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
