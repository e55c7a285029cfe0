ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 \
   --rollout.n_samples_per_prompt 8 \
   --learning_rate 1e-6
