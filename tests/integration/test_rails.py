"""What a deployed run may not name: code that its worker's owner has not allowed, whatever the way in; nothing is begun."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config import apply_overrides, load_config
from grpo_core.errors import ConfigError
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import load_sweep
from tasks.deployment_limits import ALLOWED_VARIABLE, load_allowed, load_allowed_sweep
from tasks.process.context import FLOW_RUN_VARIABLE, PART_VARIABLE, is_deployed
from tasks.run.setup import hold_run, open_evaluation, open_reproduction, open_run
from tasks.sweep.local import LocalLauncher
from tasks.sweep.stages import hold_sweep, open_sweep

TRACKING_VARIABLE, SOURCES_VARIABLE = "GRPO_ALLOWED_TRACKING", "GRPO_ALLOWED_SOURCES"
CODE = {
    "training.python": "/tmp/python",
    "model.trust_remote_code": True,
    "rewards": [{"fn": "length"}, {"fn": "mine.short:brevity"}],
}
NAMED = {
    "training.python": "training.python: '/tmp/python'",
    "model.trust_remote_code": "model.trust_remote_code: 'true'",
    "rewards": "rewards.1.fn: 'mine.short:brevity'",
}

STEP = '{"seq": 0, "time": "2026-01-01T00:00:00+00:00", "kind": "step", "step": 1, "data": {}}\n'


@pytest.fixture
def folder(tmp_path: Path, tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with configs/tiny.yaml, in which a deployment runs."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PART_VARIABLE, "1")
    monkeypatch.delenv(ALLOWED_VARIABLE, raising=False)
    monkeypatch.setenv(SOURCES_VARIABLE, str(Path(tiny_values["model"]["source"]).parent))
    return tmp_path


def refused(act: Callable[[], object], key: str) -> str:
    """Check that something is refused by the key and its value, with the remedy; return the message."""
    with pytest.raises(ConfigError) as caught:
        act()
    message = str(caught.value)
    assert NAMED[key] in message
    assert "at a terminal of the worker's machine" in message
    return message


@pytest.mark.parametrize("key", CODE)
def test_code_in_a_run_is_refused_whatever_the_way_in(
    folder: Path, tiny_values: dict[str, Any], tiny_run: Any, key: str
) -> None:
    refused(lambda: open_run.fn("tiny", {key: CODE[key]}, None), key)
    assert not (folder / "runs").exists()
    (folder / "configs" / "theirs.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, {key: CODE[key]})))
    refused(lambda: open_run.fn("theirs", {}, None), key)
    run_dir = tiny_run({key: CODE[key], "training.steps": 1})
    refused(lambda: hold_run(run_dir.path).__enter__(), key)
    run_dir.journal_file.write_text(STEP)
    refused(lambda: open_reproduction.fn(str(run_dir.path), {}, None), key)
    assert list((folder / "runs").iterdir()) == []


@pytest.mark.parametrize("key", CODE)
@pytest.mark.parametrize("place", ["overrides", "axes"])
def test_code_in_any_arm_of_a_sweep_is_refused(folder: Path, tiny_values: dict[str, Any], key: str, place: str) -> None:
    harmless = {"training.python": None, "model.trust_remote_code": False, "rewards": [{"fn": "length"}]}[key]
    values: dict[str, Any] = {"base": "tiny", "axes": {"loss.beta": [0, 0.1]}, "seeds": [0]}
    values[place] = {**values.get(place, {}), key: CODE[key] if place == "overrides" else [harmless, CODE[key]]}
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(values))
    refused(lambda: open_sweep.fn(str(file), {}, None), key)
    assert not (folder / "runs").exists()

    sweep_dir = SweepDir(folder / "runs" / "made-at-a-terminal")  # where a deployment may write
    sweep_dir.create(load_sweep(file), "sweep", "sweep-1")
    refused(lambda: hold_sweep(sweep_dir.path).__enter__(), key)


def test_allowed_modules_are_those_of_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = {"rewards": CODE["rewards"]}
    message = refused(lambda: load_allowed("tiny", rewards), "rewards")
    assert "grpo up --allow-reward mine.short" in message
    monkeypatch.setenv(ALLOWED_VARIABLE, "other, mine")
    load_allowed("tiny", rewards)
    for key in ("training.python", "model.trust_remote_code"):  # nothing allows those
        refused(lambda key=key: load_allowed("tiny", {**rewards, key: CODE[key]}), key)


def test_at_a_terminal_everything_is_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART_VARIABLE)
    for key, value in CODE.items():
        assert load_allowed("tiny", {key: value}).config == load_config("tiny", {key: value})


def test_the_runs_of_a_deployed_sweep_are_within_the_rails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART_VARIABLE, raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    launcher = LocalLauncher(1)
    assert PART_VARIABLE not in launcher._environment(0)
    monkeypatch.setenv(FLOW_RUN_VARIABLE, "0" * 32)
    inherited = launcher._environment(0)
    assert FLOW_RUN_VARIABLE not in inherited
    monkeypatch.delenv(FLOW_RUN_VARIABLE)
    monkeypatch.setenv(PART_VARIABLE, inherited[PART_VARIABLE])
    assert is_deployed()


SECRETS = {
    "key.pem": "-----BEGIN KEY-----\nhunter2: {\n",
    "credentials.yaml": "data: {source: [hunter2]}\n",
    "list.yaml": "- hunter2\n- hunter2\n",
    "unknown.json": '{"hunter2": "hunter2"}',
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_elsewhere_that_is_no_configuration_is_not_quoted(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"base": "tiny", "axes": {"loss.beta": [0, 0.1]}, "seeds": [0]}))
    for place in (tmp_path_factory.mktemp("elsewhere"), folder / ".grpo"):
        place.mkdir(exist_ok=True)
        file = place / name
        file.write_text(SECRETS[name])
        for act in (
            lambda file=file: open_run.fn(str(file), {}, None),
            lambda file=file: open_run.fn(str(file), {"loss.beta": 0.1}, None),
            lambda file=file: open_evaluation.fn("scratch:tiny", str(file), {}, None),
            lambda file=file: open_sweep.fn(str(file), {}, None),
            lambda file=file: open_sweep.fn(str(sweep), {"base": str(file)}, None),
        ):
            with pytest.raises(ConfigError) as caught:
                act()
            assert "hunter2" not in str(caught.value)
            assert caught.value.__suppress_context__  # nor in the traceback that Prefect stores
            assert f"`grpo check {file}`" in str(caught.value)


NAMES: dict[str, tuple[str, Any]] = {
    "a server": ("tracking.uri", "http://127.0.0.1:9999"),
    "the worker's host at another port": ("tracking.uri", "http://127.0.0.1:5001"),
    "a server in capitals": ("tracking.uri", "HTTP://127.0.0.1:9999"),
    "a database": ("tracking.uri", "postgresql://host/mlflow"),
    "a SQLite file": ("tracking.uri", "sqlite:////tmp/elsewhere/x.db"),
    "another SQLite file of the runs": ("tracking.uri", "sqlite:///runs/x.db"),
    "a folder of MLflow's": ("tracking.uri", "./mlruns"),
    "the name of a tracker": ("tracking.uri", "wandb"),
    "a tracker": ("tracking.also", ["tensorboard", "trackio"]),
    "weights elsewhere": ("model.source", "/tmp"),
    "weights in the home folder": ("model.source", "~"),
    "weights above": ("model.source", ".."),
    "a folder that there is not": ("model.source", "/etc/none"),
    "an adapter elsewhere": ("model.lora", {"init_from": "/tmp"}),
    "rows elsewhere": ("data.source", "file:/etc/rows.jsonl"),
    "rows above": ("data.source", "file:configs/../../rows.jsonl"),
    "rows of the stack": ("data.source", "file:.grpo/mlflow/rows.parquet"),
    "a folder as a data set": ("data.source", "hub:/tmp"),
}


@pytest.mark.parametrize("what", NAMES)
def test_a_deployment_names_no_server_and_no_file_but_the_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_run: Any, what: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv(SOURCES_VARIABLE, f"{os.environ[SOURCES_VARIABLE]}:/opt/models")
    monkeypatch.setenv(TRACKING_VARIABLE, "wandb")
    key, value = NAMES[what]
    named = "model.lora.init_from" if isinstance(value, dict) else key
    run_dir = tiny_run({key: value}) if key == "tracking.uri" else None
    for act in (
        lambda: open_run.fn("tiny", {key: value}, None),
        lambda: (
            open_evaluation.fn("scratch:tiny", "tiny", {key: value}, None)
            if key != "model.source"
            else load_allowed("tiny", {key: value})
        ),
        lambda: hold_run(run_dir.path).__enter__() if run_dir else load_allowed("tiny", {key: value}),
    ):
        with pytest.raises(ConfigError, match=rf"^{re.escape(named)}: .* is not .* at a terminal of the worker's machine"):
            act()
    assert not [path for path in (folder / "runs").glob("*") if path.is_dir()]
    assert not Path("/tmp/elsewhere").exists()


ALLOWED: dict[str, Any] = {
    "tracking.also": [["tensorboard"], ["wandb", "tensorboard"]],
    "tracking.uri": [
        "http://127.0.0.1:5000",
        "HTTP://127.0.0.1:5000/",
        "https://team.example",
        "sqlite:///runs/mlflow.db",
        "sqlite:///runs/team/mlflow.db",
    ],
    "model.source": [
        "bundled:smollm2-135m",
        "scratch:tiny",
        "org/name",
        "runs/one/checkpoints/step_000001/policy",
        "/opt/models/m",
    ],
    "data.source": [
        "reasoning_gym:chain_sum",
        "hub:openai/gsm8k",
        "file:rows.jsonl",
        "file:runs/rows.jsonl",
        "file:/opt/models/r.csv",
    ],
}


@pytest.mark.parametrize("key", ALLOWED)
def test_a_deployment_names_what_is_the_workers_or_its_owner_allows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv(TRACKING_VARIABLE, "http://other:1, https://TEAM.example:443, wandb")
    monkeypatch.setenv(SOURCES_VARIABLE, f"{os.environ[SOURCES_VARIABLE]}:/opt/models")
    for value in ALLOWED[key]:
        data = {"data.task_args": {}} if key == "data.source" and "gym" not in value else {}
        load_allowed("tiny", {key: value, **data})


def test_a_deployed_sweep_names_no_study(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, study = folder / "sweep.yaml", f"sqlite:///{tmp_path}/elsewhere.db"
    file.write_text(yaml.safe_dump({"base": "tiny", "axes": {"loss.beta": [0, 0.1]}, "seeds": [0], "study": study}))
    with pytest.raises(ConfigError, match=r"^study: .* is not the database of the worker's GRPO_STUDY_URL"):
        open_sweep.fn(str(file), {}, None)
    monkeypatch.setenv("GRPO_STUDY_URL", study)
    assert load_allowed_sweep(str(file), {}).sweep.study == study
    assert not (folder / "runs").exists()
