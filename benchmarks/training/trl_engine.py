"""TRL's `GRPOTrainer` as its users run it: its own generation, optimizer and callbacks; only clocks are added."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.training.timed import TimedStep, Turns, now
from benchmarks.training.workload import Workload, characters, read_prompts
from grpo_core.interop.trl_export import trl_arguments
from grpo_core.policy.device import pick_device
from grpo_core.policy.loading import load_model
from grpo_core.policy.sources.find import load_tokenizer

FASTEST = {
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "cast_lm_head_to_fp32": False,
    "use_vllm": False,
    "dataloader_pin_memory": False,
}
"""TRL's own options that decide its speed, each at its fastest value."""


def run(_engine: str, workload: Workload, folder: Path, turns: Turns) -> None:
    """Make the steps of a workload."""
    torch.set_num_threads(workload.threads)
    tokenizer = load_tokenizer(folder / "model", trust_remote_code=False)
    prompts = read_prompts(folder)
    config = workload.config(folder)
    widest = max(len(tokenizer(prompt)["input_ids"]) for prompt in prompts)
    on_cpu = pick_device(config.training.device).type == "cpu"
    arguments = trl_arguments(config, prompt_width=widest, on_cpu=on_cpu, output=folder / "trl") | FASTEST
    trainer = ClockedTrainer(
        model=load_model(folder / "model"),
        reward_funcs=[characters],
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    clock = _Clock(trainer, turns, lambda text: len(tokenizer(text)["input_ids"]))
    trainer.callback_handler.callbacks.insert(0, clock)  # before the one that synchronises the reference
    shown = (*FASTEST, "bf16", "per_device_train_batch_size", "gradient_accumulation_steps", "beta", "sync_ref_model")
    turns.ready({key: getattr(trainer.args, key) for key in shown} | {"attention": trainer.model.config._attn_implementation})
    trainer.train()
    clock.finish()


class ClockedTrainer(GRPOTrainer):
    """TRL's trainer, unchanged in what it computes; it notes when its parts end."""

    def __init__(self, **arguments: Any) -> None:
        """Build TRL's trainer from its own arguments."""
        self.seconds: dict[str, float] = {}
        self.scored_at = 0.0
        self.prompts: list[str] = []
        self.lengths: list[int] = []
        super().__init__(**arguments)

    def _generate(self, prompts: list[Any]) -> Any:
        began = now()
        found = super()._generate(prompts)
        self.seconds["rollout"] = now() - began
        self.prompts = list(dict.fromkeys(prompts))
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        began = now()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.scored_at = now()
        self.seconds["logps"] = self.scored_at - began - self.seconds["rollout"]
        self.lengths = output["completion_mask"].sum(dim=1).tolist()
        return output


class _Clock(TrainerCallback):  # type: ignore[misc]
    """Waits for its turn before each step and reports it when the next one would begin."""

    def __init__(self, trainer: ClockedTrainer, turns: Turns, count: Any) -> None:
        self._trainer, self._turns, self._count = trainer, turns, count
        self._began = self._updated_at = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.finish()
        self._turns.wait()
        self._began = now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._updated_at = now()
        self._trainer.seconds["update"] = self._updated_at - self._trainer.scored_at

    def on_log(self, *_: Any, **__: Any) -> None:
        if self._began:
            self._trainer.seconds["sync"] = now() - self._updated_at

    def finish(self) -> None:
        """Report the step that has been made, if one has."""
        if not self._began:
            return
        step = TimedStep(
            seconds=now() - self._began,
            phases=dict(self._trainer.seconds),
            prompt_tokens=sum(map(self._count, self._trainer.prompts)),
            completion_lengths=self._trainer.lengths,
        )
        self._turns.report(step)
        self._began = 0.0
        self._trainer.seconds.clear()
