"""`grpo_core.trl`: TRL's arguments become a configuration, and what cannot is refused by name before anything starts."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError, DataError
from grpo_core.rewards.simple import length_reward
from grpo_core.trl import GRPOConfig, GRPOTrainer

ROWS = [{"prompt": f"{a} + 1 =", "answer": str(a + 1)} for a in range(10)]


def trainer(args: dict[str, Any] | None = None, **arguments: Any) -> GRPOTrainer:
    given = {"model": "org/model", "reward_funcs": length_reward, "train_dataset": ROWS, **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GRPOTrainer(args=GRPOConfig(max_steps=4, **(args or {})), **given)


@pytest.mark.parametrize(
    ("args", "arguments", "why"),
    [
        ({"max_step": 3}, {}, "max_step = 3: did you mean max_steps?"),
        ({"wings": 2}, {}, "wings = 2: unknown to TRL"),
        ({"entropy_coef": 0.01}, {}, "entropy_coef = 0.01: no entropy bonus here; policy/entropy is measured"),
        ({"loss_type": "sapo"}, {}, "loss_type = sapo: another objective"),
        (
            {"learning_rate": 1000.0},
            {},
            "learning_rate = 1000.0: refused here, left at its default: optimizer.lr: input should",
        ),
        ({}, {"callbacks": [print]}, "callbacks: would change the training, and has no counterpart here"),
        ({}, {"optimizers": (print, None)}, "optimizers: would change the training, and has no counterpart here"),
    ],
)
def test_what_would_change_the_training_is_refused_by_name(args: dict[str, Any], arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer({"report_to": "none", **args}, **arguments)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(why)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        trainer({"entropy_coef": 0.01, "min_p": 0.1}, tools=[print])
    assert len(str(caught.value).splitlines()) == 3


def test_what_does_nothing_here_is_said_in_one_warning() -> None:
    with pytest.warns(UserWarning, match="do nothing here") as caught:
        GRPOTrainer("org/model", length_reward, GRPOConfig(report_to="wandb", max_steps=4), ROWS, processing_class=object())
    (warning,) = caught
    assert warning.filename == __file__
    lines = str(warning.message).splitlines()
    assert lines[0] == "TRL's settings that do nothing here, or something else:"
    track = "beside MLflow; a run from Python is sent there by `grpo track <run>`, once it has ended"
    assert f"  report_to = wandb: {track}" in lines
    assert "  processing_class: is not used: the tokenizer is the one in the model's folder" in lines


def test_a_number_of_epochs_is_one_of_steps() -> None:
    # 16 rows a pass x 2 windows / 8 completions = 4 prompts a step; 3 epochs of 10 prompts; 2 x 1 updates a step.
    epochs = {"max_steps": -1, "num_train_epochs": 3, "warmup_ratio": 0.5}
    given = {"per_device_train_batch_size": 16, "steps_per_generation": 2, "num_iterations": 1, **epochs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GRPOTrainer("org/model", length_reward, GRPOConfig(**given), ROWS).config
    assert config.rollout.num_prompts_per_step == 4
    assert config.training.steps == 7
    assert config.optimizer.warmup_steps == 7  # half of the 14 updates


def test_an_adapter_of_peft_and_the_weights_of_rewards_are_taken() -> None:
    import peft

    lora = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["v_proj", "q_proj"])
    config = trainer({"reward_weights": [1.0, 0.25]}, reward_funcs=[length_reward, "math_answer"], peft_config=lora).config
    assert config.model.lora is not None
    assert (config.model.lora.rank, config.model.lora.alpha) == (4, 6.0)
    assert set(config.model.lora.target_modules or ()) == {"q_proj", "v_proj"}
    assert [reward.weight for reward in config.rewards] == [1.0, 0.25]
    with pytest.raises(ConfigError, match="reward_weights: 1 weights for 2 rewards"):
        trainer({"reward_weights": [1.0]}, reward_funcs=[length_reward, "math_answer"])


def test_a_loaded_model_and_data_that_are_no_rows_are_refused(tiny_model: Any) -> None:
    with pytest.raises(ConfigError, match="model: is a loaded LlamaForCausalLM; give the folder or the hub id"):
        trainer(model=tiny_model)
    with pytest.raises(DataError, match="data: expected rows"):
        trainer(train_dataset={"train": ROWS})


def test_trl_is_not_loaded_and_is_still_found() -> None:
    program = (
        "import sys, grpo_core.trl; print([name for name in ('trl', 'torch', 'transformers') if name in sys.modules]); "
        "import trl; print(trl.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, file = done.stdout.splitlines()
    assert loaded == "[]"
    assert Path(file).parts[-3:] == ("site-packages", "trl", "__init__.py")
