"""What is in the wheel, what it needs, and that it works where the repository is not."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "grpo_core")
LISTING = """
import json
from setuptools import Distribution

project = Distribution({"script_name": "setup.py"})
project.parse_config_files()
build = project.get_command_obj("build_py")
build.ensure_finalized()
print(json.dumps([output.removeprefix(build.build_lib + "/") for output in build.get_outputs(include_bytecode=False)]))
"""
UNSEEN = {
    "flask-wtf": "MLflow's logins need it",
    "fastapi": "a bound of Prefect's own server",
    "gguf": "transformers reads the bundled model with it",
    "psycopg": "SQLAlchemy's driver of a study in PostgreSQL",
}
"""Distributions that the wheel needs and no file of it imports, each with its reason."""
PLUGIN = ROOT / "grpo_core/generation/vllm/plugin"
"""Runs in vLLM's environment alone."""
PARTS = {"botocore": "boto3", "pydantic-core": "pydantic", "redis": "prefect-redis", "tokenizers": "transformers"}
"""Distribution -> the one that cannot be without it."""


def product_files(root: Path) -> set[str]:
    """Return the files that a wheel of the repository must hold: those of the packages, with what links stand for."""
    return {
        str(Path(folder, name).relative_to(root))
        for package in PACKAGES
        for folder, folders, names in os.walk(root / package, followlinks=True)
        for name in names
        if "__pycache__" not in folder and Path(folder) not in {Path(folder, other) for other in folders}
    }


def test_the_wheel_holds_every_file_of_the_packages_and_the_presets() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LISTING], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(json.loads(done.stdout.splitlines()[-1]))
    assert listed == product_files(ROOT)
    configs = {f"grpo_core/presets/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert len(configs) >= 6
    assert configs | {"flows/stack/prefect.yaml", "flows/stack/job_template.json"} <= listed


def test_links_of_the_packages_stay_in_the_repository() -> None:
    links = {path: path.resolve() for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_symlink()}
    assert set(links.values()) == {(ROOT / "configs").resolve(), (ROOT / "prefect.yaml").resolve()}
    assert not any(path.readlink().is_absolute() for path in links)


OPTIONAL = ["tensorboard", "trackio", "trl", "vllm", "wandb"]
"""Extras with a package of the same name."""


def test_what_the_packages_import_is_declared_and_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed, optional = (
        {_name(text) for text in texts}
        for texts in (
            [*project["dependencies"], *extras["flows"], *extras["servers"]],
            [one for key in OPTIONAL for one in extras[key]],
        )
    )
    owners = packages_distributions()
    imported = {
        frozenset(PARTS.get(_name(owner), _name(owner)) for owner in owners.get(module, [module]))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if PLUGIN not in path.parents
        for module in _imported_modules(path)
        if module not in sys.stdlib_module_names and module not in PACKAGES
    }
    assert sorted(sorted(names) for names in imported if not names & needed) == [[name] for name in OPTIONAL]
    assert sorted(optional) == OPTIONAL
    assert needed - frozenset().union(*imported) == UNSEEN.keys()


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.lower())[0].replace("_", "-")


def _imported_modules(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in whole | parts}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_installed_wheel_trains_and_checks_a_sweep_where_the_repository_is_not(tmp_path: Path) -> None:
    python = _install(_build(tmp_path), tmp_path / "environment")
    work = tmp_path / "work"
    work.mkdir()
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PREFECT_", "MLFLOW_"))}
    variables |= {"PREFECT_HOME": str(tmp_path / "prefect"), "GRPO_CACHE": str(tmp_path / "cache")}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(str(python), "-c", "import flows, grpo_core, tasks; print(flows.__file__, grpo_core.__file__, tasks.__file__)")
    assert all(Path(file).is_relative_to(tmp_path) for file in where.split())
    grpo = str(python.with_name("grpo"))
    assert "the sweep is valid" in run(grpo, "sweep", "beta_group_sync_tiny", "--check")
    assert "index.html" in run(grpo, "train", "sums_tiny_cpu", "training.steps=2")
    assert len(list((work / "runs").glob("*/index.html"))) == 1


def _build(folder: Path) -> Path:
    """Return a wheel of the files that git tracks, built in a copy: an old build beside the sources would add old files."""
    source = folder / "source"
    source.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder / "wheels"), str(source)], check=True)
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def _install(wheel: Path, environment: Path) -> Path:
    """Return the interpreter of a new environment that holds the wheel, and everything else of this one but this project."""
    venv.create(environment, with_pip=False, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # A path alone: unlike `site.addsitedir`, it does not run the .pth file by which an editable install adds the repository.
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    return python
