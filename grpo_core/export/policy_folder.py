"""Write the export of a run: a verified checkpoint, in a folder that other libraries load, with its card.

It is written beside its name and renamed, in the place of an earlier export that nobody changed.

NAME/                 the export; its manifest lists every file with its SHA-256
.NAME.partial/        the one that is being written; the next export removes what a kill has left
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import FolderError, ModelError, few_names, raised_as
from grpo_core.export.card import CARD_FILE, Card, hub_id, write_card
from grpo_core.export.choice import EXPORTS, Dtype, ExportPlan, ExportWish, plan_export
from grpo_core.machine.disk import (
    exchange,
    flush,
    flush_all,
    read_json,
    remove,
    sha256_of,
    whole_or_gone,
    write_json,
    write_whole,
)
from grpo_core.machine.locks import lock_holder, try_lock
from grpo_core.policy.checkpoint import POLICY_FOLDER, verify_checkpoint
from grpo_core.policy.sources.find import folder_of, model_here, weights_digest
from grpo_core.run.flow_folder import MARKER_FILE, FlowDir, Kind, refuse_special_place, write_marker
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.provenance import BASE, DIGESTS, find_model, other_weights

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
        FolderError: the folder is not an export of ours, was changed, or cannot be written.
        JournalError: the run's journal is damaged, or the disk is full.
    """
    plan = plan_export(run_dir, wish)
    history = check_run(run_dir).history
    target = folder or EXPORTS / plan.name
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
WEIGHT_FILES = ("model.safetensors", "adapter_config.json", "adapter_model.safetensors")
"""What new weights take the place of; they are written into the first."""


def write_policy(plan: ExportPlan, folder: Path) -> tuple[str, ...]:
    """Write the files of a policy into a folder; return what its user has to know, one line a fact.

    Raises:
        ModelError: the checkpoint is damaged or was removed meanwhile, or the base of its adapter is not here or another one.
    """
    gone = f"{plan.checkpoint}: cannot be copied ({{cause}}); a training that is under way may have removed it: export again"
    with raised_as(ModelError, gone, OSError):
        plan.checkpoint.stat()
        files = [Path(name) for name in sorted(verify_checkpoint(plan.checkpoint)) if Path(name).parts[0] == POLICY_FOLDER]
        weights = _weights(plan, folder)
        for file in files:
            if weights is None or file.name not in WEIGHT_FILES:
                target = folder / file.relative_to(POLICY_FOLDER)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(plan.checkpoint / file, target)
        if weights is not None:
            _save(weights, plan.dtype, folder)
    if plan.form == "merged":
        config = read_json(folder / "config.json")
        for section in (config, *(value for value in config.values() if isinstance(value, dict))):
            section |= {key: plan.dtype for key in ("dtype", "torch_dtype") if key in section}
        _write_like_transformers(folder / "config.json", config)
    return (*_about_figures(plan), *_about_base(plan), *_settle_code(folder, trusted=plan.config.model.trust_remote_code))


def _weights(plan: ExportPlan, folder: Path) -> Mapping[str, Any] | None:
    """Return the weights that are written in place of the checkpoint's, if any; of a merged model, write all other files."""
    from safetensors.torch import load_file

    from grpo_core.policy.loading import open_policy
    from grpo_core.policy.weights import as_on_hub

    config, policy_folder = plan.config, plan.checkpoint / POLICY_FOLDER
    if plan.form == "adapter" or (config.model.lora is None and plan.dtype == "float32"):
        return None
    if config.model.lora is None:
        return load_file(policy_folder / WEIGHT_FILES[0])
    # Where products are computed in bfloat16, the base is rounded to it; here nothing is computed, and fp32 is what it is.
    model = config.model.model_copy(update={"dtype": "float32"})
    training = config.training.model_copy(update={"device": "cpu", "gradient_checkpointing": False})
    if (fault := _why_other_base(plan, find_model(plan.run_dir))) is not None:
        raise ModelError(f"{fault}; merged with them it would be another policy: restore them")
    policy = open_policy(policy_folder, config.model_copy(update={"model": model, "training": training}))
    policy.model.save_pretrained(folder, state_dict={})  # all but the weights
    return as_on_hub(policy.model, dict(policy.merged_weights()))


def _save(weights: Mapping[str, Any], dtype: Dtype, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    cast = {name: one.to(getattr(torch, dtype)) if one.is_floating_point() else one for name, one in weights.items()}
    whole = {name: tensor.detach().contiguous() for name, tensor in cast.items()}
    save_file(whole, folder / WEIGHT_FILES[0], metadata={"format": "pt"})


def _why_other_base(plan: ExportPlan, folder: Path) -> str | None:
    """Return that a model has other weights than the one on which the adapter was trained, with both digests; else None."""
    now = {DIGESTS[BASE]: weights_digest(folder)}
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
    if plan.form == "merged":
        return
    if (folder := model_here(source)) is not None and (fault := _why_other_base(plan, folder)) is not None:
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


KIND: Kind = "export"
MANIFEST_FILE = "grpo_export.json"
OTHER = "Nothing was changed; move it away, or give another --to"
SHOWN_FILES = 4


@contextlib.contextmanager
def placed_whole(target: Path, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Yield an empty folder beside `target`; what is inside fills it, and at the end it takes the target's place.

    Where what is inside fails, nothing is left of it, and the target is as it was.

    Args:
        target: the export; may lie behind a link.
        facts: that its manifest holds, beside its files.

    Raises:
        FolderError: the target is not an export of ours, was changed since, or cannot be written.
        DiskFullError: the disk is full.
    """
    refuse_special_place(target, "export folder")
    place = target.resolve()
    scratch = place.with_name(f".{place.name}.partial")
    unwritable = f"export folder {target}: cannot be written ({{cause}}); give another --to"
    with raised_as(FolderError, unwritable, OSError):
        _require_ours(scratch)
        _require_unchanged(place)
        if holder := lock_holder(scratch / MARKER_FILE):
            raise FolderError(f"export folder {target}: {holder} writes an export there; wait for it, or give another --to")
        remove(scratch)
        with whole_or_gone(f"export {place.name}", scratch):
            scratch.mkdir(parents=True)
            write_marker(scratch, KIND)
            with (scratch / MARKER_FILE).open("rb") as marker:
                try_lock(marker)
                yield scratch
            write_json(scratch / MANIFEST_FILE, {**facts, "files": _digests(scratch)})
            flush_all(scratch)
        _require_unchanged(place)  # again: a merge takes minutes
        if not place.exists():
            os.replace(scratch, place)
        elif fault := exchange(scratch, place):
            raise FolderError(f"export folder {place}: cannot be replaced in one step here ({fault}); remove it first")
        flush(place.parent)
        remove(scratch)  # the earlier one


def _require_unchanged(place: Path) -> None:
    """Refuse what is no export of ours, or was changed since it was written."""
    _require_ours(place)
    if place.exists() and FlowDir(place).marker() is not None and (changed := changed_files(place)):
        names = few_names(changed, SHOWN_FILES)
        raise FolderError(f"export folder {place}: is an earlier export that was changed since ({names}). {OTHER}")


def _require_ours(folder: Path) -> None:
    marker = FlowDir(folder).marker() if folder.exists() else None
    if marker is not None and marker.kind != KIND:
        raise FolderError(f"export folder {folder}: is the folder of a {marker.kind}. {OTHER}")
    if marker is None and folder.exists() and (names := sorted(path.name for path in folder.iterdir())):
        raise FolderError(f"export folder {folder}: is no export; it holds {few_names(names, SHOWN_FILES)}. {OTHER}")


def changed_files(folder: Path) -> list[str]:
    """Return the files of an export that are not as it wrote them: changed, added or gone."""
    try:
        written = dict(read_json(folder / MANIFEST_FILE)["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return [MANIFEST_FILE]
    found = _digests(folder)
    return sorted(name for name in {*written, *found} if written.get(name) != found.get(name))


def _digests(folder: Path) -> dict[str, str]:
    """Return {file: SHA-256} of everything in an export but its marker and manifest."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name not in (MARKER_FILE, MANIFEST_FILE)}
