"""Checkpoints beside the training: of a copy, by a thread of its own, while the next step is computed.

One at a time: whoever asks for the next one, or journals anything, first waits for the one under way (`finish`), which journals
itself as soon as it is durable. So the journal holds the same records in the same order as if every checkpoint had been written
between two steps. Where there is no memory for a copy, it is.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from grpo_core.machine.hardware import available_memory
from grpo_core.policy.checkpoint import save_checkpoint
from grpo_core.policy.saved import JournalMark, TrainingState
from grpo_core.policy.trainable import Trainable

SPARE = 2.0
"""Of the memory that a copy takes, how many times that must be free: the next step needs some, too."""


class CheckpointWriter:
    """Writes the checkpoints of one training."""

    def __init__(self, folder: Path, keep: int, *, reference_moves: bool) -> None:
        """Write into `folder`, where the `keep` newest stay; `reference_moves`: whether it is ever synchronised."""
        self._folder, self._keep, self._reference_moves = folder, keep, reference_moves
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None

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
        free = available_memory()
        has_room = free is not None and free > SPARE * contents.copied_bytes(reference_moves=self._reference_moves)
        if has_room:
            contents = contents.copied(reference_moves=self._reference_moves)

        def write() -> None:
            then(save_checkpoint(self._folder, contents, state, self._keep, mark).name)

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
