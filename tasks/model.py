"""Tasks: find the initial policy, and write down what the run is made with."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.rundir import RunDir
from tasks.caching import by_identity

if TYPE_CHECKING:
    from grpo_core.data.frozen import DataManifest


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The initial policy."""

    folder: Path
    digest: str
    """SHA-256 of its weight files."""


@task(name="prepare-model", cache_policy=NO_CACHE)
def prepare_model(run_path: Path, data: "DataManifest") -> ModelFacts:
    """Resolve the model (converting or downloading it where needed), load the rewards once, write provenance.json.

    Loading the rewards here refuses a wrong import path before anything is trained.
    """
    from grpo_core.policy.loading import resolve_model, weights_identity
    from grpo_core.provenance import collect_provenance, write_provenance
    from grpo_core.rewards.base import load_rewards

    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    load_rewards(config.rewards)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    digest = digest_weights(folder, weights_identity(folder))
    provenance = collect_provenance(config.model_dump(mode="json"), data.digest, digest)
    write_provenance(provenance, run_dir.provenance_file)
    return ModelFacts(folder=folder, digest=digest)


@task(name="digest-weights", cache_key_fn=by_identity, persist_result=True)
def digest_weights(folder: Path, identity: str) -> str:  # noqa: ARG001  (the cache key)
    """Return the SHA-256 of the weights in a folder; gigabytes are read once, not once a run."""
    from grpo_core.policy.loading import weights_digest

    return weights_digest(folder)
