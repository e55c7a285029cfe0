"""Checkpoints beside the training: of a copy, by a thread of its own, while the next step is computed.

One at a time: whoever asks for the next one first waits for the one under way (`finish`). A small one is waited for at the end
of the next step, so its record comes where it would if it had been written between two steps. A large one may take several:
its record comes when it is durable. Where there is no memory for a copy, all wait for it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from grpo_core.machine.hardware import available_memory
from grpo_core.parallel.sharded import is_spread
from grpo_core.policy.checkpoint import InUse, Trainable, copied, save_checkpoint, store_initial
from grpo_core.policy.saved import JournalMark, TrainingState

SPARE = 2.0
"""Of the memory that a copy takes, how many times that must be free: the next step needs some, too."""
LARGE_BYTES = 500_000_000
"""A checkpoint from here on takes longer than a step may wait."""


class CheckpointWriter:
    """Writes the checkpoints of one training."""

    def __init__(self, folder: Path, keep: int, *, in_use: InUse = dict, writes: bool = True) -> None:
        """Write into `folder`, where the `keep` newest stay.

        `in_use` returns the checkpoints that stay as well: those with which another run begins. Of several processes the first
        writes; the others call the same methods, as weights may be spread over all of them.
        """
        self.newest_step = 0
        """Step of the newest checkpoint; it may still be under way."""
        self._folder, self._keep, self._in_use = folder, keep, in_use
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None
        self._is_large = False
        self._initial: Future[str] | None = None
        self._writes = writes

    def prepare(self, trainable: Trainable) -> Future[str]:
        """Begin to store the initial policy, once; whoever waits for the first checkpoint learns if it did not fit."""
        if self._initial is None:
            weights = trainable.reference.initial.weights()
            held = copied(weights) if is_spread(trainable.policy.model) else weights
            self._initial = self._thread.submit(store_initial, self._folder, held) if self._writes else Future()
        return self._initial

    def begin(self, trainable: Trainable, state: TrainingState, mark: JournalMark, then: Callable[[str], object]) -> None:
        """Begin to write a checkpoint when none is under way: what is in `trainable` may change as soon as this returns.

        Args:
            trainable: what is saved.
            state: its counters.
            mark: where the journal is.
            then: called with the checkpoint's name once it is durable, by the thread that wrote it.
        """
        initial, contents = self.prepare(trainable), trainable.contents()
        size = contents.copied_bytes()
        has_room = available_memory() > SPARE * size
        held = contents.copied() if has_room or is_spread(trainable.policy.model) else contents
        self.newest_step = state.step
        if not self._writes:
            return

        def write() -> None:
            digest, keep, in_use = initial.result(), self._keep, self._in_use
            then(save_checkpoint(self._folder, held, digest, state, keep=keep, mark=mark, in_use=in_use).name)

        self._under_way, self._is_large = self._thread.submit(write), size >= LARGE_BYTES
        if not has_room:
            self.finish()

    def look(self) -> None:
        """Do what `finish` does, unless a large checkpoint is not durable yet."""
        if self._under_way is not None and (self._under_way.done() or not self._is_large):
            self.finish()

    def finish(self, seconds: float | None = None) -> bool:
        """Wait until the checkpoint under way is durable and `then` was called, at most so long; return whether there is none.

        Raises:
            DiskFullError: it, or the initial policy, did not fit; nothing of it is left, and every older one is.
            JournalError: its record could not be written.
        """
        if self._under_way is not None and not wait([self._under_way], seconds).done:
            return False
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
        return True

    def close(self) -> None:
        """Finish, and end the thread."""
        try:
            self.finish()
        finally:
            self._thread.shutdown()
