"""Counter-based uniforms: the number that picks a token depends on what the token is, not on what else is sampled.

The uniform is a function of (seed, stream, step, prompt id, completion index, position) through NumPy's Philox generator
(Salmon et al. 2011): seed and stream are its key, the next three its upper counter words, and the position is the draw. So
neither batch composition nor sharding nor a resume changes it.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

_WORD = 2**64


class Stream(IntEnum):
    """Independent families of random numbers under one seed."""

    TRAIN = 1
    EVAL = 2
    PROBE = 3


def token_uniforms(
    seed: int, stream: Stream, step: int, rows: Sequence[tuple[int, int]], num_positions: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return [B, num_positions] uniforms in [0, 1).

    Args:
        seed: the run's seed.
        stream: which family.
        step: the training step; 0 where the numbers should be the same at every step.
        rows: (prompt id, completion index) of each row.
        num_positions: numbers wanted per row; a longer request starts with the same numbers.
    """
    uniforms = np.empty((len(rows), num_positions))
    for row, (prompt_id, completion_index) in enumerate(rows):
        generator = np.random.Philox(
            key=np.array([seed % _WORD, int(stream)], dtype=np.uint64),
            counter=np.array([0, step, prompt_id, completion_index], dtype=np.uint64),
        )
        uniforms[row] = np.random.Generator(generator).random(num_positions)
    return uniforms
