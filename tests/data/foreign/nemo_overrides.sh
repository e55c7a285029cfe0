#!/bin/bash
NUM_ACTOR_NODES=2
uv run python examples/run_grpo.py --config examples/configs/grpo_math_8B.yaml \
    cluster.num_nodes=$NUM_ACTOR_NODES \
    grpo.num_prompts_per_step=64 \
    ++policy.generation.vllm_cfg.async_engine=True \
    checkpointing.checkpoint_dir=results/llama8b
