exp_name="base_grpo_${RANDOM}"
python mason.py --cluster ai2/jupiter --num_nodes 2 --gpus 8 -- \
    source configs/beaker_configs/ray_node_setup.sh \&\& \
    python open_instruct/grpo_vllm_thread_ray_gtrl.py \
    --exp_name $exp_name \
    --num-samples-per-prompt-rollout 16 \
    --learning_rate 5e-7 \
    --gradient_accumulation_steps 1 \
    --seed 3
