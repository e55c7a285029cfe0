"""A reward function that sleeps in the first evaluation: the terminal names it, and the rule about silence reports it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from grpo_core.run.alerts import monitor_alerts
from grpo_core.run.folder import RunDir
from tasks.tracking.store import make_client, read_tracked

pytestmark = pytest.mark.proof
SLEEPS = """
import time

def f(completions, **columns):
    time.sleep(1000)
"""


def test_a_reward_that_sleeps_in_the_first_evaluation_is_named_and_reported(
    grpo: Any, tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "sleeping.py").write_text(SLEEPS)
    overrides = {
        "rewards": [{"fn": "sleeping:f", "cpu_seconds": 4.0, "dry_run": False}],
        "monitor.rules": [{"kind": "stalled", "bound": 0.5, "action": "stop"}],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, overrides)))
    done = grpo("train", "run.yaml", "--run-dir", "runs/one", cwd=tmp_path)
    assert done.returncode == 1
    what = "reward sleeping:f, called with 10 completions: no result after"
    assert f"{what} 40 s of the clock, ten times its bound in CPU time" in done.stderr
    run_dir = RunDir(tmp_path / "runs" / "one")
    (alert,) = monitor_alerts(run_dir)
    assert alert.text.startswith("evaluation of base: no record for ")
    assert not run_dir.stop_file.exists()  # the bound of the function ends it, not the rule
    shown = done.stdout.splitlines()
    assert alert.text in shown
    assert f"waiting for {what} 30 s; ended after 40 s, or 4 s of CPU time" in shown
    tracked = read_tracked(run_dir)
    assert make_client(tracked.uri).get_run(tracked.run_id).data.tags["alert.stalled"] == alert.text
