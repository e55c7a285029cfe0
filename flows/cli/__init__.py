"""The `grpo` command: each verb calls a flow or one function."""
