import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("json", data_files="problems.jsonl", split="train")
dataset = dataset.rename_column("question", "prompt")


def last_number(completions, answer, **kwargs):
    found = [re.findall(r"-?\d+", completion) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == gold.split()[-1]) for numbers, gold in zip(found, answer)]


args = GRPOConfig(
    output_dir="out",
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    num_generations=4,
    num_iterations=2,
    loss_type="grpo",
    beta=0.1,
    sync_ref_model=True,
    ref_model_sync_steps=64,
    ref_model_mixup_alpha=0.6,
    max_completion_length=32,
    max_steps=400,
    seed=1,
)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=[last_number], args=args, train_dataset=dataset)
trainer.train()
