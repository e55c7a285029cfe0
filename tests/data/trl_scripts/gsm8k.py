from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("json", data_files="problems.jsonl", split="train")


def to_prompt(row):
    return {"prompt": row["question"] + "\n", "solution": row["answer"].split("####")[-1].strip()}


dataset = dataset.map(to_prompt, remove_columns=["question", "answer"])


def correct(completions, solution, **kwargs):
    return [float(completion.strip() == gold) for completion, gold in zip(completions, solution)]


args = GRPOConfig(
    output_dir="out",
    learning_rate=2e-6,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=64,
    beta=0.04,
    max_steps=200,
    report_to="none",
)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=correct, args=args, train_dataset=dataset)
trainer.train()
