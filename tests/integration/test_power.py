"""The power goes at twenty places of a run: it resumes to what it would have been, with its report and its export."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.power import PLACES

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def test_a_run_whose_power_was_cut_anywhere_becomes_what_it_would_have_been(tmp_path: Path) -> None:
    shares = [range(first, len(PLACES), 2) for first in (0, 1)]
    commands = [
        [sys.executable, "-m", "tests.torture.power", str(tmp_path / str(share.start)), *map(str, share)] for share in shares
    ]
    env = {**os.environ, "GRPO_CHECKED": "1", "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for command in commands]
    found = [json.loads(line) for process in running for line in process.communicate()[0].splitlines()]
    assert {outcome["place"]: outcome["faults"] for outcome in found} == {place.name: [] for place in PLACES}
