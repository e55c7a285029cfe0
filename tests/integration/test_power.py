"""The power goes at places of a run: it resumes to what it would have been, with its report and its export."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.power import PLACES

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
TELLING = (
    "frozen prompts",
    "between table and record of the evaluation",
    "before the flush of a record",
    "a checkpoint's weights",
    "between a checkpoint and its record",
    "summary",
    "an export that replaces another",
)
"""One of each stage and each kind of loss: a name, a table before its record, a record, bytes of a file, a replaced folder."""
NUMBERS = {place.name: number for number, place in enumerate(PLACES)}
OTHERS = [number for name, number in NUMBERS.items() if name not in TELLING]


@pytest.mark.parametrize(
    "numbers", [[NUMBERS[name] for name in TELLING], pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["telling", "others"]
)
def test_a_run_whose_power_was_cut_anywhere_becomes_what_it_would_have_been(tmp_path: Path, numbers: list[int]) -> None:
    env = {**os.environ, "GRPO_CHECKED": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.torture.power", str(tmp_path), *map(str, numbers)]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {outcome["place"]: outcome["faults"] for outcome in found} == {PLACES[number].name: [] for number in numbers}
