MASTER_PORT=29501 \
CUDA_VISIBLE_DEVICES=0,1 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-7B \
    --reward_funcs accuracy format \
    --train_type lora \
    --max_completion_length 1024 \
    --per_device_train_batch_size 16 \
    --learning_rate 1e-5 \
    --num_generations 16
