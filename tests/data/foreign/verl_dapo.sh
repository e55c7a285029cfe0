#!/usr/bin/env bash
set -euxo pipefail
adv_estimator=grpo
clip_ratio_high=0.28
RUNTIME_ENV=${RUNTIME_ENV:-"${WORKING_DIR}/verl/trainer/runtime_env.yaml"}
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" \
    --working-dir "${WORKING_DIR}" \
    -- python3 -m recipe.dapo.main_dapo \
    data.prompt_key=prompt \
    data.gen_batch_size=1536 \
    +algorithm.filter_groups.enable=True \
    algorithm.adv_estimator=${adv_estimator} \
    actor_rollout_ref.actor.clip_ratio_high=${clip_ratio_high} \
    actor_rollout_ref.rollout.n=16
