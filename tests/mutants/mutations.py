"""The planted mistakes: each is one an implementation of GRPO has been seen to make, or could make and still train.

Adding one: name the function, and the expression in it, which must occur exactly once there; a unit test must fail by an
assertion because of its replacement. Where none does, the tests have a hole: close it in the test file named beside it.
"""

from tests.mutants import objective, processes, signals, training

MUTATIONS = (*objective.MUTATIONS, *signals.MUTATIONS, *training.MUTATIONS, *processes.MUTATIONS)
