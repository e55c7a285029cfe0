"""How a run is begun or resumed: nobody else in its folder, nothing left of the session before, no trace of a failed start.

Also which runs can be resumed, and the command that does it, ready to be pasted into a shell.
"""

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.config.derived import repeatability
from grpo_core.errors import GrpoError, JournalError
from grpo_core.machine.disk import read_json
from grpo_core.machine.locks import lock_holder
from grpo_core.run.child import is_of_process, process_runs
from grpo_core.run.flow_folder import Kind, make_folder
from grpo_core.run.folder import PROMPTS_MANIFEST, RunDir, batch_limits
from grpo_core.run.integrity import CheckedJournal, check_run
from grpo_core.run.journal import last_event
from grpo_core.run.summary import run_state

POLL_SECONDS = 0.5


@contextlib.contextmanager
def new_run(run_path: Path | None, name: str, kind: Kind) -> Iterator[RunDir]:
    """Yield the folder of a run that starts, marked as ours and locked, without what a start that came to nothing has left.

    Args:
        run_path: the folder; None = a new one, which is removed again where the start fails.
        name: of a new folder.
        kind: of the start.

    Raises:
        JournalError: the folder already holds a run.
        FolderError: it is not ours, or another flow starts or works in it.
    """
    if run_path is not None:
        RunDir(run_path).refuse_second_run()
    run_dir = RunDir(run_path or make_folder(name))
    with remove_if_never_started(run_dir, counts=lambda _: run_path is None):
        run_dir.mark(kind)
        with run_dir.locked():
            run_dir.forget_start()
            yield run_dir


@contextlib.contextmanager
def remove_if_never_started(run_dir: RunDir, *, counts: Callable[[BaseException], bool]) -> Iterator[None]:
    """Remove the folder of a new run where what is inside fails before any process of the run was started.

    Args:
        run_dir: the folder, locked by the caller.
        counts: whether an error is a failure; after an interruption the folder stays, to be resumed.

    Raises:
        BaseException: what was raised inside.
    """
    try:
        yield
    except BaseException as error:
        if counts(error) and not run_dir.has_started and run_dir.kind is not None:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


@contextlib.contextmanager
def lock_run(run_dir: RunDir, report: Callable[[str], None]) -> Iterator[None]:
    """Keep everybody else out of a run while inside, and begin without what an earlier session has left.

    A training whose parent process was killed is still finishing its step: it is waited for.

    Args:
        run_dir: the folder.
        report: takes a line about that wait.

    Raises:
        JournalError: a training that was started by hand works on the run.
        FolderError: the folder is not ours, or another process works on the run.
    """
    with run_dir.locked():
        writer = lock_holder(run_dir.journal_file)
        if writer is not None:
            if not is_of_process(writer, run_dir.process_file):
                raise JournalError(f"run dir {run_dir.path}: {writer} is writing its journal; wait for it, or end it first")
            report(f"{writer}, a training whose parent process has died, is finishing its step; waiting for it")
        while lock_holder(run_dir.journal_file):
            time.sleep(POLL_SECONDS)
        for leftover in (run_dir.stop_file, run_dir.process_file):
            leftover.unlink(missing_ok=True)
        yield


def check_resumable(run_dir: RunDir) -> tuple[str, ...]:
    """Return what a person should know before a run is resumed: notes on its journal, and how far it repeats.

    Raises:
        JournalError: the folder holds no training, one that cannot be resumed, or its journal is damaged.
        ConfigError: config.json was edited since the run began.
    """
    if run_dir.kind == "evaluation":
        raise JournalError(f"run dir {run_dir.path}: holds an evaluation, which cannot be resumed; start it again")
    config, journal = run_dir.read_config(), check_run(run_dir)
    engine, has_begun = config.training.engine, run_dir.checkpoints.exists()
    if engine != "native" and has_begun and run_state(journal.history, run_dir)[0] != "finished":
        raise JournalError(f"run dir {run_dir.path}: training.engine {engine} cannot resume from a checkpoint; start a new run")
    limits = batch_limits(run_dir)
    promise = repeatability(limits.applied(config), limits.computed_by if has_begun else ())
    is_lowered = has_begun and promise.is_exact and limits.is_lowered
    repeats = "up to rounding, since it computes less at once from here on" if is_lowered else promise.what
    return (*journal.notes, f"the resumed run repeats what it has done {repeats}")


def resume_command(run_dir: RunDir, *, has_prompts: bool = False, journal: CheckedJournal | None = None) -> str | None:
    """Return the command that resumes a run; None where it is complete, under way, or cannot be resumed.

    A run is complete once its training has reached its last step and its summary is written.

    Args:
        run_dir: the folder; it need not be a run's.
        has_prompts: only where its prompts are frozen: what a run that failed before that needs is another configuration.
        journal: what `check_run` has found there a moment ago; None = it is read now.
    """
    try:
        is_held = lock_holder(run_dir.lock_file) is not None or process_runs(run_dir.process_file)
        if not run_dir.config_file.exists() or is_held or run_dir.kind == "evaluation":
            return None
        if has_prompts and not (run_dir.path / PROMPTS_MANIFEST).exists():
            return None
        last = last_event((journal or check_run(run_dir)).history)
        engine = run_dir.read_config().training.engine
    except (GrpoError, OSError):  # the journal is damaged: its message says what to do first
        return None
    if last is not None and last.kind == "end" and last.data.get("status") == "finished":
        # Without a flow's mark the training was started by hand, and nothing is to follow it.
        is_complete = _is_concluded(run_dir) or not run_dir.flow_run_file.exists()
    else:
        is_complete = engine != "native" and run_dir.checkpoints.exists()  # begins at the first step or not at all
    return None if is_complete else f"grpo train --resume {path_argument(run_dir.path)}"


def _is_concluded(run_dir: RunDir) -> bool:
    """Return whether the flow has said what the finished run reached; one that was stopped before says so of its stop."""
    try:
        return bool(read_json(run_dir.summary_file)["status"] == "finished")
    except (OSError, ValueError, LookupError, TypeError):
        return False


def path_argument(path: Path) -> str:
    """Return a path as an argument of a command in a shell, which is not taken for an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))
