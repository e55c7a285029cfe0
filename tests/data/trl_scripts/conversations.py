from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

SYSTEM = "Answer with the number alone."


def to_messages(row):
    return {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]}


dataset = load_dataset("json", data_files="problems.jsonl", split="train").map(to_messages, remove_columns=["question"])


def contains_answer(completions, answer, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [float(gold.split()[-1] in text) for text, gold in zip(texts, answer)]


def brevity(completions, **kwargs):
    return [1.0 / (1 + len(completion[0]["content"])) for completion in completions]


args = GRPOConfig(
    output_dir="out",
    learning_rate=1e-6,
    warmup_steps=20,
    per_device_train_batch_size=12,
    gradient_accumulation_steps=1,
    num_generations=6,
    loss_type="dr_grpo",
    scale_rewards=False,
    reward_weights=[1.0, 0.2],
    max_completion_length=32,
    temperature=0.9,
    max_steps=300,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=[contains_answer, brevity], args=args, train_dataset=dataset
)
trainer.train()
