"""What importing loads, seen in fresh processes, and the layers that import-linter enforces."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_core

ROOT = Path(__file__).parents[2]
# The plugin is a project of its own: it runs in vLLM's environment, where it is the top-level package `grpo_vllm`.
PLUGIN = "grpo_core.generation.vllm.plugin.grpo_vllm"
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(grpo_core.__path__, "grpo_core.") if not module.name.startswith(PLUGIN)
)
WATCHED = ["mlflow", "prefect", "torch", "transformers", "trl", "vllm"]


def loaded_by(modules: list[str]) -> set[str]:
    """Return which of the watched packages a fresh process has loaded after importing the modules."""
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {WATCHED!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_watch_sees_what_is_loaded() -> None:
    assert loaded_by(["grpo_core.algorithm.kl"]) == {"torch"}


@pytest.mark.parametrize(
    "module",
    [
        "grpo_core",
        "grpo_core.config",
        "grpo_core.run.journal",
        "grpo_core.run.folder",
        "grpo_core.generation.vllm.opening",
        "flows",
        "flows.cli.app",
    ],
)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    assert loaded_by([module]) == set()


@pytest.mark.proof
def test_no_module_of_the_core_loads_an_orchestrator_a_tracker_or_a_backend() -> None:
    named_after_trl = [name for name in MODULES if name.startswith("grpo_core.backends.trl")]
    others = [name for name in MODULES if name not in named_after_trl]
    assert {"grpo_core.training.loop", "grpo_core.backends"} <= set(others)
    assert loaded_by(others) & {"mlflow", "prefect", "trl", "vllm"} == set()
    # TRL imports mlflow by itself where it is installed; `report_to` keeps it from being used.
    assert loaded_by(named_after_trl) & {"prefect", "vllm"} == set()


def test_exported_names_are_all_there() -> None:
    assert [name for name in grpo_core.__all__ if getattr(grpo_core, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        grpo_core.no_such_name  # noqa: B018


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


FIRST = """
import importlib, pkgutil, sys
import flows, grpo_core, tasks
found = [m.name for p in (flows, grpo_core, tasks) for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
for name in found:
    if not name.endswith("__main__") and "plugin" not in name and "starter" not in name:
        for known in [known for known in sys.modules if known.partition(".")[0] in ("flows", "grpo_core", "tasks")]:
            del sys.modules[known]
        importlib.import_module(name)
print(len(found))
"""


def test_every_module_can_be_the_first_that_is_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert int(done.stdout.splitlines()[-1]) > 150
