"""Tasks: the inputs of a run: prompts, frozen, its initial policy, the note of what it is made with; what it asks of a machine.

What is costly is kept and used again, by any later run, as long as its inputs are the same. Prefect keeps each result in a
file, which it takes for missing if it is damaged, and writes in place: between its look and its reading another process may
have begun to write the same file again. So whoever calls such a task does so inside `prepared_once`: of runs that start
together one prepares the inputs, and the others use them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

from grpo_core.config import RunConfig
from grpo_core.data.prepare import DataManifest, data_identity, prepare, read_prompts, split_digest
from grpo_core.data.row_images import kept_images
from grpo_core.data.splitting import PromptSplit
from grpo_core.errors import GrpoError
from grpo_core.machine.disk import sqlite_file
from grpo_core.machine.locks import one_at_a_time
from grpo_core.policy.sources.find import is_made, model_here, resolve_model, weights_digest, weights_identity
from grpo_core.rewards.base import load_rewards
from grpo_core.run.child import import_as_at_start
from grpo_core.run.fit import announce_memory, slow_dtype_warnings
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import find_model, note_inputs
from grpo_core.run.sizes import announce_disk, checkpoint_bytes, disk_need, kept_weights, require_disk
from grpo_core.sweep.plan import Plan
from tasks.run.progress import say
from tasks.tracking.store import TrackedRun, tracking_uri

PATIENCE_SECONDS = 1800.0
"""For another run that prepares the same: after that, both do."""


def by_identity(_context: TaskRunContext, parameters: Mapping[str, str | None]) -> str | None:
    """Return the key of a cached result: the task's argument `identity`; None = neither look one up nor keep one.

    Prefect's own policies would hash the arguments and the task's few lines, not the files and the code that they stand for.
    """
    return parameters["identity"]


def prepared_once(identity: str | None) -> AbstractContextManager[None]:
    """Keep other runs from a cached task with the same identity while inside, if the folder of the results can be written."""
    if identity is None:
        return nullcontext()
    folder = Path(PREFECT_LOCAL_STORAGE_PATH.value())
    return one_at_a_time(folder / f".{identity}.lock", "prepares the same inputs", patience=PATIENCE_SECONDS, say=say)


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_data(run_path: Path) -> DataManifest:
    """Freeze the prompts of a run in its folder; a run that already holds frozen prompts keeps them."""
    run_dir = RunDir(run_path)
    manifest = prepare(run_dir.read_config(), run_dir.data, prompts_of)
    say(f"data: {manifest}")
    return manifest


def prompts_of(config: RunConfig) -> PromptSplit:
    """Return the prompts of a configuration, from the cache where its inputs are those of an earlier run."""
    if not is_made(config.model.source):
        say(f"making the model {config.model.source}, once: one or two minutes on one core")
    identity = data_identity(config, resolve_model(config.model.source, config.model.trust_remote_code))
    with prepared_once(identity):
        split = cached_prompts(config, identity)
    if split.images is None:
        return split
    # The identity has put all images into today's cache folder, which need not be that of the run that made the prompts.
    return replace(split, images=replace(split.images, folder=kept_images(config.data)))


def digest_before(plan: Plan) -> str | None:
    """Return the digest of the prompts of a sweep's first setting, which its first run then finds in the cache.

    None where the runs take place elsewhere, the model is not here yet, or the prompts cannot be read: the run says why; and
    outside a flow, which has no cache.
    """
    config = plan.configs[0]
    is_cached = TaskRunContext.get() is not None and plan.sweep.runs.where == "local"
    if not is_cached or model_here(config.model.source) is None:
        return None
    with suppress(GrpoError, OSError):
        return split_digest(prompts_of(config))
    return None


@task(name="read-prompts", cache_key_fn=by_identity, persist_result=True)
def cached_prompts(config: RunConfig, identity: str | None) -> PromptSplit:  # noqa: ARG001  (the cache key)
    """Read, template and split the prompts of a configuration."""
    return read_prompts(config)


@task(name="prepare-model", cache_policy=NO_CACHE)
def prepare_model(run_path: Path, data: DataManifest) -> Path:
    """Resolve the model (converting or downloading it where needed), load the rewards once, write provenance.json.

    Loading the rewards here refuses a wrong import path before anything is trained. If the run is resumed, or repeats
    another, what differs from its first environment is printed before anything starts.

    Returns:
        the folder of the initial policy

    Raises:
        ModelError: a resumed or repeated run would begin with another initial policy.
    """
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    import_as_at_start(run_dir)
    load_rewards(config.rewards)
    folder = find_model(run_dir, cached_digest)
    note_inputs(run_dir, data.digest, folder, say, cached_digest)
    return folder


def cached_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights in a folder, from the cache where they are those of an earlier run."""
    identity = weights_identity(folder)
    with prepared_once(identity):
        return digest_weights(folder, identity)


@task(name="digest-weights", cache_key_fn=by_identity, persist_result=True)
def digest_weights(folder: Path, identity: str) -> str:  # noqa: ARG001  (the cache key)
    """Return the SHA-256 of the weights in a folder; gigabytes are read once, not once a run."""
    return weights_digest(folder)


def check_machine(run_path: Path, tracked: TrackedRun, model: Path) -> None:
    """Print what a run needs and has of disk and memory, and refuse one that will not fit; warn of a slow dtype.

    Args:
        run_path: its folder; what an earlier session wrote there counts.
        tracked: its MLflow run.
        model: folder of its initial policy.

    Raises:
        JournalError: it will not fit; the message names what needs less.
    """
    run_dir = RunDir(run_path)
    for warning in slow_dtype_warnings(run_dir.read_config()):
        say(f"warning: {warning}")
    announce_disk(run_dir, model, say, tracked_here=sqlite_file(tracked.uri) is not None)
    announce_memory(run_dir, model, say)


def check_sweep_disk(sweep_path: Path | None, plan: Plan) -> None:
    """Print what the runs of a sweep need together, and refuse one that will not fit; say so where a model is not here yet.

    Args:
        sweep_path: its folder; None = a new one in `runs/`.
        plan: the sweep.

    Raises:
        JournalError: it will not fit.
    """
    folder = sweep_path or RUNS_FOLDER
    needs, writing = [], 0  # one run writes a checkpoint beside those that it keeps
    for config in plan.configs:
        weights = kept_weights(config, model) if (model := model_here(config.model.source)) else None
        if weights is None:
            say(f"disk: not known before the model {config.model.source} is here; each run prints and checks what it needs")
            return
        needs.append(disk_need(config, weights, tracked_here=sqlite_file(tracking_uri(config, folder)) is not None))
        writing = max(writing, checkpoint_bytes(config, weights))
    runs = plan.num_runs
    need = runs * (max(needs) - writing) + min(plan.sweep.runs.concurrency, runs) * writing
    say(f"disk: {require_disk(f'the sweep ({runs} runs)', need, folder)} ({runs} runs)")
