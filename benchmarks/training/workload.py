"""What is measured: a model, prompts, and the settings of a step, as a configuration that both engines read."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_core.config import RunConfig, load_config
from grpo_core.policy.sources.find import load_tokenizer, resolve_model

WORKLOAD_FILE = "workload.json"
"""Where a workload is written in its folder, for its engines."""
QUESTION = "State the final answer to the following arithmetic problem: {} - {} ="
EXAMPLE = "State the final answer to the following arithmetic problem: {} - {} = {}\n"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step: `num_prompts` x `group_size` completions, one update, and an EMA of the reference every `sync_steps`."""

    name: str
    num_prompts: int
    """P."""
    group_size: int
    """G."""
    completion_tokens: int
    """After which a completion is truncated."""
    prompt_tokens: int = 0
    """At least so many: the question is preceded by solved ones."""
    forced: bool = False
    """Every completion has `completion_tokens` tokens: the model's end token is one that it never draws."""
    model: str = "bundled:smollm2-135m"
    dtype: str = "float32"
    threads: int = 1
    steps: int = 8
    """Steps of each engine, the ones that are not counted included."""
    beta: float = 0.04
    sync_steps: int = 2
    mixup_alpha: float = 0.6
    settings: tuple[str, ...] = field(default=())
    """Further overrides of the configuration, for example `training.microbatch_tokens=4096`."""

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        """Return what `prepare_inputs` wrote."""
        found: dict[str, Any] = json.loads(text)
        return cls(**found | {"settings": tuple(found["settings"])})

    def config(self, folder: Path) -> RunConfig:
        """Return the configuration of a run of it, whose model and data `prepare_inputs` has put into `folder`."""
        overrides: dict[str, Any] = {
            "model.source": str(folder / "model"),
            "model.dtype": self.dtype,
            "data.source": f"file:{folder / 'prompts.jsonl'}",
            "data.task_args": {},
            "data.size": None,
            "data.eval_fraction": 0.0,
            "data.chat_template": False,
            "rewards": [{"fn": "benchmarks.training.workload:characters"}],
            "rollout.num_prompts_per_step": self.num_prompts,
            "rollout.group_size": self.group_size,
            "rollout.max_prompt_tokens": 8192,
            "rollout.max_completion_tokens": self.completion_tokens,
            "rollout.temperature": 1.0,
            "loss.beta": self.beta,
            "reference.sync_steps": self.sync_steps,
            "reference.mixup_alpha": self.mixup_alpha,
            "optimizer.lr": 1e-6,
            "optimizer.warmup_steps": 0,
            "probe.every_steps": None,
            "training.steps": self.steps,
            "training.threads": self.threads,
            "training.checkpoint_every": None,
            "evaluation.every_steps": None,
            "monitor.rules": [],
        }
        return load_config("quickstart", [*(f"{key}={json.dumps(value)}" for key, value in overrides.items()), *self.settings])


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="natural", num_prompts=2, group_size=8, completion_tokens=32),
        Workload(name="forced", num_prompts=2, group_size=8, completion_tokens=32, forced=True),
        Workload(
            name="prompt-heavy",
            num_prompts=1,
            group_size=16,
            prompt_tokens=512,
            completion_tokens=64,
            forced=True,
            settings=("training.microbatch_tokens=2400",),  # all rows at once need 23 GB in TRL, which repeats the prompt
        ),
        Workload(name="completion-heavy", num_prompts=2, group_size=8, prompt_tokens=64, completion_tokens=512),
    )
}
"""By name. The first two are ended by the model and by force; the others put the tokens into prompts or completions."""


def characters(completions: Sequence[str], **_: Any) -> list[float]:
    """Return a reward that is cheap and seldom the same for two completions of a group: their characters modulo 7."""
    return [float(sum(map(ord, completion)) % 7) for completion in completions]


def prepare_inputs(workload: Workload, folder: Path) -> None:
    """Put the model and the prompts of a workload into `folder`."""
    source = resolve_model(workload.model)
    target = folder / "model"
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file.resolve())
    tokenizer = load_tokenizer(source, trust_remote_code=False)
    if workload.forced:
        _never_end(target, tokenizer)
    (folder / WORKLOAD_FILE).write_text(json.dumps(asdict(workload)))
    rows = [{"question": text, "answer": "0"} for text in _prompts(workload, tokenizer)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_prompts(folder: Path) -> list[str]:
    """Return the prompts that `prepare_inputs` has written, in the order of the steps."""
    return [json.loads(line)["question"] for line in (folder / "prompts.jsonl").read_text().splitlines()]


def _prompts(workload: Workload, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return other prompts for each step, as the steps of a training have."""
    numbers = random.Random(0)
    count = workload.num_prompts * workload.steps
    return [_prompt(workload.prompt_tokens, tokenizer, numbers) for _ in range(count)]


def _prompt(tokens: int, tokenizer: PreTrainedTokenizerBase, numbers: random.Random) -> str:
    text = QUESTION.format(numbers.randrange(10, 100), numbers.randrange(10, 100))
    while len(tokenizer(text)["input_ids"]) < tokens:
        first, second = numbers.randrange(10, 100), numbers.randrange(10, 100)
        text = EXAMPLE.format(first, second, first - second) + text
    return text


def _never_end(model: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the end token of a model folder a new one, for which the model has no logit: it is never drawn."""
    tokenizer.add_special_tokens({"eos_token": "<|never drawn|>"})
    changed = [model / name for name in ("config.json", "generation_config.json")]
    contents = [json.loads(file.read_text()) | {"eos_token_id": tokenizer.eos_token_id} for file in changed]
    for file in (*changed, *model.glob("tokenizer*"), *model.glob("*.jinja"), *model.glob("special_tokens*")):
        file.unlink()  # links to the model's own
    tokenizer.save_pretrained(model)
    for file, content in zip(changed, contents, strict=True):
        file.write_text(json.dumps(content))


def at_scale(workload: Workload, *, dtype: str, threads: int, steps: int, model: str) -> Workload:
    """Return a workload as it is measured this time."""
    return replace(workload, dtype=dtype, threads=threads, steps=steps, model=model)
