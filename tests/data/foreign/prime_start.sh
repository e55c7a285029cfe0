uv run rl \
  --trainer @ configs/task/trainer.toml \
  --orchestrator @ configs/task/orchestrator.toml \
  --inference @ configs/task/inference.toml \
  --max-steps 400
