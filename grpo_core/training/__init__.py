"""Training: rollouts -> batch -> update -> loop, and the process around it (`python -m grpo_core.training RUN_DIR`)."""
