"""Output whose reader leaves: the writer goes on, and its exit code stays its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from grpo_core.machine.process import ignore_broken_pipe
stream, other = (sys.stdout, sys.stderr) if sys.argv[1] == "stdout" else (sys.stderr, sys.stdout)
for number in range(2000):
    with ignore_broken_pipe():
        stream.write("x" * 100 + chr(10))
        stream.flush()
other.write("at the end")
sys.exit(7)
"""


@pytest.mark.parametrize(("stream", "pipe"), [("stdout", "| head -1 >/dev/null"), ("stderr", "2>&1 >&3 | head -1 >/dev/null")])
def test_what_nobody_reads_goes_nowhere(tmp_path: Path, stream: str, pipe: str) -> None:
    (tmp_path / "writer.py").write_text(WRITER)
    command = f"exec 3>&1; {sys.executable} {tmp_path}/writer.py {stream} {pipe}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout + done.stderr == "at the end"
