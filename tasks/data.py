"""Task: freeze the prompts of a run."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.data.frozen import DataManifest
from grpo_core.rundir import RunDir


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_data(run_path: Path) -> DataManifest:
    """Read, template, split and freeze the prompts; a run that already holds frozen prompts keeps them."""
    from grpo_core.data.frozen import MANIFEST_FILE, read_manifest
    from grpo_core.data.prepare import prepare

    run_dir = RunDir(run_path)
    if (run_dir.data / MANIFEST_FILE).exists():
        return read_manifest(run_dir.data)
    return prepare(run_dir.read_config(), run_dir.data)
