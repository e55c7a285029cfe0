set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo \
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
   --micro_train_batch_size 2 \
   --train_batch_size 128 \
   --micro_rollout_batch_size 4 \
   --n_samples_per_prompt 4 \
   --bf16
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
