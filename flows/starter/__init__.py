"""What `grpo init` writes: a configuration, a reward function and rows of data that run as they are."""
