"""Checkpoints beside the training: of a copy, by a thread of its own, while the next step is computed.

One at a time: whoever asks for the next one first waits for the one under way (`finish`). A small one is waited for at the end
of the next step, so its record comes where it would if it had been written between two steps. A large one may take several:
its record comes when it is durable. Where there is no memory for a copy, all wait for it.

The initial policy is stored, and memory for the copies taken, beside the first steps.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from grpo_core.machine.hardware import available_memory
from grpo_core.policy.checkpoint import InUse, save_checkpoint
from grpo_core.policy.initial import store_initial
from grpo_core.policy.saved import JournalMark, TrainingState
from grpo_core.policy.snapshot import SnapshotMemory
from grpo_core.policy.trainable import Trainable

SPARE = 2.0
"""Of the memory that a copy takes, how many times that must be free: the next step needs some, too."""
LOW_PRIORITY, LOWEST_PRIORITY = 7, 19
"""As `nice` counts. At the lowest, busy neighbours could hold up a checkpoint for minutes: it is for what nobody waits for."""
LARGE_BYTES = 500_000_000
"""A checkpoint from here on takes longer than a step may wait."""
MOMENTS = 2
"""Of AdamW, for each weight."""


class CheckpointWriter:
    """Writes the checkpoints of one training."""

    def __init__(self, folder: Path, keep: int, *, reference_moves: bool, in_use: InUse = dict) -> None:
        """Write into `folder`, where the `keep` newest stay; `reference_moves`: whether it is ever synchronised.

        `in_use` returns the checkpoints that stay as well: those with which another run begins.
        """
        self._folder, self._keep, self._reference_moves, self._in_use = folder, keep, reference_moves, in_use
        self._thread, self._preparing_thread = _thread("checkpoint", LOW_PRIORITY), _thread("prepare", LOWEST_PRIORITY)
        self._under_way: Future[None] | None = None
        self._is_large = False
        self._initial: Future[str] | None = None
        self._reserved: Future[None] | None = None
        self._is_wanted = threading.Event()
        self._memory = SnapshotMemory()

    def prepare(self, live: Trainable) -> None:
        """Begin to store the initial policy, and to take the memory of the copies if there is enough.

        The first checkpoint and `close` wait for the former, and the checkpoint raises what `store_initial` does; of the latter
        the checkpoint takes what is there by then.
        """
        weights = live.contents().initial
        copies = 1 + self._reference_moves + MOMENTS
        needed = copies * sum(tensor.nbytes for tensor in weights.values())

        def reserve() -> None:
            if _is_free(needed):
                tensors = (tensor for tensor in weights.values() for _ in range(copies))
                self._memory.reserve(tensors, self._is_wanted.is_set)

        self._initial = self._thread.submit(store_initial, self._folder, weights)
        self._reserved = self._preparing_thread.submit(reserve)

    def begin(self, live: Trainable, state: TrainingState, mark: JournalMark, then: Callable[[str], object]) -> None:
        """Begin to write a checkpoint: what is in `live` may change as soon as this returns.

        Args:
            live: what is saved.
            state: its counters.
            mark: where the journal is.
            then: called with the checkpoint's name once it is durable, by the thread that wrote it.

        Raises:
            DiskFullError: it, or the initial policy, did not fit.
        """
        assert self._under_way is None, "finish() is called before the next one begins"
        contents = live.contents()
        initial = (self._initial or self._thread.submit(store_initial, self._folder, contents.initial)).result()
        self._end_reserving()
        size = contents.copied_bytes()
        has_room = not self._memory.is_empty or _is_free(size)
        if has_room:
            contents = self._memory.copy(contents)

        def write() -> None:
            saved = save_checkpoint(self._folder, contents, initial, state, keep=self._keep, mark=mark, in_use=self._in_use)
            then(saved.name)

        self._under_way, self._is_large = self._thread.submit(write), size >= LARGE_BYTES
        if not has_room:
            self.finish()

    def look(self) -> None:
        """Do what `finish` does, unless a large checkpoint is not durable yet.

        Raises:
            DiskFullError, JournalError: as `finish`.
        """
        if self._under_way is not None and (self._under_way.done() or not self._is_large):
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint under way is durable and `then` was called; return at once where there is none.

        Raises:
            DiskFullError: it did not fit; nothing of it is left, and every older one is.
            JournalError: its record could not be written.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _end_reserving(self) -> None:
        """Let no other thread take memory any more: what is there is copied into, the rest is taken by the copy."""
        self._is_wanted.set()
        if self._reserved is not None and not self._reserved.cancel():
            self._reserved.result()

    def close(self) -> None:
        """End the threads."""
        self._is_wanted.set()
        self._preparing_thread.shutdown()
        self._thread.shutdown()


def _thread(name: str, priority: int) -> ThreadPoolExecutor:
    """Return a thread that lets the training's go first: those of a product wait for each other, and lose more than a share."""

    def yield_cores() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority)

    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=yield_cores)


def _is_free(needed: int) -> bool:
    """Return whether the memory of a copy is free, and so much more as a step may need."""
    free = available_memory()
    return free is not None and free > SPARE * needed
