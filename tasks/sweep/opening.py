"""Tasks: make the folder of a new sweep, or find that of one that goes on; and the lock that keeps others out of it."""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import SweepError
from grpo_core.jsonfile import write_json
from grpo_core.locks import holder_of, lock_soon
from grpo_core.sweep.folder import SweepDir
from tasks.folders import claim, folder_of_this_flow_run, make_folder
from tasks.progress import say
from tasks.rails import load_allowed_sweep, refuse_code_of_sweep


@task(name="open-sweep", cache_policy=NO_CACHE)
def open_sweep(file: str, overrides: Mapping[str, Any], sweep_path: Path | None) -> Path:
    """Return the folder of a new sweep; for a retry of this flow run, the folder that it has.

    Raises:
        ConfigError: the sweep is refused, or an arm runs code that a deployment may not run; nothing has been run.
        SweepError: the folder already holds a sweep.
    """
    mine = folder_of_this_flow_run(sweep_path)
    if mine is not None:
        return mine
    plan, name = load_allowed_sweep(file, overrides), Path(file).stem
    for note in plan.notes:
        say(f"warning: {note}")
    path = sweep_path or make_folder(name)
    SweepDir(path).create(plan, name, f"{name}-{secrets.token_hex(4)}")
    claim(path)
    sweep = plan.sweep
    say(
        f"{plan.num_arms} arms x {len(sweep.seeds)} seeds = {plan.num_runs} runs, {sweep.runs.concurrency} at a time, in {path}"
    )
    return path


@contextlib.contextmanager
def hold_sweep(sweep_path: Path) -> Iterator[None]:
    """Keep every other flow out of a sweep while inside, and count the time as one of its sessions.

    Raises:
        SweepError: it is none, or another flow works on it.
        ConfigError: an arm runs code that a deployment may not run.
    """
    sweep_dir = SweepDir(sweep_path)
    stored = sweep_dir.read()  # nothing is written into a folder that is no sweep's
    refuse_code_of_sweep(stored.plan)
    with sweep_dir.lock_file.open("wb") as lock:
        if not lock_soon(lock):
            raise SweepError(f"sweep dir {sweep_path}: {holder_of(lock)} works on this sweep; wait for it, or end it first")
        now = time.time()
        write_json(sweep_dir.sessions_file, [*sweep_dir.sessions(), [now, now]])
        try:
            yield
        finally:
            sign_of_life(sweep_dir)


def sign_of_life(sweep_dir: SweepDir) -> None:
    """Write down that this session is at work: a kill takes at most the seconds since the last sign from the count."""
    *earlier, last = sweep_dir.sessions()
    write_json(sweep_dir.sessions_file, [*earlier, [last[0], time.time()]])
