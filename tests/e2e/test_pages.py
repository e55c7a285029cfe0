"""Every command of the documentation is run where a reader would run it; the presets there are short, the commands as printed.

What needs servers, minutes or vLLM is not run: its verb, options, targets, deployments and parameters are looked up.
"""

import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides
from tests.e2e.conftest import Finished
from tests.e2e.pages import LOOKED_UP, ROOT, RUN, as_run, rule_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BIN = Path(sys.executable).parent
STOPS = {
    "monitor.rules": [{"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-9, "action": "stop"}],
    "training.steps": 200,  # not over before the rule is applied
}


@pytest.fixture(scope="module")
def shell(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """Return a function that runs a line of shell in a folder, with the project's environment activated."""
    home = tmp_path_factory.mktemp("home")

    def run(line: str, cwd: Path) -> Finished:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TRACKING")}
        environment = {
            **kept,
            "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
            "PYTHONPATH": str(ROOT),
            "PREFECT_API_URL": prefect_api,
            "PREFECT_HOME": str(home),
            "COLUMNS": "400",
        }
        return subprocess.run(
            ["bash", "-c", line], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture(scope="module")
def project(shell: Callable[..., Finished], tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with short presets, a finished run, a stopped one, one with a damaged journal, a sweep, and a reader's files."""
    folder = tmp_path_factory.mktemp("pages") / "project"
    (folder / "configs" / "sweeps").mkdir(parents=True)
    (folder / "configs" / "quickstart.yaml").write_text(yaml.safe_dump(tiny_values))
    shutil.copy(folder / "configs" / "quickstart.yaml", folder / "configs" / "sums_tiny_cpu.yaml")
    of_a_file = apply_overrides(tiny_values, {"rewards": [{"fn": "exact_answer"}], "data.source": "file:train.jsonl"})
    del of_a_file["data"]["task_args"], of_a_file["data"]["size"]
    (folder / "configs" / "gsm8k_smollm2_cpu.yaml").write_text(yaml.safe_dump(of_a_file))
    (folder / "configs" / "stopping.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, STOPS)))
    sweep = {"base": "quickstart", "axes": {"loss.beta": [0.0, 0.1]}, "seeds": [0], "objective": {"metric": "reward/mean"}}
    (folder / "configs" / "sweeps" / "beta_group_sync_tiny.yaml").write_text(yaml.safe_dump(sweep))
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(10) for b in range(10)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"num_generations": 4, "per_device_train_batch_size": 8, "beta": 0.04, "max_steps": 10}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    (folder / "settings.json").write_text(json.dumps(settings))
    start = "trl grpo " + " ".join(f"--{key} {value}" for key, value in settings.items()) + "\n"
    (folder / "run_grpo.sh").write_text(start)
    (folder / "run_all.sh").write_text(start * 2)
    (folder / "configs" / "mine.yaml").write_text(yaml.safe_dump(tiny_values))
    for line, code in (
        ("grpo train quickstart --run-dir runs/one", 0),
        ("grpo train stopping --run-dir runs/stopped", 3),
        ("grpo train quickstart --run-dir runs/damaged", 0),
        ("grpo sweep beta_group_sync_tiny --sweep-dir runs/sweep", 0),
    ):
        done = shell(line, folder)
        assert done.returncode == code, done.stderr
    journal = folder / "runs" / "damaged" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3] + lines[4:]))
    return folder


@pytest.fixture
def copied(project: Path, tmp_path: Path) -> Path:
    """A copy of the project's folder, so that no command sees what another one has done."""
    return Path(shutil.copytree(project, tmp_path / "project"))


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_the_documentation_runs(command: str, copied: Path, shell: Callable[..., Finished]) -> None:
    rule = rule_of(command)
    assert rule is not None
    done = shell(under_make(as_run(command, rule)), copied)
    output = done.stdout + done.stderr
    assert done.returncode == rule.code, output
    assert re.search(rule.phrase, output), output
    if (target := re.search(r" (?:>|-o) (\S+)$", as_run(command, rule))) is not None:
        assert yaml.safe_load((copied / target[1]).read_text())


def under_make(command: str) -> str:
    """Return what `make train` runs after the set-up, which is done; any other command as it is."""
    if not command.startswith("make "):
        return command
    lines = subprocess.run(
        ["bash", "-c", f"{command} --dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines[-1].startswith(".venv/bin/grpo train "), lines
    return lines[-1].removeprefix(".venv/bin/")


@pytest.mark.parametrize("command", LOOKED_UP)
def test_what_a_command_names_exists(command: str, copied: Path, shell: Callable[..., Finished]) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "grpo":
        offered = shell(f"grpo {words[1]} --help", copied).stdout
        assert [word for word in words if word.startswith("--") and word not in offered] == []
    elif words[:3] == ["prefect", "deployment", "run"]:
        given = {pair.partition("=")[0] for option, pair in pairwise(words) if option == "--param"}
        assert given <= parameters_of(words[3])


def parameters_of(deployment: str) -> set[str]:
    flow, _, name = deployment.partition("/")
    described = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    entrypoints = [entry["entrypoint"].rpartition(".") for entry in described if entry["name"] == name]
    found = [getattr(importlib.import_module(module), function) for module, _, function in entrypoints]
    (match,) = [candidate for candidate in found if candidate.name == flow]
    return set(inspect.signature(match.fn).parameters)
