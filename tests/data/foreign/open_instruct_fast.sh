#!/bin/bash
set -e
uv run python open_instruct/grpo_fast.py \
    --dataset_mixer_list hamishivi/rlenv-counter 1.0 \
    --response_length 256 \
    --per_device_train_batch_size 1 \
    --num_unique_prompts_rollout 4 \
    --num_samples_per_prompt_rollout 4 \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --temperature 1.0 \
    --learning_rate 3e-7 \
    --beta 0.01 \
    --seed 42 \
    --output_dir output/counter_debug
