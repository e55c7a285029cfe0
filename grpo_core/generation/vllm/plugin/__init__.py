"""The project `grpo-vllm`, which is installed into vLLM's environment; nothing of it is imported by the trainer."""
