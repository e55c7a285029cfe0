"""Tasks: make the folder of a new sweep, or find that of one that is resumed; and the lock that keeps others out of it."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.run.flow_folder import holding, make_folder, starting
from grpo_core.sweep.folder import StoredSweep, SweepDir
from tasks.folders import check_root, claim, folder_of_this_flow_run
from tasks.rails import load_allowed_sweep, refuse_code_of_sweep
from tasks.run.disk import check_sweep_disk
from tasks.run.progress import say


@task(name="open-sweep", cache_policy=NO_CACHE)
def open_sweep(file: str, overrides: Mapping[str, Any], sweep_path: Path | None) -> Path:
    """Return the folder of a new sweep; for a retry of this flow run, the folder that it has.

    Raises:
        ConfigError: the sweep is refused, or an arm runs code that a deployment may not run; nothing has been run.
        SweepError: the folder already holds a sweep.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    check_root(sweep_path, "sweep_dir")
    own = folder_of_this_flow_run(sweep_path)
    if own is not None:
        return own
    plan, name = load_allowed_sweep(file, overrides), Path(file).stem
    for note in plan.notes:
        say(f"warning: {note}")
    if sweep_path is not None:
        SweepDir(sweep_path).refuse_second_sweep()
    check_sweep_disk(sweep_path, plan)
    path = sweep_path or make_folder(name)
    with starting(SweepDir(path), "sweep"):
        SweepDir(path).create(plan, name, f"{name}-{secrets.token_hex(4)}")
        claim(path)
    size = f"{plan.num_arms} arms x {len(plan.sweep.seeds)} seeds = {plan.num_runs} runs"
    say(f"{size}, {plan.sweep.runs.concurrency} at a time, in {path}")
    return path


@contextlib.contextmanager
def hold_sweep(sweep_path: Path) -> Iterator[StoredSweep]:
    """Keep every other flow out of a sweep while inside, and count the time as one of its sessions.

    Raises:
        SweepError: it is none.
        ConfigError: an arm runs code that a deployment may not run.
        FolderError: another flow works on it, or a deployed flow may not write there.
    """
    check_root(sweep_path, "sweep_dir")
    stored = SweepDir(sweep_path).read()  # nothing is written into a folder that is no sweep's
    refuse_code_of_sweep(stored.plan)
    with holding(stored.dir), stored.dir.session():
        yield stored
