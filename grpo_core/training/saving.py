"""Checkpoints beside the training: of a copy, by a thread of its own, while the next step is computed.

One at a time: whoever asks for the next one, or journals anything, first waits for the one under way (`finish`). So the journal
holds the same records in the same order as if every checkpoint had been written between two steps. Where there is no memory for
a copy, it is.
"""

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
        self._under_way: tuple[int, Future[Path]] | None = None

    def begin(self, live: Trainable, state: TrainingState, mark: JournalMark) -> None:
        """Begin to write a checkpoint: what is in `live` may change as soon as this returns.

        Raises:
            DiskFullError: the one that was under way, or this one where it could not be copied, did not fit.
        """
        assert self._under_way is None, "finish() is called before the next one begins"
        contents = live.contents()
        free = available_memory()
        has_room = free is not None and free > SPARE * contents.copied_bytes(reference_moves=self._reference_moves)
        if has_room:
            contents = contents.copied(reference_moves=self._reference_moves)
        written = self._thread.submit(save_checkpoint, self._folder, contents, state, self._keep, mark)
        self._under_way = state.step, written
        if not has_room:
            written.result()

    def finish(self) -> tuple[int, str] | None:
        """Wait for the checkpoint under way; return (step, name) once it is durable, None where there is none.

        Raises:
            DiskFullError: it did not fit; nothing of it is left, and every older one is.
        """
        if self._under_way is None:
            return None
        step, written = self._under_way
        self._under_way = None
        return step, written.result().name

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
