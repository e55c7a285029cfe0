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

from grpo_core.config import RunConfig
from grpo_core.errors import ModelError, listed
from grpo_core.machine.gpus import gpus
from grpo_core.machine.hardware import core_count, kernel_variables, processor
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.policy.lora.facts import START
from grpo_core.policy.saved import stored_initial
from grpo_core.policy.sources.find import weights_digest
from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.start_weights import (
    BASE,
    DIGESTS,
    FOLDERS,
    StartWeights,
    config_here,
    other_weights,
    require_base,
    sources_of,
    start_folders,
    start_weights,
    weights_here,
    where_it_was,
)

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
    cuda, cudnn = _cuda_versions() if names else (None, None)
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
        "environment": kernel_variables(),
        "config_digest": config_digest(config),
        "data_digest": data_digest,
        **weights,
        "seed": config["training"]["seed"],
        "data_seed": config["data"]["seed"],
    }


def write_provenance(provenance: Mapping[str, Any], path: Path) -> None:
    """Write it as JSON that only its owner can read: the diff may hold anything."""
    write_json(path, provenance, private=True)


def config_digest(config: dict[str, Any]) -> str:
    """Return the SHA-256 of a resolved configuration, independent of key order and of where the run is tracked."""
    settings = {section: values for section, values in config.items() if section != "tracking"}
    return _digest(json.dumps(settings, sort_keys=True))


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
LONG = 120
"""Longer values are cut."""


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
    """Return (name, value, value), for each key where the values are mappings."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [(name, before, now)]
    return [(f"{name}{key}", before.get(key), now.get(key)) for key in sorted({*before, *now})]


def _shown(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    text = ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
    digest = len(text) == 64 and set(text) <= set("0123456789abcdef")
    if digest or "\n" in text:
        return text[:12] if digest else f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return text if len(text) <= LONG else f"{text[:LONG]}..."


def _cuda_versions() -> tuple[str | None, str | None]:
    """Return the versions of CUDA and cuDNN that torch brings, without touching a GPU."""
    import torch

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]  # torch's own
    return torch.version.cuda, None if cudnn is None else str(cudnn)


def source_state() -> tuple[str | None, str]:
    """Return the commit of this code and what was changed since: of the repository, else of the image."""
    commit = _git("rev-parse", "HEAD")
    if commit is None and (file := os.environ.get(BUILT_FROM_VARIABLE)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            built_from = read_json(Path(file))
            return built_from["git_commit"], str(built_from["git_diff"])
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
        ModelError: a resumed or repeated run would begin with another initial policy, or the adapter with which a run begins
            was trained on another base.
    """
    config, is_resumed = config_here(run_dir), run_dir.provenance_file.exists()
    found = _found(run_dir, config, model, digest, report)
    first = run_dir if is_resumed else RunDir(run_dir.original)
    earlier: Mapping[str, Any] = first.read_provenance()
    if earlier:
        _refuse_other_weights(earlier, first.read_config(), run_dir.read_config(), found)
    require_base(config, model, digest)
    provenance = collect_provenance(run_dir.read_config().model_dump(mode="json"), data_digest, found.facts())
    if earlier:
        known = {raised.text for raised in monitor_alerts(run_dir)}
        for difference in environment_differences(earlier, provenance):
            report(f"environment: {difference}")
            alert = f"resumed in another environment: {difference}"
            if is_resumed and alert not in known:
                add_alert(run_dir, 0, alert)
    if not is_resumed:
        write_provenance({**provenance, FOLDERS: start_folders(config)}, run_dir.provenance_file)


def _found(
    run_dir: RunDir, config: RunConfig, model: Path, digest: Callable[[Path], str], report: Callable[[str], None]
) -> StartWeights:
    """Return the weights that are there; what a run that has stored its initial policy does not need may be gone."""
    if model.is_relative_to(run_dir.checkpoints):  # the initial policy beside it has its digest in each checkpoint
        report(
            f"{BASE} {config.model.source} is gone, or has other weights; the run's own copy in {run_dir.checkpoints} is used"
        )
        return StartWeights(base=run_dir.read_provenance()[DIGESTS[BASE]])
    try:
        return start_weights(config, model, digest)
    except ModelError as error:
        if stored_initial(run_dir.checkpoints) is None:
            raise ModelError(f"{error}{where_it_was(run_dir, START)}") from error
        report(f"{START}: the adapter with which this run began is not there; its copy in {run_dir.checkpoints} is used")
        return weights_here(config, model, digest)


def _refuse_other_weights(earlier: Mapping[str, Any], first: RunConfig, config: RunConfig, found: StartWeights) -> None:
    """Refuse other weights under the same name; a repetition may be given others by another name.

    Raises:
        ModelError: names the key, and both digests.
    """
    others = other_weights(earlier, first, found, "with which this run began")
    before, now = sources_of(first), sources_of(config)
    faults = [f"{fault}; restore them, or start a new run" for key, fault in others.items() if now.get(key) == before[key]]
    if faults:
        raise ModelError(listed(faults))
