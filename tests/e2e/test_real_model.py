"""The bundled SmolLM2 on real data: slow, run by `make test-slow`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal
from tests.step_keys import required_step_keys

ROOT = Path(__file__).parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k" / "train.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.real_model, pytest.mark.timeout(900)]


@pytest.mark.skipif(not GSM8K.exists(), reason="needs GSM8K's train.jsonl beside the repository")
def test_gsm8k_from_a_file_completes_three_steps(grpo: Callable[..., Any], tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "gsm8k_smollm2_cpu.yaml")
    overrides = [f"data.source=file:{GSM8K}", "data.size=60", "training.steps=3", "tracking.log_policy=false"]
    done = grpo("train", config, *overrides, "--run-dir", "runs/gsm8k", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = read_journal(tmp_path / "runs" / "gsm8k" / "journal.jsonl")
    steps = [record for record in records if record.kind == "step"]
    assert [record.step for record in steps] == [1, 2, 3]
    assert all(set(required_step_keys(["math_answer"])) <= record.metrics.keys() for record in steps)
