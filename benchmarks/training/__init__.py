"""Seconds of a training step: this engine against TRL's `GRPOTrainer` and against the machine's floor: `make bench`.

Each engine is a process of its own with the same model, prompts, settings, type and number of threads. They take turns, a step
at a time, so that another process on the machine slows each of them down alike. Neither evaluates nor writes checkpoints.
"""
