# The shape of philschmid/deep-learning-pytorch-huggingface, "mini R1": a countdown task, prompts begun by the template, helpers
# outside of the functions. Its settings are those of the recipe in tests/data/public/trl.jsonl, without vLLM.
import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

THINKING = re.compile(r"^<think>([^<]*(?:<(?!/?think>)[^<]*)*)<\/think>\n<answer>([\s\S]*?)<\/answer>$")
ALLOWED = r"^[\d+\-*/().\s]+$"


def generate_r1_prompt(row):
    text = f"Using the numbers in {row['question']}, create an equation.\nLet me solve this step by step.\n<think>"
    return {"prompt": text, "target": row["answer"].split()[-1], "nums": re.findall(r"\d+", row["question"])}


dataset = load_dataset("json", data_files="problems.jsonl", split="train")
dataset = dataset.map(generate_r1_prompt, remove_columns=dataset.column_names)


def extract_answer(completion):
    match = re.search(r"<answer>(.*?)<\/answer>", "<think>" + completion)
    return None if match is None else match.group(1).strip()


def format_reward_func(completions, target, **kwargs):
    rewards = []
    for completion, gt in zip(completions, target):
        try:
            match = THINKING.search("<think>" + completion)
            rewards.append(0.0 if match is None or len(match.groups()) != 2 else 1.0)
        except Exception:
            rewards.append(0.0)
    return rewards


def equation_reward_func(completions, target, nums, **kwargs):
    rewards = []
    for completion, gt, numbers in zip(completions, target, nums):
        equation = extract_answer(completion)
        used = [] if equation is None else re.findall(r"\d+", equation)
        rewards.append(float(sorted(used) == sorted(numbers) and re.match(ALLOWED, equation) is not None))
    return rewards


training_args = GRPOConfig(
    output_dir="runs/qwen-r1-aha-moment",
    max_steps=450,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    learning_rate=5.0e-7,
    lr_scheduler_type="cosine",
    warmup_ratio=0.03,
    beta=0.001,
    max_prompt_length=256,
    max_completion_length=1024,
    num_generations=8,
    bf16=True,
    tf32=True,
    logging_strategy="steps",
    logging_steps=2,
    report_to=["tensorboard"],
    save_strategy="steps",
    save_steps=25,
    seed=42,
    push_to_hub=False,
    hub_strategy="every_save",
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    reward_funcs=[format_reward_func, equation_reward_func],
    args=training_args,
    train_dataset=dataset,
    eval_dataset=dataset.select(range(4)),
    peft_config=None,
    callbacks=None,
)
trainer.train()
trainer.save_model(training_args.output_dir)
