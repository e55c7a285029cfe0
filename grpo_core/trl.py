"""TRL's names for a run of this project: `from grpo_core.trl import GRPOConfig, GRPOTrainer` converts a script by its import.

The tables of `grpo_core/interop`, as in `grpo import-config`, say what each argument becomes. TRL need not be installed.
"""

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpo_core.errors import ConfigError, listed
from grpo_core.interop.conversion import HELD_OUT, convert
from grpo_core.interop.report import value_text
from grpo_core.interop.rules import Entry
from grpo_core.training.from_python import train
from grpo_core.training.given import given_settings

PEFT = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")},
}
"""{attribute of PEFT's LoraConfig: argument of `trl grpo`}."""
UNUSED = {
    "eval_dataset": "is not used: some of the training prompts are held out",
    "processing_class": "is not used: the tokenizer is the one in the model's folder",
}
NOTHING = ("None", "(None, None)")
REFUSED = "would change the training, and has no counterpart here"


class GRPOConfig(SimpleNamespace):
    """TRL's arguments, by keyword; `GRPOTrainer` checks their names and values."""


class GRPOTrainer:
    """TRL's trainer, in front of `grpo_core.train`: `args` are TRL's, `config` is what they are here, `run` what came of it."""

    def __init__(
        self,
        model: Path | str,
        reward_funcs: Any,
        args: GRPOConfig | None = None,
        train_dataset: Any = (),
        *,
        peft_config: Any = None,
        **others: Any,
    ) -> None:
        """Convert the arguments, and warn once of those that do nothing here, or something else.

        Args:
            model: folder or hub id.
            reward_funcs: functions in TRL's signature, one or a list, as `train` takes them.
            args: TRL's arguments.
            train_dataset: rows with a column `prompt`, as `train` takes them.
            peft_config: PEFT's `LoraConfig`.
            others: TRL's further arguments, none of which has a counterpart.

        Raises:
            ConfigError, DataError: an argument is unknown, or leaving it out would change the training; no rows.
        """
        self.args = args or GRPOConfig()
        self._rows = train_dataset if hasattr(train_dataset, "__len__") else list(train_dataset)
        functions = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        given_settings(functions, self._rows, model)  # refuses them
        lora = {} if peft_config is None else {"use_peft": True, **{PEFT[key]: vars(peft_config)[key] for key in PEFT}}
        names = [f"given.reward_{index}" for index in range(len(functions))]
        values = {"model_name_or_path": str(model), "reward_funcs": names, **vars(self.args), **lora}
        imported = convert(values)
        if not any("training.steps" in entry.targets for entry in imported.entries):  # epochs, of data that is known here
            loss, prompts = imported.config.loss, imported.config.rollout.num_prompts_per_step
            steps = max(1, int(float(values.get("num_train_epochs", 3)) * len(self._rows) / prompts))
            imported = convert({**values, "max_steps": steps * loss.minibatches * loss.epochs_per_rollout})
        self.config = imported.config
        self._rewards = [{"fn": fn, "weight": reward.weight} for fn, reward in zip(functions, self.config.rewards, strict=True)]
        more = [*_without_counterpart(peft_config), *(name for name, value in others.items() if str(value) not in NOTHING)]
        told = [entry for entry in imported.entries if _is_shown(entry)]
        refused = [entry for entry in told if entry.differs and (entry.fate != "mapped" or "refused here" in entry.remark)]
        unknown = [entry for entry in told if entry.fate == "unknown"]
        if faults := [*map(_line, unknown + refused), *(f"{name}: {REFUSED}" for name in more if name not in UNUSED)]:
            raise ConfigError(listed(faults))
        lines = [HELD_OUT, *imported.notes, *map(_line, told), *(f"{name}: {UNUSED[name]}" for name in more)]
        warnings.warn("\n  ".join(["TRL's settings that do nothing here, or something else:", *lines]), stacklevel=2)

    def train(self) -> SimpleNamespace:
        """Train, and evaluate before and after; return `global_step`, `training_loss`, `metrics` of the last step, and `run`.

        Raises:
            GrpoError: as `grpo_core.train`.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("WORLD_SIZE: every process would train a run of its own; start the script with `python`")
        self.run = train(self.config, rewards=self._rewards, data=self._rows)
        metrics = self.run.steps.iloc[-1].to_dict()
        return SimpleNamespace(
            global_step=self.run.last_step, training_loss=metrics["loss/total"], metrics=metrics, run=self.run
        )

    def save_model(self, output_dir: Path | str | None = None) -> None:
        """Export the trained policy, as `grpo export` does; None = to `output_dir` of the arguments.

        Raises:
            GrpoError: as `export_policy`.
        """
        from grpo_core.export.choice import ExportWish
        from grpo_core.export.policy_folder import export_policy

        export_policy(self.run.dir, ExportWish(), Path(output_dir or vars(self.args).get("output_dir", "trainer_output")))


def _without_counterpart(peft_config: Any) -> list[str]:
    if peft_config is None:
        return []
    if type(peft_config).__name__ != "LoraConfig":
        return [f"peft_config {type(peft_config).__name__}"]
    usual = vars(type(peft_config)())
    known = {*PEFT, "base_model_name_or_path", "task_type", "inference_mode"}
    return [f"peft_config.{name}" for name, value in vars(peft_config).items() if name not in known and value != usual[name]]


def _is_shown(entry: Entry) -> bool:
    is_other = entry.differs or entry.fate != "mapped" or entry.targets.get("tracking.also")
    return not entry.is_default and bool(is_other)


def _line(entry: Entry) -> str:
    return f"{entry.key} = {value_text(entry.key, entry.value)}: {entry.remark or 'unknown to TRL'}"
