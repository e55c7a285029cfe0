"""The files of an export beside its card: weights, configuration and tokenizer, copied from a checkpoint or merged.

Only files that the checkpoint's manifest vouches for are taken, and every copy is compared with it. Python files, and the
`auto_map` by which a configuration names some, are taken only where the run itself ran them.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError, raised_as
from grpo_core.export.choice import ExportPlan
from grpo_core.export.public import hub_id
from grpo_core.machine.disk import folder_bytes, sha256_of
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.checkpoint import POLICY_FOLDER, verify_checkpoint
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo_core.policy.saved import MANIFEST_FILE
from grpo_core.policy.sources.find import folder_of, model_here
from grpo_core.policy.weights_file import WEIGHTS_FILE, Weights, save_weights
from grpo_core.run.disk_need import BYTES_PER_WEIGHT
from grpo_core.run.model_shape import count_parameters
from grpo_core.run.start_weights import BASE, find_model, other_weights, weights_here

CODE_KEYS = ("auto_map", "custom_pipelines")
"""Of a `*config.json`: the Python code that loading the model runs where its user trusts it."""
SMALL_BYTES = 1_000_000
"""Card and manifest."""


def export_bytes(plan: ExportPlan) -> int:
    """Return about how many bytes an export writes, or more.

    Raises:
        ModelError: the base of an adapter cannot be found.
    """
    policy = folder_bytes(plan.checkpoint / POLICY_FOLDER) + SMALL_BYTES
    if plan.config.model.lora is None or plan.form == "adapter":
        return policy
    parameters = count_parameters(find_model(plan.run_dir)) or 0
    return policy + BYTES_PER_WEIGHT * parameters


def write_policy(plan: ExportPlan, folder: Path) -> tuple[str, ...]:
    """Write the files of a policy into a folder; return what its user has to know, one line a fact.

    Raises:
        ModelError: the checkpoint is damaged or was removed meanwhile, or the base of its adapter is not here or another one.
    """
    gone = f"{plan.checkpoint}: cannot be copied ({{cause}}); a training that is under way may have removed it: export again"
    with raised_as(ModelError, gone, OSError):
        (plan.checkpoint / MANIFEST_FILE).stat()
        verify_checkpoint(plan.checkpoint)
        if plan.config.model.lora is not None and plan.form == "merged":
            _write_merged(plan, folder)
        else:
            _write_copy(plan, folder)
    return (
        *_about_figures(plan),
        *(_about_base(plan) if plan.form == "adapter" else ()),
        *_settle_code(folder, trusted=plan.config.model.trust_remote_code),
    )


def _policy_files(plan: ExportPlan) -> dict[str, str]:
    """Return {file of the policy folder: SHA-256}, as the manifest of the checkpoint has it."""
    digests: Mapping[str, str] = read_json(plan.checkpoint / MANIFEST_FILE)
    prefix = f"{POLICY_FOLDER}/"
    return {name.removeprefix(prefix): sha256 for name, sha256 in digests.items() if name.startswith(prefix)}


def _write_copy(plan: ExportPlan, folder: Path) -> None:
    """Write the files of a checkpoint's policy, its weights in another type where that is asked for."""
    from safetensors.torch import load_file

    policy = plan.checkpoint / POLICY_FOLDER
    for name, sha256 in _policy_files(plan).items():
        if name != WEIGHTS_FILE or plan.dtype == "float32":
            _copy(policy / name, folder / name, sha256)
    if plan.dtype != "float32":
        _save(load_file(policy / WEIGHTS_FILE), plan, folder)
    if plan.form == "merged":
        _set_dtype(plan, folder)


def _write_merged(plan: ExportPlan, folder: Path) -> None:
    """Write the base with the adapter added to it, and the tokenizer of the checkpoint."""
    from grpo_core.policy.hub_names import as_on_hub
    from grpo_core.policy.opening import open_policy

    config = plan.config
    # Where products are computed in bfloat16, the base is rounded to it; here nothing is computed, and fp32 is what it is.
    model = config.model.model_copy(update={"dtype": "float32"})
    training = config.training.model_copy(update={"device": "cpu", "gradient_checkpointing": False})
    if (fault := _why_other_base(plan, find_model(plan.run_dir))) is not None:
        raise ModelError(f"{fault}; merged with them it would be another policy: restore them")
    in_float32 = config.model_copy(update={"model": model, "training": training})
    policy = open_policy(plan.checkpoint / POLICY_FOLDER, in_float32)
    policy.model.save_pretrained(folder, state_dict={})  # all but the weights
    for name, sha256 in _policy_files(plan).items():
        if name not in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            _copy(plan.checkpoint / POLICY_FOLDER / name, folder / name, sha256)
    _save(as_on_hub(policy.model, dict(policy.merged_weights())), plan, folder)
    _set_dtype(plan, folder)


def _why_other_base(plan: ExportPlan, folder: Path) -> str | None:
    """Return that a model has other weights than the one on which the adapter was trained, with both digests; else None."""
    now = weights_here(plan.config, folder)
    return other_weights(plan.run_dir.read_provenance(), plan.config, now, "on which the adapter was trained").get(BASE)


def _about_figures(plan: ExportPlan) -> Iterator[str]:
    """Yield what the figures of the card are of, where that is not just what is exported."""
    computed = plan.config.model.dtype
    if computed == "float32":
        if plan.dtype != "float32":
            yield f"rounded to {plan.dtype}: every figure here is of the weights in float32"
        return
    is_adapted = plan.config.model.lora is not None
    weights, exported = "base and adapter" if is_adapted else "the weights", ""
    if plan.dtype == "float32":
        exported = "; exported is what was trained, in float32"
    elif is_adapted:
        exported = "; exported is their sum, rounded, in which a small adapter can be lost"
    yield f"the run computed in {computed}: every figure here is of {weights} rounded to it for each product{exported}"


def _about_base(plan: ExportPlan) -> Iterator[str]:
    source = plan.config.model.source
    folder = model_here(source)
    if folder is not None and (fault := _why_other_base(plan, folder)) is not None:
        yield f"{fault}: the adapter fits those of the training alone"
    if hub_id(source) is not None:
        return
    yield (
        f"the base {source} is no model of the hub: whoever loads the adapter has to have it, and gives its folder "
        "(PeftModel.from_pretrained(base, adapter)); --merged needs no base"
    )
    if folder_of(source) is not None:
        yield (
            f"{ADAPTER_CONFIG} has a folder of this machine as base_model_name_or_path: before you publish the adapter, "
            "replace it by the id on the hub under which others find the base"
        )


def _save(weights: Weights, plan: ExportPlan, folder: Path) -> None:
    import torch

    dtype = torch.bfloat16 if plan.dtype == "bfloat16" else torch.float32
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    save_weights(cast, folder / WEIGHTS_FILE)


def _set_dtype(plan: ExportPlan, folder: Path) -> None:
    """Let the configuration name the type of the weights."""
    file = folder / "config.json"
    config = read_json(file)
    for section in _sections(config):
        for key in ("dtype", "torch_dtype"):
            if key in section:
                section[key] = plan.dtype
    _write_like_transformers(file, config)


def _sections(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _sections(value)


def _settle_code(folder: Path, *, trusted: bool) -> tuple[str, ...]:
    """Leave code to be run at loading only where the run ran it, and say so."""
    python = sorted(path.name for path in folder.rglob("*.py"))
    named: list[str] = []
    for file in sorted(folder.glob("*config.json")):
        values = read_json(file)
        keys = [key for key in CODE_KEYS if isinstance(values, dict) and key in values]
        if keys:
            named.append(file.name)
        if keys and not trusted:
            _write_like_transformers(file, {key: value for key, value in values.items() if key not in keys})
    if not python and not named:
        return ()
    what = ", ".join([*python, *(f"{name} ({' and '.join(CODE_KEYS[:1])})" for name in named)])
    if trusted:
        return (f"runs code: loading it needs trust_remote_code=True, as the run did; read it first: {what}",)
    for name in python:
        (folder / name).unlink()
    return (f"left out: code of the model that the run did not run ({what}); transformers' own class loads it",)


def _copy(source: Path, target: Path, sha256: str | None = None) -> None:
    """Copy a file, and compare it with what it should be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if sha256 is not None and sha256_of(target) != sha256:
        raise ModelError(f"{source}: its SHA-256 is not the manifest's; the checkpoint is damaged")


def _write_like_transformers(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
