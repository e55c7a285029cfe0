"""What a run was made with: code, versions, hardware, data, model, seeds."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy", "reasoning-gym", "math-verify", "datasets", "trl", "mlflow", "prefect", "vllm")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Everything needed to say whether two runs should be identical."""

    git_commit: str | None
    git_diff: str
    """Uncommitted changes of tracked files; empty where there are none."""
    python: str
    packages: dict[str, str]
    platform: str
    processor: str
    cpu_count: int
    config_digest: str
    data_digest: str
    model_digest: str
    seed: int
    data_seed: int


def collect_provenance(config: dict[str, Any], data_digest: str, model_digest: str) -> Provenance:
    """Return the provenance of a run about to start; `config` is the resolved configuration."""
    return Provenance(
        git_commit=_git("rev-parse", "HEAD"),
        git_diff=_git("diff", "HEAD") or "",
        python=sys.version.split()[0],
        packages={name: version for name in PACKAGES if (version := _version(name)) is not None},
        platform=platform.platform(),
        processor=_processor(),
        cpu_count=len(os.sched_getaffinity(0)),
        config_digest=config_digest(config),
        data_digest=data_digest,
        model_digest=model_digest,
        seed=config["training"]["seed"],
        data_seed=config["data"]["seed"],
    )


def write_provenance(provenance: Provenance, path: Path) -> None:
    """Write it as JSON."""
    path.write_text(json.dumps(asdict(provenance), indent=2) + "\n")


def config_digest(config: dict[str, Any]) -> str:
    """Return the SHA-256 of a resolved configuration, independent of key order."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()
