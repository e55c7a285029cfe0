"""A sweep whose runs have several processes: each run on GPUs of its own, which here are only names."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from tests.e2e.conftest import Finished

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

OPTIONS = {"data.eval_fraction": 0.0, "tracking.log_policy": False, "training.steps": 2, "training.processes": 2}
NOTES_ITS_GPUS = '#!/bin/sh\necho "$2 $CUDA_VISIBLE_DEVICES" >> {notes}\nexec {python} "$@"\n'


def test_each_run_of_two_processes_has_two_gpus_of_its_own(
    grpo: Callable[..., Finished], tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    python, notes = tmp_path / "python", tmp_path / "notes"
    python.write_text(NOTES_ITS_GPUS.format(notes=notes, python=sys.executable))
    python.chmod(0o755)
    sweep = {
        "base": "tiny.yaml",
        "axes": {"training.processes": [2, 1]},
        "seeds": [3, 4],
        "objective": {"metric": "reward/mean"},
        "runs": {"concurrency": 2},
    }
    (tmp_path / "tiny.yaml").write_text(
        yaml.safe_dump(apply_overrides(tiny_values, OPTIONS | {"training.python": str(python)}))
    )
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = grpo("sweep", "sweep.yaml", "--sweep-dir", "runs/one", cwd=tmp_path, CUDA_VISIBLE_DEVICES="4,5,6")
    assert done.returncode == 0, done.stderr
    assert "4 finished" in done.stdout
