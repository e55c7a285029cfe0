"""The weights with which a run begins are its own: others under the same name are refused, lost ones named or replaced."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from grpo_core import resume_training, train
from grpo_core.data.prepare import prepare
from grpo_core.errors import ModelError
from grpo_core.evaluation.plan import find_subject
from grpo_core.export.choice import ExportWish
from grpo_core.export.policy_folder import export_policy
from grpo_core.policy.saved import INITIAL_FILE, list_checkpoints
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.cleaning import clean
from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import CHECKED_VARIABLE
from grpo_core.run.provenance import find_model, note_inputs

ROOT = Path(__file__).parents[2]
ADAPTER = "adapter_model.safetensors"
SMALL = {"model.lora.rank": 4, "optimizer.lr": 0.05, "training.steps": 2, "training.checkpoint_every": 1}
pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]
Trained = Callable[..., RunDir]


@pytest.fixture
def base(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "base"))


@pytest.fixture
def trained(tiny_config: Callable[..., Any], base: Path, tmp_path: Path) -> Trained:
    """Return a function that trains an adapter of the copy for two steps."""

    def run(name: str, **overrides: Any) -> RunDir:
        config = tiny_config({"model.source": str(base), **SMALL, **overrides})
        train(config, run_dir=tmp_path / name, evaluate=False, progress=False)
        return RunDir(tmp_path / name)

    return run


@pytest.fixture
def begun(trained: Trained, tmp_path: Path) -> tuple[RunDir, Path]:
    """(run that began with an adapter, the folder of that adapter, which lies in no run)."""
    start = shutil.copytree(policy_of(trained("first")), tmp_path / "start")
    return trained("second", **{"model.lora.init_from": str(start)}), Path(start)


def policy_of(run_dir: RunDir) -> Path:
    return run_dir.checkpoints / "step_000002" / "policy"


def change(file: Path, value: float = 0.5) -> str:
    """Change one number of a file of weights; return the name of its tensor."""
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(-1)[0] = value
    save_file(tensors, file, metadata={"format": "pt"})
    return name


def resume(run_dir: RunDir) -> None:
    resume_training(run_dir.path, evaluate=False, progress=False)


def test_model_and_adapter_have_digests_of_their_own_and_others_are_refused_by_name(
    begun: tuple[RunDir, Path], base: Path
) -> None:
    run_dir, start = begun
    facts = run_dir.read_provenance()
    assert (facts["model_digest"], facts["adapter_digest"]) == (weights_digest(base), weights_digest(start))
    assert "adapter_digest" not in RunDir(run_dir.path.parent / "first").read_provenance()
    card = export_policy(run_dir, ExportWish(), run_dir.path.parent / "out").card
    assert card.digests.items() >= {"model_digest": weights_digest(base), "adapter_digest": weights_digest(start)}.items()
    for key, folder, file in (
        ("model.source", base, "model.safetensors"),
        ("model.lora.init_from", start, ADAPTER),
        ("model.lora.init_from", start, "adapter_config.json"),
    ):
        before, content = weights_digest(folder), (folder / file).read_bytes()
        if file.endswith(".json"):  # the same A and B, at another scale
            (folder / file).write_text(json.dumps({**json.loads(content), "lora_alpha": 99}))
        else:
            change(folder / file)
        with pytest.raises(ModelError) as refused:
            resume(run_dir)
        now = f"{key} {folder}: has weights (SHA-256 {weights_digest(folder)[:12]})"
        assert f"{now} that are not those with which this run began ({before[:12]})" in str(refused.value)
        (folder / file).write_bytes(content)
    resume(run_dir)


def test_a_repetition_with_another_base_of_the_same_name_is_refused(trained: Trained, base: Path, tmp_path: Path) -> None:
    first, again = trained("first"), RunDir(tmp_path / "again")
    again.create(first.read_config(), kind="reproduction")
    shutil.copytree(first.path, again.original)
    change(base / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.source .* that are not those with which this run began"):
        note_inputs(again, "d", base, print)
    other, model = RunDir(tmp_path / "other"), first.read_config().model
    base.rename(tmp_path / "renamed")
    model = model.model_copy(update={"source": str(tmp_path / "renamed")})
    other.create(first.read_config().model_copy(update={"model": model}), kind="reproduction")
    shutil.copytree(first.path, other.original)
    lines: list[str] = []
    note_inputs(other, "d", tmp_path / "renamed", lines.append)
    assert any(line.startswith("environment: model: ") for line in lines)


def train_again_from(run_dir: RunDir, step: int) -> None:
    """Let a process train on from a checkpoint, where the newer ones are gone."""
    for checkpoint in run_dir.checkpoints.glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "grpo_core.training", str(run_dir.path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)


def test_a_lost_adapter_is_taken_from_the_run_that_began_with_it(begun: tuple[RunDir, Path], tmp_path: Path) -> None:
    run_dir, start = begun
    files = [policy_of(run_dir) / ADAPTER, policy_of(run_dir).with_name("initial.json")]
    before = [file.read_bytes() for file in files]
    shutil.rmtree(start)
    resume(run_dir)
    train_again_from(run_dir, 1)
    assert [file.read_bytes() for file in files] == before
    export_policy(run_dir, ExportWish(form="merged"), tmp_path / "merged")
    (run_dir.checkpoints / INITIAL_FILE).unlink()
    with pytest.raises(ModelError, match=r"model\.lora\.init_from"):
        resume(run_dir)


def test_a_run_is_resumed_and_exported_from_another_folder(
    trained: Trained, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(policy_of(trained("first")), tmp_path / "start")
    run_dir = trained("second", **{"model.source": base.name, "model.lora.init_from": "start"})
    before = (policy_of(run_dir) / ADAPTER).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_dir.read_config().model.source == base.name
    resume(run_dir)
    train_again_from(run_dir, 1)
    assert (policy_of(run_dir) / ADAPTER).read_bytes() == before
    export_policy(run_dir, ExportWish(form="merged"), tmp_path / "merged")
    base.rename(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"model\.source 'base': is no folder"):
        resume(run_dir)


FULL = {"model.lora": None, "optimizer.lr": 1e-3, "training.steps": 3, "training.checkpoint_every": 1}


@pytest.fixture
def continued(
    tiny_config: Callable[..., Any], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunDir, Path]:
    """(run of all weights that began with a checkpoint of another one, the policy of that checkpoint)."""
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    first, run_dir = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    make = {**FULL, "training.keep_checkpoints": 3}
    config = tiny_config({**make, "model.source": str(base), "training.steps": 2})
    train(config, run_dir=first.path, evaluate=False, progress=False)
    train(tiny_config({**make, "model.source": str(policy_of(first))}), run_dir=run_dir.path, progress=False)
    return run_dir, policy_of(first)


def newest_weights(run_dir: RunDir) -> bytes:
    return (run_dir.checkpoints / "step_000003" / "policy" / "model.safetensors").read_bytes()


def back_to(run_dir: RunDir, step: int) -> None:
    """Take a run back to where a kill after a step would have left it."""
    journal = run_dir.journal_file.read_bytes().splitlines(keepends=True)
    last = next(n for n, line in enumerate(journal) if b'"checkpoint"' in line and f'"step":{step},'.encode() in line)
    run_dir.journal_file.write_bytes(b"".join(journal[: last + 1]))
    for path in run_dir.checkpoints.glob("step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    (run_dir.eval / "final.json").unlink()


@pytest.mark.parametrize("fate", [pytest.param("pruned", marks=pytest.mark.slow), "trained again"])
def test_a_run_resumes_from_its_own_copy_whatever_became_of_its_start(fate: str, continued: tuple[RunDir, Path]) -> None:
    run_dir, start = continued
    expected, before = newest_weights(run_dir), json.loads((run_dir.eval / "base.json").read_text())
    back_to(run_dir, 2)
    (run_dir.eval / "base.parquet").unlink()  # its evaluation is made again, of the initial policy
    if fate == "trained again":
        change(start / "model.safetensors")
    else:
        shutil.rmtree(start.parent)
    lines: list[str] = []
    note_inputs(run_dir, "d", find_model(run_dir), lines.append)
    assert any("the run's own copy" in line for line in lines)
    resume_training(run_dir.path, progress=False)
    assert newest_weights(run_dir) == expected
    assert json.loads((run_dir.eval / "base.json").read_text()) == before
    export_policy(run_dir, ExportWish(), run_dir.path.parent / "out")
    subject = find_subject(str(run_dir.path))
    assert Path(subject.source) == run_dir.checkpoints / "step_000003" / "policy"


@pytest.mark.parametrize("key", ["model.source", pytest.param("model.lora.init_from", marks=pytest.mark.slow)])
def test_a_training_keeps_the_checkpoint_with_which_another_run_begins(
    key: str, tiny_config: Callable[..., Any], base: Path, tmp_path: Path
) -> None:
    first, other = RunDir(tmp_path / "first"), RunDir(tmp_path / "sweep" / "runs" / "arm-000-seed-0")
    lora = {"rank": 4} if key != "model.source" else None
    make = {**FULL, "model.source": str(base), "training.keep_checkpoints": 1, "model.lora": lora, "training.steps": 40}
    first.create(tiny_config(make))
    prepare(first.read_config(), first.data)
    command = [sys.executable, "-m", "grpo_core.training", str(first.path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as training:
        while not list_checkpoints(first.checkpoints):
            assert training.poll() is None
            time.sleep(0.05)
        training.kill()
    begun = list_checkpoints(first.checkpoints)[-1]
    named = {"model.lora": {"rank": 4, "init_from": str(begun / "policy")}} if lora else {key: str(begun / "policy")}
    other.create(tiny_config({**make, **named}))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert {path.name for path in list_checkpoints(first.checkpoints)} == {begun.name, "step_000040"}
    shutil.rmtree(other.path)
    (found,) = clean(tmp_path, ["checkpoints"]).items
    assert found.path == begun
