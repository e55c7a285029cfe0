"""Runs of a sweep that have several processes: each run on GPUs of its own, which here are only names."""

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import CHECKED_VARIABLE
from grpo_core.sweep.campaign import Ended, Job
from tasks.sweep.local import LocalLauncher

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

OPTIONS = {
    "data.eval_fraction": 0.0,
    "evaluation.every_steps": None,
    "tracking.log_policy": False,
    "training.steps": 1,
    "training.processes": 2,
}
NOTES_ITS_GPUS = '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" > {notes}\nexec {python} "$@"\n'


def test_each_run_of_two_processes_has_two_gpus_of_its_own(
    prefect_api: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,4,5,6")
    variables = {"PREFECT_API_URL": prefect_api, CHECKED_VARIABLE: "1"}
    ended: list[Ended] = []
    with closing(LocalLauncher(2, variables, processes=2)) as launcher:
        for arm in range(2):
            python = tmp_path / f"python-{arm}"
            python.write_text(NOTES_ITS_GPUS.format(notes=tmp_path / f"gpus-{arm}", python=sys.executable))
            python.chmod(0o755)
            more = {"tracking.uri": f"sqlite:///{tmp_path}/{arm}.db", "training.python": str(python)}
            job = Job(
                arm=arm,
                seed=0,
                name="",
                base=tiny_yaml,
                overrides={**OPTIONS, **more},
                run_dir=RunDir(tmp_path / f"run-{arm}"),
                log_file=tmp_path / f"run-{arm}.log",
                processes=2,
            )
            launcher.start(job)
        while len(ended) < 2:
            ended += launcher.poll()
            time.sleep(0.1)
    assert [one.failure for one in ended] == [None] * 2
    assert [(tmp_path / f"gpus-{arm}").read_text() for arm in range(2)] == ["1,2\n", "4,5\n"]
