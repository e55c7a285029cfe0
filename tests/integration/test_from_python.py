"""`grpo_core.train`: a run from Python equals the process by itself, needs no orchestrator, and survives Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Run, RunConfig, resume_training, train
from grpo_core.errors import ConfigError, TrainingError
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal

ROOT = Path(__file__).parents[2]
DETERMINISTIC = ["reward/mean", "kl/ref/drift", "kl/init/drift", "loss/total", "optim/grad_norm"]
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_from_python_has_the_figures_of_the_process_by_itself(
    tiny_config: Callable[..., RunConfig], tiny_run: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny_config({"training.steps": 1}), evaluate=False, progress=False).last_step == 1
    assert capsys.readouterr() == ("", "")
    run = train(tiny_config(), overrides=["training.steps=4"])
    assert run.state == "finished"
    assert run.last_step == 4
    assert list(run.syncs["step"]) == [2, 4]
    assert list(run.evaluations["policy"]) == ["base", "final"]
    assert run.path.parent == Path("runs")
    by_itself = tiny_run()
    subprocess.run([sys.executable, "-m", "grpo_core.training", str(by_itself.path)], cwd=ROOT, check=True, capture_output=True)
    assert run.steps[DETERMINISTIC].equals(Run(by_itself.path).steps[DETERMINISTIC])
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert f"reward={run.steps['reward/mean'].iloc[-1]:.3g}" in shown


def test_a_refused_configuration_leaves_no_folder() -> None:
    with pytest.raises(ConfigError, match=r"did you mean loss\.beta"):
        train("quickstart", overrides={"loss.bta": 1})
    assert not Path("runs").exists()


def test_an_error_of_the_training_is_raised_with_its_cause(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def fails(completions, **columns):\n    raise RuntimeError('no such unit: furlong')\n"
    Path("failing_rewards.py").write_text(text)
    rewards = [{"fn": "failing_rewards:fails", "dry_run": False}]
    with pytest.raises(TrainingError, match=r"failing_rewards:fails raised RuntimeError: no such unit: furlong"):
        train(tiny_config({"rewards": rewards}), run_dir="one", evaluate=False, progress=False)
    assert Run("one").state == "failed"


def test_a_rule_that_stops_ends_the_run(tiny_config: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]) -> None:
    rule = {"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-9, "action": "stop"}
    run = train(tiny_config({"training.steps": 400, "monitor.rules": [rule]}), run_dir="one", evaluate=False)
    assert run.state == "stopped"
    assert run.last_step < 400
    assert "above the budget of 1e-09 nats" in str(run.reason)
    assert "resume_training('one') continues the run" in capsys.readouterr().out


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from grpo_core import load_config, train
try:
    train(load_config("tiny.yaml"), run_dir="one", evaluate=False)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


@pytest.mark.parametrize("interrupts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_after_ctrl_c_the_run_is_resumed_to_the_same_end(
    interrupts: int, tiny_values: dict[str, Any], tiny_config: Callable[..., RunConfig]
) -> None:
    import yaml

    from grpo_core.config import apply_overrides

    steps = {"training.steps": 30, "training.checkpoint_every": 10}
    Path("tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, steps)))
    code, output = interrupt(interrupts)
    assert code == 130, output
    assert "resume_training('one') continues the run" in output
    assert 0 < Run("one").last_step < 30
    resumed = resume_training("one", evaluate=False, progress=False)
    assert resumed.state == "finished"
    whole = train(tiny_config(steps), run_dir="two", evaluate=False, progress=False)
    assert resumed.steps[DETERMINISTIC].equals(whole.steps[DETERMINISTIC])


def interrupt(times: int) -> tuple[int, str]:
    """Train in another process, send it SIGINT after some steps; return its exit code and output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Path("output").open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    journal = Path("one/journal.jsonl")
    while not (journal.exists() and sum(record.kind == "step" for record in read_journal(journal)) >= 12):
        assert child.poll() is None, Path("output").read_text()
        time.sleep(0.02)
    for _ in range(times):
        os.killpg(child.pid, signal.SIGINT)  # a terminal sends it to the whole group
        time.sleep(0.05)
    return child.wait(60), Path("output").read_text()


def test_neither_orchestrator_nor_tracker_is_loaded(tiny_values: dict[str, Any]) -> None:
    import yaml

    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    program = (
        "import sys; from grpo_core import train; train('tiny.yaml', progress=False); "
        "print([name for name in ('prefect', 'mlflow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_the_script_of_the_page_trains_on_its_function_and_rows() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    script = page.partition("<!-- script: given -->\n```python\n")[2].partition("```")[0]
    Path("script.py").write_text(
        script.replace('"training.steps": 20', '"training.steps": 2, "rollout.num_prompts_per_step": 4')
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "script.py"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = Path("runs").iterdir()
    run = Run(path)
    assert run.last_step == 2
    assert sorted(file.suffix for file in run.dir.given.iterdir() if file.is_file()) == [".jsonl", ".py"]
    assert run.config.rewards[0].fn.endswith(":right")
    assert run.evaluations["num_prompts"].tolist() == [10, 10]
