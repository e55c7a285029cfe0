"""Training: rollouts -> batch -> update -> loop, and the process around it (`python -m grpo_core.training RUN_DIR`)."""

TRAINING = "grpo_core.training"
"""What trains, as a process."""
EVALUATE = "--evaluate"
"""Its argument: the native engine evaluates the last policy, too, while it is in memory (`evaluate_trained`)."""
