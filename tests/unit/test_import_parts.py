"""What rewards and adapters of other systems become: the same here, or the reason why not.

A reward is a function that does the same, or a name that `grpo check` refuses; an adapter is the same product.
"""

import itertools
import math
import re
from pathlib import Path
from typing import Any

import peft
import pytest

from benchmarks.random_models import TINY
from grpo_core.config import validate_config
from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import Imported
from grpo_core.interop.report import render
from grpo_core.interop.trl_family import NO_COUNTERPART, REGISTRY
from grpo_core.rewards.base import load_rewards
from grpo_core.rewards.simple import format_reward
from tests.support.imports import convert, entry_of

BASE = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 10}


def converted(folder: Path, source: str, **settings: Any) -> Imported:
    """Import settings as those of a system."""
    return convert(folder, {**BASE, **settings}, source)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_reward_of_open_r1_is_a_function_here_or_refused(tmp_path: Path, name: str) -> None:
    imported = converted(tmp_path, "open-r1", reward_funcs=[name], max_completion_length=16384)
    listed = imported.values.get("rewards", ())
    if name in NO_COUNTERPART:
        assert imported.missing_rewards == (f"{name} (open-r1)",)
        with pytest.raises(ConfigError, match=rf"rewards\.0\.fn: input is neither built in.*got '{name} \(open-r1\)'"):
            validate_config(imported.values)
        return
    assert imported.missing_rewards == ()
    assert {reward["fn"] for reward in listed} <= BUILTIN_REWARDS.keys()
    load_rewards(imported.config.rewards)


PIECES = ("<think>", "</think>", "<answer>", "</answer>", "x", "\n")
OPEN_R1_FORMAT = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"


def test_the_format_of_open_r1_is_its_own_pattern(tmp_path: Path) -> None:
    args = converted(tmp_path, "open-r1", reward_funcs=["format"]).values["rewards"][0]["args"]
    good = "<think>\na\n</think>\n<answer>\nb\n</answer>"
    texts = [
        good,
        f"{good}\nmore",
        f"{good} more",
        f"a{good}",
        good.replace("\n", ""),
        good.replace("b", "b\nc"),
        f"{good}{good}",
    ]
    texts += [good.replace(piece, other, 1) for piece, other in itertools.product(PIECES, PIECES)]
    texts = [text for text in texts if text == text.strip()]  # the remark names that difference
    theirs = [float(bool(re.match(OPEN_R1_FORMAT, text, re.DOTALL | re.MULTILINE))) for text in texts]
    assert 0 < sum(theirs) < len(theirs)
    assert format_reward([""] * len(texts), texts, **args) == theirs


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"max_completion_len": 512, "soft_punish_cache": 128}, False),
        ({"max_completion_len": 400, "soft_punish_cache": 128}, True),
        ({"max_completion_len": 512, "soft_punish_cache": 128, "reward_weights": [1.0, 0.5]}, True),
    ],
)
def test_the_overlong_penalty_is_a_filter(tmp_path: Path, settings: dict[str, Any], differs: bool) -> None:
    imported = converted(
        tmp_path, "open-r1", reward_funcs=["format", "soft_overlong_punishment"], max_completion_length=512, **settings
    )
    assert imported.config.filtering.overlong_buffer_tokens == 128
    assert entry_of(imported, "reward_funcs").differs == differs


@pytest.mark.parametrize(
    ("source", "settings", "expected"),
    [
        ("trl", {"reward_funcs": ["think_format_reward"]}, ["trl.rewards:think_format_reward"]),
        ("trl", {"reward_funcs": "trl.rewards.accuracy_reward"}, ["trl.rewards:accuracy_reward"]),
        ("trl", {"reward_funcs": ["my.rewards.f"]}, ["my.rewards:f"]),
        ("trl", {"reward_funcs": ["accuracy"]}, ["accuracy (trl)"]),
        ("trl", {"reward_funcs": ["trl.rewards.get_cosine_scaled_reward"]}, ["trl.rewards.get_cosine_scaled_reward (trl)"]),
        ("trl", {"reward_funcs": ["m.f"], "reward_model_name_or_path": "org/rm"}, ["org/rm (trl)", "m:f"]),
        ("open-r1", {"reward_funcs": ["format", "code_format"]}, ["format", "code_format (open-r1)"]),
        ("open-r1", {}, ["math_answer", "format", "tag_count (open-r1)"]),
        ("open-r1", {"reward_funcs": ["accuracy", "length"]}, ["math_answer", "length (open-r1)"]),  # another `length`
        ("vlm-r1", {"reward_funcs": ["format"]}, ["format"]),
        ("vlm-r1", {"reward_funcs": ["format"], "is_reward_customized_from_vlm_module": True}, ["format (vlm-r1)"]),
        ("vlm-r1", {"reward_method": "math"}, ["accuracy (vlm-r1)", "format"]),
    ],
)
def test_rewards_by_system(tmp_path: Path, source: str, settings: dict[str, Any], expected: list[str]) -> None:
    assert [reward["fn"] for reward in converted(tmp_path, source, **settings).values["rewards"]] == expected


pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
TRL = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 100, "lora_dropout": 0.0}
ROLL = {"rollout_batch_size": 16, "num_return_sequences_in_group": 4, "response_length": 64, "adv_estimator": "grpo"}
LORA = ("rank", "alpha", "dropout", "target_modules")


def imported(folder: Path, system: str, settings: dict[str, Any]) -> Imported:
    """Import settings through a file; ROLL's are those of `actor_train.model_args`."""
    whole = {**ROLL, "actor_train": {"model_args": settings}} if system == "roll" else {**TRL, **settings}
    return convert(folder, whole, system)


@pytest.mark.parametrize(
    ("system", "settings", "expected"),
    [
        ("trl", {}, (16, 32.0, 0.0, ["q_proj", "v_proj"])),
        ("trl", {"lora_r": 8, "lora_alpha": 16}, (8, 16.0, 0.0, ["q_proj", "v_proj"])),
        ("trl", {"lora_r": 16, "lora_alpha": 8, "use_rslora": True}, (16, 32.0, 0.0, ["q_proj", "v_proj"])),
        ("trl", {"lora_target_modules": "all-linear"}, (16, 32.0, 0.0, None)),
        ("trl", {"lora_target_modules": ["all-linear"]}, (16, 32.0, 0.0, None)),
        ("trl", {"lora_target_modules": ["k_proj", "mlp.down_proj"]}, (16, 32.0, 0.0, ["k_proj", "mlp.down_proj"])),
        ("trl", {"lora_target_modules": r".*\.(k_proj|o_proj)$"}, (16, 32.0, 0.0, ["k_proj", "o_proj"])),
        ("trl", {"lora_target_modules": r".*\.up_proj"}, (16, 32.0, 0.0, ["up_proj"])),
        ("open-r1", {"lora_r": 4}, (4, 32.0, 0.0, ["q_proj", "v_proj"])),
        ("vlm-r1", {"lora_r": 4, "lora_target_modules": ["q_proj"]}, (4, 32.0, 0.0, None)),
        ("roll", {"lora_target": "all"}, (8, None, 0.0, None)),
        ("roll", {"lora_target": "all-linear", "lora_rank": 32, "lora_alpha": 32}, (32, 32.0, 0.0, None)),
        ("roll", {"lora_target": "q_proj, v_proj"}, (8, None, 0.0, ["q_proj", "v_proj"])),
        ("roll", {"lora_target": r".*\.(q_proj|v_proj)$", "lora_alpha": 0}, (8, None, 0.0, ["q_proj", "v_proj"])),
        ("roll", {"lora_target": r".*\.(linear_qkv|linear_proj)$"}, (8, None, 0.0, ["q_proj", "k_proj", "v_proj", "o_proj"])),
        ("roll", {"lora_target": "linear_fc2"}, (8, None, 0.0, ["down_proj"])),
    ],
)
def test_an_adapter(tmp_path: Path, system: str, settings: Any, expected: tuple[Any, ...]) -> None:
    switch = {} if system == "roll" else {"use_peft": True}
    lora = imported(tmp_path, system, {**switch, **settings}).config.model.lora
    assert lora is not None
    names = None if lora.target_modules is None else list(lora.target_modules)
    assert (lora.rank, lora.alpha, lora.dropout, names) == expected


@pytest.mark.parametrize(("rank", "alpha"), [(16, 32), (8, 3), (7, 11)])
def test_the_scale_of_rslora_is_that_of_peft(tmp_path: Path, rank: int, alpha: int) -> None:
    lora = imported(
        tmp_path, "trl", {"use_peft": True, "use_rslora": True, "lora_r": rank, "lora_alpha": alpha}
    ).config.model.lora
    theirs = peft.LoraConfig(r=rank, lora_alpha=alpha, use_rslora=True, target_modules=["q_proj"])
    adapted = [m for m in peft.get_peft_model(TINY.model(), theirs).modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    assert lora is not None
    assert lora.alpha is not None
    for module in adapted:
        assert math.isclose(lora.alpha / lora.rank, module.scaling["default"], rel_tol=1e-15)


@pytest.mark.parametrize(("pattern", "names"), [(r".*\.(q_proj|up_proj)$", "q_proj up_proj"), (r".*\.o_proj", "o_proj")])
def test_a_translated_expression_names_the_modules_that_peft_adapts(tmp_path: Path, pattern: str, names: str) -> None:
    lora = imported(tmp_path, "trl", {"use_peft": True, "lora_target_modules": [pattern]}).config.model.lora
    assert lora is not None
    assert lora.target_modules == tuple(names.split())
    ours, theirs = (
        peft.get_peft_model(TINY.model(), peft.LoraConfig(target_modules=targets)).targeted_module_names
        for targets in (list(lora.target_modules), pattern)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("system", "settings", "key", "said", "differs"),
    [
        ("trl", {"use_peft": True, "lora_dropout": 0.1}, "lora_dropout", "no_counterpart: no dropout here", True),
        (
            "trl",
            {"use_peft": True, "lora_dropout": 0.1, "disable_dropout": True},
            "lora_dropout",
            "dead: disable_dropout",
            False,
        ),
        (
            "vlm-r1",
            {"use_peft": True, "lora_dropout": 0.1, "disable_dropout": True},
            "lora_dropout",
            "no_counterpart: no",
            True,
        ),
        ("trl", {"use_peft": True, "use_dora": True}, "use_dora", "no_counterpart: no DoRA here", True),
        ("trl", {"use_peft": True, "use_dora": False}, "use_dora", "no_counterpart: off in the file", False),
        (
            "trl",
            {"use_peft": True, "lora_modules_to_save": ["lm_head"]},
            "lora_modules_to_save",
            "no_counterpart: the adapter alone is trained here",
            True,
        ),
        ("trl", {"use_peft": True, "lora_task_type": "SEQ_CLS"}, "lora_task_type", "no_counterpart: a causal language", True),
        (
            "trl",
            {"use_peft": True, "lora_target_parameters": ["experts.down"]},
            "lora_target_parameters",
            "no_counterpart: linear layers are adapted here",
            True,
        ),
        ("trl", {"load_in_4bit": True}, "load_in_4bit", "no_counterpart: no quantised weights here", True),
        ("trl", {"load_in_8bit": True}, "load_in_8bit", "no_counterpart: no quantised weights here", True),
        ("trl", {"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type", "no_counterpart: no quantised weights here", False),
        (
            "trl",
            {"use_peft": True, "lora_target_modules": r"model\.layers\.[0-3]\..*"},
            "lora_target_modules",
            "no_counterpart: a regular expression",
            True,
        ),
        ("trl", {"use_peft": False, "lora_r": 8}, "lora_r", "dead: does nothing without use_peft", False),
        ("trl", {"lora_target_modules": "all-linear"}, "lora_target_modules", "dead: does nothing without use_peft", False),
        (
            "trl",
            {"use_peft": True, "lora_r": 5000},
            "lora_r",
            "no_counterpart: refused here, left at its default: model.lora",
            True,
        ),
        ("vlm-r1", {"use_peft": True}, "use_peft", "mapped: VLM-R1 adapts every linear layer", True),
        (
            "vlm-r1",
            {"use_peft": True, "lora_target_modules": ["q_proj"]},
            "lora_target_modules",
            "dead: VLM-R1 overwrites",
            False,
        ),
        ("roll", {"lora_rank": 8}, "lora_rank", "dead: does nothing without actor_train.model_args.lora_target", False),
        ("roll", {"lora_target": "all", "lora_dropout": 0.05}, "lora_dropout", "no_counterpart: no dropout here", True),
        ("roll", {"lora_target": "linear_qkv"}, "lora_target", "mapped: nearest: Megatron adapts", True),
        ("roll", {"lora_target": "linear_proj"}, "lora_target", "mapped", False),
        ("roll", {"lora_target": ".*attn.*"}, "lora_target", "no_counterpart: a regular expression", True),
        (
            "roll",
            {"lora_target": "all", "additional_target": "embed"},
            "additional_target",
            "no_counterpart: the adapter",
            True,
        ),
        ("roll", {"adapter_name_or_path": "a/b"}, "adapter_name_or_path", "no_counterpart: set model.lora.init_from", True),
        ("roll", {"autocast_adapter_dtype": False}, "autocast_adapter_dtype", "no_counterpart: an adapter's weights", False),
    ],
)
def test_what_has_no_counterpart_or_differs(
    tmp_path: Path, system: str, settings: dict[str, Any], key: str, said: str, differs: bool
) -> None:
    found = entry_of(imported(tmp_path, system, settings), key)
    assert f"{found.fate}: {found.remark}".startswith(said)
    assert found.differs == differs


def test_defaults_of_trls_adapter_are_written_and_its_dropout_is_reported(tmp_path: Path) -> None:
    found = convert(tmp_path, {"num_generations": 4, "use_peft": True}, "trl")
    absent = {entry.key: entry for entry in found.entries if entry.is_default}
    assert absent["lora_alpha"].targets == {"model.lora.alpha": 32}
    assert absent["lora_target_modules"].targets == {"model.lora.target_modules": ["q_proj", "v_proj"]}
    assert (absent["lora_dropout"].fate, absent["lora_dropout"].differs) == ("no_counterpart", True)
    assert "lora_dropout = 0.05 (absent, its default): no dropout here" in " ".join(render(found).split())
