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


IMPORTED_TOO_EARLY = """
import builtins, gc, importlib.util, pkgutil, sys
gc.disable()
plain, early, ours = builtins.__import__, set(), sys.argv[1:]

def is_being_executed(name):
    return name.partition(".")[0] in ours and name in sys.modules and sys.modules[name].__spec__._initializing

def watch(name, globals=None, locals=None, fromlist=(), level=0):
    if globals is None or globals.get("__name__", "").partition(".")[0] not in ours:
        return plain(name, globals, locals, fromlist, level)
    whole = importlib.util.resolve_name("." * level + name, globals["__package__"]) if level else name
    parts = [f"{whole}.{part}" for part in fromlist or ()]
    early.update(found for found in parts if is_being_executed(found))
    result = plain(name, globals, locals, fromlist, level)
    if is_being_executed(whole) and not (parts and all(part in sys.modules for part in parts)):
        early.add(whole)
    return result

builtins.__import__ = watch
for package in ours:
    importlib.import_module(package)
    for module in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
        if not module.name.endswith("__main__") and "plugin" not in module.name and "starter" not in module.name:
            importlib.import_module(module.name)
print(sum(name.partition(".")[0] in ours for name in sys.modules))
print(sorted(early))
"""
"""Imports all of some packages; prints their number, and those that were imported while they were being executed."""


@pytest.mark.proof
def test_every_module_can_be_the_first_that_is_imported(tmp_path: Path) -> None:
    """Modules whose imports make no circle can be imported in any order."""
    (tmp_path / "circle").mkdir()
    for one, other in (("__init__", "a"), ("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / "circle" / f"{one}.py").write_text(f"import circle.{other}\n")
    command = [sys.executable, "-W", "ignore", "-c", IMPORTED_TOO_EARLY]
    made = subprocess.run([*command, "circle"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert made.stdout.splitlines() == ["4", "['circle.a']"]
    done = subprocess.run([*command, "flows", "grpo_core", "tasks"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    number, early = done.stdout.splitlines()[-2:]
    assert int(number) > 150
    assert early == "[]"
