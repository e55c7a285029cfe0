"""Write the export of a run: a verified checkpoint, in a folder that other libraries load, with its card."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError, raised_as
from grpo_core.export.card import CARD_FILE, Card, write_card
from grpo_core.export.choice import EXPORTS, ExportPlan, ExportWish, plan_export
from grpo_core.export.place import placed_whole
from grpo_core.export.public import hub_id
from grpo_core.machine.disk import write_whole
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.checkpoint import POLICY_FOLDER, verify_checkpoint
from grpo_core.policy.sources.find import folder_of, model_here
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.provenance import BASE, find_model, other_weights, weights_here

FORMAT = 1
"""Of the manifest."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is in its place."""

    folder: Path
    plan: ExportPlan
    card: Card
    notes: tuple[str, ...]
    """What its user has to know."""

    @property
    def facts(self) -> list[str]:
        """What was exported, one line a fact."""
        plan = self.plan
        merged = f"merged weights, {plan.dtype}" if plan.config.model.lora else plan.dtype
        greedy = [e for e in self.card.evaluations if e.policy is not None and e.key.endswith("/greedy_accuracy")]
        return [
            f"policy: {self.card.title}",
            f"exported: {'adapter' if plan.form == 'adapter' else merged}",
            *(f"{e.set_name} greedy accuracy: {e.policy}" for e in greedy),
            *([] if greedy else [f"the policy after step {plan.step} was not evaluated"]),
        ]


def export_policy(
    run_dir: RunDir, wish: ExportWish, folder: Path | None = None, report: Callable[[str], None] = lambda _: None
) -> Exported:
    """Export a policy of a run.

    Args:
        run_dir: of the run; nothing in it is changed.
        wish: which checkpoint, in which form.
        folder: where to; None = named after run, step and form below `runs/exports/`. An earlier export there is replaced.
        report: takes a line before what may take long.

    Raises:
        ConfigError: what is asked for contradicts the run.
        ModelError: there is no such checkpoint, it is damaged, or the base of an adapter cannot be used.
        FolderError: the folder is not an export of ours, was changed, or another export is writing it.
        JournalError: the run's journal is damaged, or the disk is full.
    """
    plan = plan_export(run_dir, wish)
    history = check_run(run_dir).history
    target = folder if folder is not None else EXPORTS / plan.name
    report(f"exporting {plan.checkpoint} to {target}")
    facts = {
        "format": FORMAT,
        "form": plan.form,
        "dtype": plan.dtype,
        "state": asdict(plan.state),
        "config_digest": run_dir.read_provenance().get("config_digest"),
    }
    with placed_whole(target, facts) as scratch:
        notes = write_policy(plan, scratch)
        card = write_card(plan, history, notes)
        write_whole(scratch / CARD_FILE, card.text)
    return Exported(folder=target, plan=plan, card=card, notes=notes)


CODE_KEYS = ("auto_map", "custom_pipelines")
"""Of a `*config.json`: the Python code that loading the model runs where its user trusts it."""
WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def write_policy(plan: ExportPlan, folder: Path) -> tuple[str, ...]:
    """Write the files of a policy into a folder; return what its user has to know, one line a fact.

    Raises:
        ModelError: the checkpoint is damaged or was removed meanwhile, or the base of its adapter is not here or another one.
    """
    gone = f"{plan.checkpoint}: cannot be copied ({{cause}}); a training that is under way may have removed it: export again"
    with raised_as(ModelError, gone, OSError):
        plan.checkpoint.stat()
        vouched = verify_checkpoint(plan.checkpoint)
        files = [Path(name) for name in sorted(vouched) if Path(name).parts[0] == POLICY_FOLDER]
        if plan.config.model.lora is not None and plan.form == "merged":
            _write_merged(plan, files, folder)
        else:
            _write_copy(plan, files, folder)
    if plan.form == "merged":
        _set_dtype(folder / "config.json", plan.dtype)
    about = _about_base(plan) if plan.form == "adapter" else ()
    return (*_about_figures(plan), *about, *_settle_code(folder, trusted=plan.config.model.trust_remote_code))


def _write_copy(plan: ExportPlan, files: Iterable[Path], folder: Path) -> None:
    """Write the files of a checkpoint's policy, its weights in another type where that is asked for."""
    from safetensors.torch import load_file

    if plan.dtype == "float32":
        _copy(plan, files, folder)
    else:
        _copy(plan, [file for file in files if file.name != WEIGHTS_FILE], folder)
        _save(load_file(plan.checkpoint / POLICY_FOLDER / WEIGHTS_FILE), plan, folder)


def _write_merged(plan: ExportPlan, files: Iterable[Path], folder: Path) -> None:
    """Write the base with the adapter added to it, and the tokenizer of the checkpoint."""
    from grpo_core.policy.loading import open_policy
    from grpo_core.policy.weights import as_on_hub

    config = plan.config
    # Where products are computed in bfloat16, the base is rounded to it; here nothing is computed, and fp32 is what it is.
    model = config.model.model_copy(update={"dtype": "float32"})
    training = config.training.model_copy(update={"device": "cpu", "gradient_checkpointing": False})
    if (fault := _why_other_base(plan, find_model(plan.run_dir))) is not None:
        raise ModelError(f"{fault}; merged with them it would be another policy: restore them")
    in_float32 = config.model_copy(update={"model": model, "training": training})
    policy = open_policy(plan.checkpoint / POLICY_FOLDER, in_float32)
    policy.model.save_pretrained(folder, state_dict={})  # all but the weights
    _copy(plan, [file for file in files if file.name not in ADAPTER_FILES], folder)
    _save(as_on_hub(policy.model, dict(policy.merged_weights())), plan, folder)


def _copy(plan: ExportPlan, files: Iterable[Path], folder: Path) -> None:
    for file in files:
        target = folder / file.relative_to(POLICY_FOLDER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(plan.checkpoint / file, target)


def _save(weights: Mapping[str, Any], plan: ExportPlan, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    dtype = torch.bfloat16 if plan.dtype == "bfloat16" else torch.float32
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    whole = {name: tensor.detach().contiguous() for name, tensor in cast.items()}
    save_file(whole, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _set_dtype(file: Path, dtype: str) -> None:
    """Let the configuration of a model name the type of its weights."""
    config = read_json(file)
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        section |= {key: dtype for key in ("dtype", "torch_dtype") if key in section}
    _write_like_transformers(file, config)


def _why_other_base(plan: ExportPlan, folder: Path) -> str | None:
    """Return that a model has other weights than the one on which the adapter was trained, with both digests; else None."""
    now = weights_here(plan.config, folder)
    return other_weights(plan.run_dir.read_provenance(), plan.config, now, "on which the adapter was trained").get(BASE)


def _about_figures(plan: ExportPlan) -> Iterator[str]:
    """Yield what the figures of the card are of, where that is not just what is exported."""
    computed, is_adapted = plan.config.model.dtype, plan.config.model.lora is not None
    if computed == plan.dtype == "float32":
        return
    if computed == "float32":
        yield f"rounded to {plan.dtype}: every figure here is of the weights in float32"
        return
    exported = "; exported is their sum, rounded, in which a small adapter can be lost" if is_adapted else ""
    if plan.dtype == "float32":
        exported = "; exported is what was trained, in float32"
    weights = "base and adapter" if is_adapted else "the weights"
    yield f"the run computed in {computed}: every figure here is of {weights} rounded to it for each product{exported}"


def _about_base(plan: ExportPlan) -> Iterator[str]:
    source = plan.config.model.source
    folder = model_here(source)
    if folder is not None and (fault := _why_other_base(plan, folder)) is not None:
        yield f"{fault}: the adapter fits those of the training alone"
    if hub_id(source) is None:
        yield (
            f"the base {source} is no model of the hub: whoever loads the adapter has to have it, and gives its folder "
            "(PeftModel.from_pretrained(base, adapter)); --merged needs no base"
        )
    if folder_of(source) is not None:
        yield (
            "adapter_config.json has a folder of this machine as base_model_name_or_path: before you publish the adapter, "
            "replace it by the id on the hub under which others find the base"
        )


def _settle_code(folder: Path, *, trusted: bool) -> tuple[str, ...]:
    """Leave code to be run at loading only where the run ran it, and say so."""
    python = sorted(folder.rglob("*.py"))
    configs = {file: read_json(file) for file in sorted(folder.glob("*config.json"))}
    naming = [file for file, values in configs.items() if any(key in values for key in CODE_KEYS)]
    if not python and not naming:
        return ()
    what = ", ".join([*(file.name for file in python), *(f"{file.name} (auto_map)" for file in naming)])
    if trusted:
        return (f"runs code: loading it needs trust_remote_code=True, as the run did; read it first: {what}",)
    for file in python:
        file.unlink()
    for file in naming:
        _write_like_transformers(file, {key: value for key, value in configs[file].items() if key not in CODE_KEYS})
    return (f"left out: code of the model that the run did not run ({what}); transformers' own class loads it",)


def _write_like_transformers(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
