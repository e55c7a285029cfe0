"""A policy that was exported: loaded by transformers and PEFT, trained on, refused, replaced, and described."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
import yaml

from grpo_core import train
from grpo_core.config import apply_overrides, validate_config
from grpo_core.data.prepare import load_frozen
from grpo_core.errors import FolderError, ModelError
from grpo_core.export.card import CARD_FILE, write_card
from grpo_core.export.choice import ExportWish, plan_export
from grpo_core.export.policy_folder import MANIFEST_FILE, Exported, export_policy, write_policy
from grpo_core.machine.disk import durable_folder, sha256_of
from grpo_core.policy.loading import open_policy
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.flow_folder import write_marker
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run

pytestmark = pytest.mark.proof
HOSTILE = "</td><script>alert(1)</script> | [x](http://evil/x) ![](http://evil/y)\n# big\n---\nlicense: mit\n```"
OBSERVED = {
    "training.checkpoint_every": 2,
    "training.keep_checkpoints": 3,
    "probe.every_steps": 2,
    "probe.num_prompts": 4,
}


@pytest.fixture(scope="module")
def make(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    """Return a function that trains the tiny model with overrides, and evaluates it before and after."""

    def trained(overrides: dict[str, Any], name: str) -> RunDir:
        config = validate_config(apply_overrides(tiny_values, {**OBSERVED, **overrides}))
        folder = tmp_path_factory.mktemp(name) / "one"
        train(config, run_dir=folder, progress=False)
        return RunDir(folder)

    return trained


@pytest.fixture(scope="module")
def full(make: Callable[..., RunDir]) -> RunDir:
    """A run of all weights, evaluated every two steps, whose texts are a stranger's."""
    texts = {"data.system_prompt": HOSTILE, "tracking.labels": {"arm": HOSTILE}, "tracking.run_name": HOSTILE}
    return make({**texts, "evaluation.every_steps": 2, "rollout.max_prompt_tokens": 220}, "full")


@pytest.fixture(scope="module")
def adapted(make: Callable[..., RunDir]) -> RunDir:
    """A run of an adapter, with a rate at which it moves far."""
    return make({"model.lora.rank": 4, "optimizer.lr": 0.05}, "adapted")


@pytest.fixture
def copied(full: RunDir, tmp_path: Path) -> RunDir:
    """A copy of the run of all weights, to be changed."""
    shutil.copytree(full.path, tmp_path / "copied")
    return RunDir(tmp_path / "copied")


def text_of(exported: Exported) -> str:
    return (exported.folder / CARD_FILE).read_text()


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in folder.iterdir()}


def test_transformers_gives_the_logits_of_the_policy(full: RunDir, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = export_policy(full, ExportWish(), tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(exported.folder, dtype="auto").eval()
    assert model.dtype == torch.float32
    prompt = load_frozen(full.data)[1][0]
    ids = AutoTokenizer.from_pretrained(exported.folder)(prompt.text, add_special_tokens=False)["input_ids"]
    assert ids == list(prompt.token_ids)
    ours = open_policy(list_checkpoints(full.checkpoints)[-1] / "policy", full.read_config()).model
    with torch.no_grad():
        torch.testing.assert_close(model(torch.tensor([ids])).logits, ours(torch.tensor([ids])).logits)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks a model for it
def test_an_adapter_is_peft_s_and_merged_it_is_what_peft_merges(adapted: RunDir, tiny_model_dir: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = export_policy(adapted, ExportWish(), tmp_path / "adapter")
    merged = export_policy(adapted, ExportWish(form="merged"), tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    by_peft = PeftModel.from_pretrained(base, adapter.folder).merge_and_unload().state_dict()
    model = AutoModelForCausalLM.from_pretrained(merged.folder, dtype="auto").eval()
    ours = model.state_dict()
    assert ours.keys() == by_peft.keys()
    assert all(torch.equal(ours[name], by_peft[name]) for name in ours)
    assert max(float((ours[name] - before[name]).abs().max()) for name in ours) > 0.1
    assert yaml.safe_load(text_of(adapter).split("---")[1])["library_name"] == "peft"
    assert any("is no model of the hub" in note for note in adapter.notes)
    assert any("has a folder of this machine as base_model_name_or_path" in note for note in adapter.notes)
    assert "lora" in yaml.safe_load(text_of(merged).split("---")[1])["tags"]


def test_an_adapter_is_not_merged_with_another_base(make: Callable[..., RunDir], adapted: RunDir, tmp_path: Path) -> None:
    source = Path(adapted.read_config().model.source) / "model.safetensors"
    content = source.read_bytes()
    try:
        source.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(
            ModelError,
            match=r"model\.source .*: has weights \(SHA-256 \w{12}\) that are not those on which the adapter was trained",
        ):
            export_policy(adapted, ExportWish(form="merged"), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        alone = export_policy(adapted, ExportWish(), tmp_path / "out")
        assert any("the adapter fits those of the training alone" in note for note in alone.notes)
    finally:
        source.write_bytes(content)


def test_figures_of_a_run_in_bfloat16_are_of_rounded_weights(make: Callable[..., RunDir], tmp_path: Path) -> None:
    options = {"model.lora.rank": 2, "training.steps": 1, "evaluation.samples": 0, "evaluation.k": []}
    run = make({**options, "model.dtype": "bfloat16"}, "half")
    text = text_of(export_policy(run, ExportWish(form="merged", dtype="bfloat16"), tmp_path / "out"))
    assert "every figure here is of base and adapter rounded to it for each product; exported is their sum, rounded" in text
    assert "of the weights in float32" not in text


def test_another_run_starts_from_an_export(full: RunDir, tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    exported = export_policy(full, ExportWish(), tmp_path / "out")
    config = tiny_config(
        {"model.source": str(exported.folder), "training.steps": 1, "evaluation.samples": 0, "evaluation.k": []}
    )
    assert train(config, run_dir=tmp_path / "next", evaluate=False, progress=False).last_step == 1


def test_a_step_or_the_best_is_chosen_and_one_that_is_not_there_is_named(full: RunDir, adapted: RunDir, tmp_path: Path) -> None:
    assert export_policy(full, ExportWish(step=2), tmp_path / "two").plan.step == 2
    best = export_policy(full, ExportWish(best=True), tmp_path / "best")
    assert best.plan.step == best.plan.state.best_step
    with pytest.raises(ModelError, match="has no checkpoint of step 3; there are those of step 2, 4"):
        export_policy(full, ExportWish(step=3), tmp_path / "three")
    with pytest.raises(ModelError, match=r"no step of it was evaluated \(evaluation\.every_steps\)"):
        export_policy(adapted, ExportWish(best=True), tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "two"]


def test_a_damaged_checkpoint_leaves_the_earlier_export_as_it_was(copied: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export_policy(copied, ExportWish(), target)
    before = files_of(target)
    weights = list_checkpoints(copied.checkpoints)[-1] / "policy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"step_000004: the SHA-256 of policy/model.safetensors is not the manifest's"):
        export_policy(copied, ExportWish(), target)
    assert files_of(target) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copied", "out"]


def test_what_is_no_export_of_ours_is_never_overwritten(full: RunDir, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "notes.txt").write_text("mine")
    write_marker(durable_folder(tmp_path / "run"), "run")
    shutil.copytree(theirs, tmp_path / ".out.partial")  # where a start would lie
    for name, fault in {"theirs": "it holds notes.txt", "out": "it holds notes.txt", "run": "is the folder of a run"}.items():
        with pytest.raises(FolderError, match=fault):
            export_policy(full, ExportWish(), tmp_path / name)
    assert (theirs / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.partial", "run", "theirs"]


def test_an_export_is_replaced_unless_somebody_has_changed_it(full: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = export_policy(full, ExportWish(step=2), target)
    assert export_policy(full, ExportWish(), target).plan.step == 4
    assert json.loads((target / MANIFEST_FILE).read_text())["state"]["step"] == 4
    assert export_policy(full, ExportWish(step=2), target).card == first.card
    (target / "mine.txt").write_text("notes")
    (target / CARD_FILE).write_text("edited")
    before = files_of(target)
    with pytest.raises(FolderError, match=r"changed since \(README.md, mine.txt\)\. Nothing was changed"):
        export_policy(full, ExportWish(), target)
    assert files_of(target) == before


def test_the_card_has_every_figure_of_this_step_and_none_of_another(full: RunDir, tmp_path: Path) -> None:
    exported = export_policy(full, ExportWish(), tmp_path / "out")
    text, history = text_of(exported), check_run(full).history
    for name in ("base", "final"):
        for key, estimate in json.loads((full.eval / f"{name}.json").read_text())["estimates"].items():
            assert f"`{key.rpartition('/')[2]}`" in text
            assert f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]" in text
    last = next(record for record in reversed(history) if record.kind == "step").metrics
    for key, error in (
        ("kl/ref/drift", "kl/ref/drift_se"),
        ("kl/init/drift", "kl/init/drift_se"),
        ("kl/probe/full", "kl/probe/se"),
    ):
        assert re.search(rf"`{key}` \|.*\| {re.escape(f'{last[key]:.4g}')} \| {re.escape(f'{last[error]:.2g}')} \| 3 \|", text)
    base, final = (pandas.read_parquet(full.eval / f"{name}.parquet").query("sample == -1") for name in ("base", "final"))
    both = base.merge(final, on="prompt_id")
    lost, gained = (
        int((both[one] & ~both[other]).sum()) for one, other in (("correct_x", "correct_y"), ("correct_y", "correct_x"))
    )
    assert f"; lost {lost}, gained {gained} (McNemar's exact p " in text
    early = export_policy(full, ExportWish(step=2), tmp_path / "early")
    rows = [line for line in text_of(early).splitlines() if line.startswith("| `heldout` ")]
    assert rows
    assert all(row.endswith("| not evaluated |") for row in rows)  # the run's final evaluation is of step 4
    third = next(record for record in history if record.kind == "step" and record.step == 3)
    assert f"| {third.metrics['kl/ref/drift']:.4g} | {third.metrics['kl/ref/drift_se']:.2g} | 2 |" in text_of(early)


def test_text_of_a_stranger_is_text_on_the_card_and_nothing_of_this_machine_leaves_it(full: RunDir, tmp_path: Path) -> None:
    exported = export_policy(full, ExportWish(), tmp_path / "out")
    _, front, body = text_of(exported).split("---\n", 2)
    assert set(yaml.safe_load(front)) == {"library_name", "pipeline_tag", "tags"}
    assert "alert(1)" in body
    assert "<script" not in body
    assert not re.search(r"(?<!\\)\]\(", body)
    assert "\n---" not in body
    assert not re.search(r"^#(?! &lt;).*big", body, re.MULTILINE)
    assert re.findall(r"^```.*$", body, re.MULTILINE) == ["```python", "```"]
    texts = [path.read_text() for path in exported.folder.iterdir() if path.suffix != ".safetensors"]
    for place in (full.path.parent, Path(full.read_config().model.source).parent, tmp_path):
        assert all(str(place) not in text for text in texts)
    assert "`…/tiny`" in body


def with_code(checkpoint: Path) -> None:
    """Let a checkpoint name Python code, and hold some, as that of a model from the hub does."""
    config, code, manifest = (checkpoint / name for name in ("policy/config.json", "policy/modeling_evil.py", "manifest.json"))
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    config.write_text(json.dumps({**json.loads(config.read_text()), "auto_map": auto_map}))
    code.write_text("raise SystemExit('ran')\n")
    digests = {f"policy/{file.name}": sha256_of(file) for file in (config, code)}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **digests}))


def test_code_of_a_model_is_left_out_unless_the_run_ran_it_and_then_the_card_says_so(copied: RunDir, tmp_path: Path) -> None:
    with_code(list_checkpoints(copied.checkpoints)[-1])
    plan = plan_export(copied, ExportWish())
    for trusted, said in ((False, "left out: code of the model"), (True, "runs code: loading it needs trust_remote_code=True")):
        model = plan.config.model.model_copy(update={"trust_remote_code": trusted})
        now = replace(plan, config=plan.config.model_copy(update={"model": model}))
        folder = durable_folder(tmp_path / str(trusted))
        (note,) = write_policy(now, folder)
        assert (folder / "modeling_evil.py").exists() is trusted
        assert ("auto_map" in json.loads((folder / "config.json").read_text())) is trusted
        assert said in note
        assert "modeling" in write_card(now, check_run(copied).history, [note]).text
