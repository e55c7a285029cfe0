"""What a run is made with: code, versions, data, model, seeds; noted before it starts, compared at a resume or repetition."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.errors import ModelError, listed
from grpo_core.machine.disk import read_json, write_json
from grpo_core.machine.gpus import gpus
from grpo_core.machine.hardware import core_count, kernel_variables, nccl_variables, processor
from grpo_core.policy.lora.facts import START
from grpo_core.policy.saved import list_checkpoints, stored_initial
from grpo_core.policy.sources.find import folder_of, resolve_adapter, resolve_model, weights_digest
from grpo_core.run.folder import RunDir, add_alert, monitor_alerts

BASE = "model.source"
DIGESTS = {BASE: "model_digest", START: "adapter_digest"}
"""What the provenance calls the digest of each."""
FOLDERS = "folders"
"""In it: where each of the two lay, if it was a folder."""
SHOWN, DIGEST_LENGTH = 12, 64
"""Digits of a digest, in a message and in all."""


def sources_of(config: RunConfig) -> dict[str, str]:
    """Return what names the weights with which a configuration begins, by key."""
    start = None if config.model.lora is None else config.model.lora.init_from
    return {BASE: config.model.source, **({} if start is None else {START: start})}


def start_weights(config: RunConfig, folder: Path, digest: Callable[[Path], str] = weights_digest) -> dict[str, str]:
    """Return the SHA-256 of the weights with which a configuration begins, as the provenance holds them.

    Args:
        config: of a run.
        folder: of its model.
        digest: of the weights in a folder.

    Raises:
        ModelError: the adapter cannot be found.
    """
    start = sources_of(config).get(START)
    return {DIGESTS[BASE]: digest(folder), **({} if start is None else {DIGESTS[START]: digest(resolve_adapter(start))})}


def policy_digest(weights: Mapping[str, str]) -> str:
    """Return the SHA-256 of the initial policy: that of its model, or of both."""
    digests = [weights[key] for key in DIGESTS.values() if key in weights]
    return digests[0] if len(digests) == 1 else hashlib.sha256(bytes.fromhex("".join(digests))).hexdigest()


def config_here(run_dir: RunDir) -> RunConfig:
    """Return the configuration of a run as it works from any folder.

    Model and adapter that are no folders here are looked for where they lay when the run began: a path may be a relative one.
    """
    config = run_dir.read_config()
    facts = run_dir.read_provenance() or RunDir(run_dir.original).read_provenance()
    lacking = {key for key, source in sources_of(config).items() if folder_of(source) is None}
    moved = {key: place for key, place in facts.get(FOLDERS, {}).items() if key in lacking and Path(place).is_dir()}
    return validate_config(apply_overrides(config.model_dump(mode="json"), moved)) if moved else config


def find_model(run_dir: RunDir, digest: Callable[[Path], str] = weights_digest) -> Path:
    """Return the folder of a run's model, or where that is gone or holds other weights, of the run's own newest policy.

    A run that trains all weights has in its checkpoints what it takes to resume: configuration, tokenizer and weights here, and
    the initial policy beside them (`policy/checkpoint.py`).

    Args:
        run_dir: of the run.
        digest: of the weights in a folder.

    Raises:
        ModelError: it cannot be found.
    """
    model, recorded = config_here(run_dir).model, run_dir.read_provenance().get(DIGESTS[BASE])
    own = list_checkpoints(run_dir.checkpoints) if model.lora is None and stored_initial(run_dir.checkpoints) else []
    try:
        folder = resolve_model(model.source, model.trust_remote_code)
        if not own or recorded in (None, digest(folder)):
            return folder
    except ModelError:
        if not own:
            raise
    from grpo_core.policy.checkpoint import verify_checkpoint  # it loads torch

    for checkpoint in reversed(own):
        with contextlib.suppress(ModelError):
            verify_checkpoint(checkpoint)
            return checkpoint / "policy"
    raise ModelError(f"{BASE} {model.source}: is gone or has other weights, and no checkpoint of {run_dir.path} is whole")


def other_weights(facts: Mapping[str, Any], config: RunConfig, found: Mapping[str, str], what: str) -> dict[str, str]:
    """Return {key: sentence with both digests} of the weights that are others than those that were recorded.

    Args:
        facts: the provenance of a run; empty where none is known.
        config: of the run.
        found: the weights that are there now; an adapter that is not there is not compared.
        what: was done with those that were recorded, as the end of a sentence.
    """
    return {
        key: f"{key} {source}: has weights (SHA-256 {digest[:SHOWN]}) that are not those {what} ({recorded[:SHOWN]})"
        for key, source in sources_of(config).items()
        if (digest := found.get(DIGESTS[key])) is not None and (recorded := facts.get(DIGESTS[key], digest)) != digest
    }


BUILT_FROM_VARIABLE = "GRPO_BUILT_FROM"
"""Set in an image, which has no repository: a JSON file with the commit that it was built from and what was changed since."""
PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "reasoning-gym",
    "math-verify",
    "datasets",
    "peft",
    "trl",
    "mlflow",
    "prefect",
    "vllm",
)


def collect_provenance(config: dict[str, Any], data_digest: str, weights: Mapping[str, str]) -> dict[str, Any]:
    """Return the provenance of a run about to start: everything needed to say whether two runs should be identical.

    Args:
        config: the resolved configuration.
        data_digest: of its frozen prompts.
        weights: `model_digest` and, if it begins with an adapter, `adapter_digest`.
    """
    names, driver = ([], None) if config["training"]["device"] == "cpu" else gpus()  # none for a training on the CPU
    cuda = cudnn = None
    if names:
        import torch

        cuda, cudnn = torch.version.cuda, str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]  # torch's own
    commit, diff = source_state()
    return {
        "git_commit": commit,
        # Of tracked files. Its digest is kept in any case.
        "git_diff": diff if config["tracking"]["git_diff"] else "",
        "git_diff_digest": _digest(diff),
        "python": sys.version.split()[0],
        "packages": installed_versions(PACKAGES),
        "platform": platform.platform(),
        "processor": processor(),
        "cpu_count": core_count(),
        "threads": config["training"]["threads"] or core_count(),  # of the training
        "gpus": names,
        "driver": driver,
        "cuda": cuda,
        "cudnn": cudnn,
        "environment": kernel_variables() | (nccl_variables() if config["training"].get("processes", 1) > 1 else {}),
        "config_digest": _digest(json.dumps({key: of for key, of in config.items() if key != "tracking"}, sort_keys=True)),
        "data_digest": data_digest,
        **weights,
        "seed": config["training"]["seed"],
        "data_seed": config["data"]["seed"],
    }


FACTS = {
    "git_commit": "git commit",
    "git_diff_digest": "uncommitted changes",
    "python": "python",
    "packages": "",
    "platform": "platform",
    "processor": "processor",
    "cpu_count": "cores",
    "threads": "threads",
    "gpus": "GPUs",
    "driver": "GPU driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "environment": "environment ",
    "config_digest": "configuration",
    "data_digest": "data",
    "model_digest": "model",
    "adapter_digest": "adapter",
}
"""What each field is called; before the keys of those that hold several."""


def environment_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line for each fact that differs between the provenance of a run and another one's.

    A fact that one of the two does not hold is not compared.

    >>> then = {"packages": {"torch": "2.13.0"}, "threads": 2}
    >>> environment_differences(then, {"packages": {"torch": "2.14.0", "trl": "1.16"}, "threads": 4, "cuda": None})
    ['torch: 2.13.0 then, 2.14.0 now', 'trl: none then, 1.16 now', 'threads: 2 then, 4 now']
    """
    both = before.keys() & now.keys()
    pairs = (pair for field, name in FACTS.items() if field in both for pair in _pairs(name, before[field], now[field]))
    return [f"{label}: {_shown(one)} then, {_shown(other)} now" for label, one, other in pairs if one != other]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _pairs(name: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [(name, before, now)]
    return [(f"{name}{key}", before.get(key), now.get(key)) for key in sorted({*before, *now})]


def _shown(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    return text[:SHOWN] if len(text) == DIGEST_LENGTH else text or "none"


def source_state() -> tuple[str | None, str]:
    """Return the commit of this code and what was changed since: of the repository, else of the image."""
    commit = _git("rev-parse", "HEAD")
    if commit is None and (file := os.environ.get(BUILT_FROM_VARIABLE)):
        built_from = read_json(Path(file))
        return built_from["git_commit"], built_from["git_diff"]
    return commit, _git("diff", "HEAD") or ""


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a changed file need not be UTF-8
            timeout=30,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def note_inputs(
    run_dir: RunDir,
    data_digest: str,
    model: Path,
    report: Callable[[str], None],
    digest: Callable[[Path], str] = weights_digest,
) -> None:
    """Write provenance.json of a run that starts; of one that is resumed or repeated, report what differs from its first.

    Args:
        run_dir: with its configuration.
        data_digest: of its frozen prompts.
        model: folder of its model.
        report: takes one line a difference.
        digest: of the weights in a folder.

    Raises:
        ModelError: a resumed or repeated run would begin with another initial policy.
    """
    config, is_resumed = config_here(run_dir), run_dir.provenance_file.exists()
    found = _found(run_dir, config, model, digest, report)
    first = run_dir if is_resumed else RunDir(run_dir.parent if run_dir.parent.exists() else run_dir.original)
    earlier = first.read_provenance()
    if first.path == run_dir.parent:
        earlier.pop("config_digest", None)  # a fork's differs on purpose
    before, now = sources_of(first.read_config()) if earlier else {}, sources_of(run_dir.read_config())
    others = other_weights(earlier, first.read_config(), found, "with which this run began") if earlier else {}
    # A repetition may be given others by another name.
    faults = [f"{fault}; restore them, or start a new run" for key, fault in others.items() if now.get(key) == before[key]]
    if faults:
        raise ModelError(listed(faults))
    provenance = collect_provenance(run_dir.read_config().model_dump(mode="json"), data_digest, found)
    known = {raised.text for raised in monitor_alerts(run_dir)}
    for difference in environment_differences(earlier, provenance):
        report(f"environment: {difference}")
        alert = f"resumed in another environment: {difference}"
        if is_resumed and alert not in known:
            add_alert(run_dir, 0, alert)
    if not is_resumed:
        places = {key: str(folder.absolute()) for key, source in sources_of(config).items() if (folder := folder_of(source))}
        # Only its owner can read it: the diff may hold anything.
        write_json(run_dir.provenance_file, {**provenance, FOLDERS: places}, private=True)


def _found(
    run_dir: RunDir, config: RunConfig, model: Path, digest: Callable[[Path], str], report: Callable[[str], None]
) -> dict[str, str]:
    """Return the weights that are there; what a run that has stored its initial policy does not need may be gone."""
    if model.is_relative_to(run_dir.checkpoints):  # the initial policy beside it has its digest in each checkpoint
        copy = f"the run's own copy in {run_dir.checkpoints} is used"
        report(f"{BASE} {config.model.source} is gone, or has other weights; {copy}")
        return {DIGESTS[BASE]: run_dir.read_provenance()[DIGESTS[BASE]]}
    try:
        return start_weights(config, model, digest)
    except ModelError:
        if stored_initial(run_dir.checkpoints) is None:
            raise
        report(f"{START}: the adapter with which this run began is not there; its copy in {run_dir.checkpoints} is used")
        return {DIGESTS[BASE]: digest(model)}
