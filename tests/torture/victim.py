"""The real training, which says where it is and waits where it is to be killed: `python -m tests.torture.victim RUN_DIR`.

Every function of the product runs as it is; those that begin and end a phase are wrapped. A planted fault, on demand, makes
this process, and not the product, forget something at a resume: the comparison must see it.
"""

import argparse
import copy
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grpo_core.policy import checkpoint as checkpoints
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.run.journal import Journal
from grpo_core.training import loop, saving, session, step
from grpo_core.training.__main__ import main as train
from tests.torture.aims import Aim
from tests.torture.announcer import Announcer
from tests.torture.phases import Phase

FAULTS = ("reference", "optimizer")


def around(owner: Any, name: str, phase: Phase, announcer: Announcer, where: Callable[..., tuple[int, str]]) -> None:
    """Announce a phase around every call of `owner.name`; `where` gives its step and detail from the arguments."""
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with announcer.phase(phase, *where(*args, **kwargs)):
            return real(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call `then` with the arguments after every call of `owner.name`."""
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        then(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def watch_steps(announcer: Announcer) -> None:
    """Announce restoring, rollout, update and evaluation."""
    around(session.Session, "restore", Phase.RESTORE, announcer, lambda _session: (0, ""))
    around(step, "collect_rollouts", Phase.ROLLOUT, announcer, lambda _session, _prompts, step, _clock: (step, ""))
    around(step, "update", Phase.UPDATE, announcer, lambda _session, _rollouts, step, _clock: (step, ""))
    around(loop, "evaluate_held_out", Phase.EVALUATION, announcer, lambda _session, step: (step, ""))
    loaded = "the checkpoint is loaded, nothing is journalled"
    after(session, "restore", lambda *_: announcer.is_in(Phase.RESTORE) and announcer.point("middle", loaded))
    sampled = "sampled, not scored"
    after(Policy, "sample", lambda *_: announcer.is_in(Phase.ROLLOUT) and announcer.point("middle", sampled))
    applied = "an optimizer step was taken"
    after(torch.optim.AdamW, "step", lambda *_: announcer.is_in(Phase.UPDATE) and announcer.point("middle", applied))


class Moving:
    """Stands for the policy's model in a sync: between two of its parameters the reference is half old, half new."""

    def __init__(self, model: Any, announcer: Announcer) -> None:
        self._model, self._announcer = model, announcer

    def parameters(self) -> Any:
        for number, parameter in enumerate(self._model.parameters(), start=1):
            yield parameter
            self._announcer.point("middle", f"{number} parameters of the reference were moved")

    def named_modules(self) -> Any:
        """What a policy with an adapter goes through, for the layers that have one."""
        for number, (name, module) in enumerate(self._model.named_modules(), start=1):
            yield name, module
            self._announcer.point("middle", f"the adapters of {number} modules of the reference were moved")


def watch_syncs(announcer: Announcer) -> None:
    """Announce every synchronisation of the reference."""
    real = Reference.sync

    def sync(self: Reference, policy: Any, alpha: float, step: int) -> None:
        with announcer.phase(Phase.SYNC, step):
            real(self, replace(policy, model=Moving(policy.model, announcer)), alpha, step)

    Reference.sync = sync


class Torn:
    """The journal's file, of which one line is written in two pieces."""

    def __init__(self, file: Any, announcer: Announcer) -> None:
        self._file, self._announcer = file, announcer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, line: bytes) -> int:
        written = self._announcer.tears(len(line))
        if written is not None:
            self._file.write(line[:written])
            self._announcer.wait_for_the_kill(f"{written} of {len(line)} bytes were written")
        self._file.write(line[written or 0 :])
        return len(line)


def watch_journal(announcer: Announcer) -> None:
    """Announce every record, and let one be torn."""
    around(Journal, "append", Phase.JOURNAL, announcer, lambda _journal, kind, step, _data: (step, kind))
    real = Journal.__init__

    def init(self: Journal, path: Path) -> None:
        real(self, path)
        self._file = Torn(self._file, announcer)

    Journal.__init__ = init


def watch_checkpoints(announcer: Announcer) -> None:
    """Announce the writing of a checkpoint file by file, its renaming, and the deletion of old ones: in a thread of its own."""
    around(
        saving,
        "save_checkpoint",
        Phase.WRITE,
        announcer,
        lambda _folder, _held, _initial, state, **_: (state.step, ""),
    )

    def written(path: Path) -> None:
        if not announcer.is_in(Phase.WRITE):
            return
        announcer.point("middle", f"{path.name} was written")
        if announcer.takes("torn"):
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            announcer.wait_for_the_kill(f"half of {path.name} was written")
            path.write_bytes(content)

    def saved(_contents: Any, file: Any) -> None:
        file.flush()
        written(Path(file.name))

    def flushed(descriptor: int) -> None:
        if announcer.is_in(Phase.WRITE):
            announcer.point("middle", f"{Path(f'/proc/self/fd/{descriptor}').readlink().name} was flushed")

    after(PreTrainedModel, "save_pretrained", lambda _model, folder, **_: written(folder / "config.json"))
    after(checkpoints, "save_weights", lambda _weights, path: written(path))
    after(torch, "save", saved)
    after(Path, "write_text", lambda path, *_, **__: written(path))
    after(os, "fsync", flushed)
    watch_folders(announcer)


def watch_folders(announcer: Announcer) -> None:
    """Announce the renaming and the deletion of checkpoints."""
    replace, rmtree = os.replace, shutil.rmtree

    def renamed(source: Path, target: Path, **options: Any) -> None:
        if not announcer.is_in(Phase.WRITE):
            return replace(source, target, **options)
        with announcer.phase(Phase.RENAME, announcer.step, target.name):
            return replace(source, target, **options)

    def dropped(path: Path, *args: Any, **options: Any) -> None:
        if not (announcer.is_in(Phase.WRITE) and path.name.startswith("step_") and path.exists()):
            return rmtree(path, *args, **options)
        with announcer.phase(Phase.DROP, announcer.step, path.name):
            if announcer.takes("middle"):
                entries = list(path.iterdir())
                for entry in entries[: len(entries) // 2]:
                    rmtree(entry) if entry.is_dir() else entry.unlink()
                announcer.wait_for_the_kill(f"half of {path.name} was deleted")
            return rmtree(path, *args, **options)

    os.replace, shutil.rmtree = renamed, dropped


def plant(fault: str) -> None:
    """Let every resume forget the reference, or AdamW's moments."""
    real = session.restore

    def load(folder: Path, live: Any) -> Any:
        reference, optimizer = live.reference.current.model.state_dict(), live.optimizer.state_dict()
        before = copy.deepcopy(reference if fault == "reference" else optimizer)
        state = real(folder, live)
        (live.reference.current.model if fault == "reference" else live.optimizer).load_state_dict(before)
        return state

    session.restore = load


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as `python -m grpo_core.training RUN_DIR` does; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.victim")
    parser.add_argument("run_dir")
    parser.add_argument("--announce", type=int, required=True, metavar="FD", help="a pipe that the harness reads")
    parser.add_argument("--aim", type=Aim.decode, help="the kill that it waits for")
    parser.add_argument("--fault", choices=FAULTS, help="what to forget at a resume")
    options = parser.parse_args(arguments)
    if options.fault:
        plant(options.fault)
    announcer = Announcer(options.announce, options.aim)
    watch_steps(announcer)
    watch_syncs(announcer)
    watch_journal(announcer)
    watch_checkpoints(announcer)
    return train([options.run_dir])


if __name__ == "__main__":
    sys.exit(main())
