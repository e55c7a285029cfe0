"""Tasks: read prompts, cached by what decides them, and freeze them for a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import RunConfig
from grpo_core.run.folder import RunDir
from tasks.run.caching import by_identity, prepared_once
from tasks.run.progress import say

if TYPE_CHECKING:
    from grpo_core.data.frozen import DataManifest
    from grpo_core.data.prompts import PromptSplit


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_data(run_path: Path) -> "DataManifest":
    """Freeze the prompts of a run in its folder; a run that already holds frozen prompts keeps them."""
    from grpo_core.data.frozen import MANIFEST_FILE, freeze, read_manifest

    run_dir = RunDir(run_path)
    if (run_dir.data / MANIFEST_FILE).exists():
        return read_manifest(run_dir.data)
    config = run_dir.read_config()
    return freeze(prompts_of(config), config.data.source, run_dir.data)


def prompts_of(config: RunConfig) -> "PromptSplit":
    """Return the prompts of a configuration, from the cache where its inputs are those of an earlier run."""
    from grpo_core.data.prepare import data_identity
    from grpo_core.policy.sources.find import resolve_model
    from grpo_core.policy.sources.scratch import is_made

    if not is_made(config.model.source):
        say(f"making the model {config.model.source}, once: about half a minute on one core")
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    identity = data_identity(config, folder)
    with prepared_once(identity):
        return cached_prompts(config, identity)


@task(name="read-prompts", cache_key_fn=by_identity, persist_result=True)
def cached_prompts(config: RunConfig, identity: str | None) -> "PromptSplit":  # noqa: ARG001  (the cache key)
    """Read, template and split the prompts of a configuration."""
    from grpo_core.data.prepare import read_prompts

    return read_prompts(config)
