"""Checkpoints beside the training: of a copy, by a thread of its own, while the next step is computed.

One at a time: whoever asks for the next one, or journals anything, first waits for the one under way (`finish`), which journals
itself as soon as it is durable. So the journal holds the same records in the same order as if every checkpoint had been written
between two steps. Where there is no memory for a copy, it is.

The initial policy is stored, and memory for the copies taken, beside the first step.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from grpo_core.machine.hardware import available_memory
from grpo_core.policy.checkpoint import save_checkpoint
from grpo_core.policy.initial import store_initial
from grpo_core.policy.saved import JournalMark, TrainingState
from grpo_core.policy.snapshot import SnapshotMemory
from grpo_core.policy.trainable import Trainable

SPARE = 2.0
"""Of the memory that a copy takes, how many times that must be free: the next step needs some, too."""
LOW_PRIORITY = 5
"""As `nice` counts. At the lowest of all, 19, busy neighbours could hold up a checkpoint for minutes."""
MOMENTS = 2
"""Of AdamW, for each weight."""


class CheckpointWriter:
    """Writes the checkpoints of one training."""

    def __init__(self, folder: Path, keep: int, *, reference_moves: bool) -> None:
        """Write into `folder`, where the `keep` newest stay; `reference_moves`: whether it is ever synchronised."""
        self._folder, self._keep, self._reference_moves = folder, keep, reference_moves
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=_yield_cores)
        self._under_way: Future[None] | None = None
        self._initial: Future[str] | None = None
        self._memory = SnapshotMemory()

    def prepare(self, live: Trainable) -> None:
        """Begin to store the initial policy, and to take the memory of the copies if there is enough.

        `finish` waits for both, and raises what `store_initial` does.
        """
        weights = live.contents().initial
        initial = self._initial = self._thread.submit(store_initial, self._folder, weights)
        copies = 1 + self._reference_moves + MOMENTS
        needed = copies * sum(tensor.nbytes for tensor in weights.values())

        def reserve() -> None:
            initial.result()
            if _is_free(needed):
                self._memory.reserve(tensor for tensor in weights.values() for _ in range(copies))

        self._under_way = self._thread.submit(reserve)

    def begin(self, live: Trainable, state: TrainingState, mark: JournalMark, then: Callable[[str], object]) -> None:
        """Begin to write a checkpoint: what is in `live` may change as soon as this returns.

        Args:
            live: what is saved.
            state: its counters.
            mark: where the journal is.
            then: called with the checkpoint's name once it is durable, by the thread that wrote it.

        Raises:
            DiskFullError: it did not fit, and this had to wait for it since there was no memory for a copy.
        """
        assert self._under_way is None, "finish() is called before the next one begins"
        contents = live.contents()
        initial = self._initial = self._initial or self._thread.submit(store_initial, self._folder, contents.initial)
        has_room = not self._memory.is_empty or _is_free(contents.copied_bytes())
        if has_room:
            contents = self._memory.copy(contents)

        def write() -> None:
            then(save_checkpoint(self._folder, contents, initial.result(), state, keep=self._keep, mark=mark).name)

        self._under_way = self._thread.submit(write)
        if not has_room:
            self._under_way.result()

    def finish(self) -> None:
        """Wait until the checkpoint under way is durable and `then` was called; return at once where there is none.

        Raises:
            DiskFullError: it did not fit; nothing of it is left, and every older one is.
            JournalError: its record could not be written.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def _yield_cores() -> None:
    """Let the training's threads go first: a product, whose threads wait for one another, loses more than its share."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)


def _is_free(needed: int) -> bool:
    """Return whether the memory of a copy is free, and so much more as a step may need."""
    free = available_memory()
    return free is not None and free > SPARE * needed
