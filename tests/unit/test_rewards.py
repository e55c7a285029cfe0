"""Reward functions: what each gives, how they are found, and what happens when one breaks its signature."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RewardConfig
from grpo_core.errors import RewardError
from grpo_core.rewards.base import Reward, load_rewards, score
from grpo_core.rewards.dry_run import CONSTANTS
from grpo_core.rewards.simple import exact_answer, format_reward, length_reward, math_answer
from grpo_core.types import Prompt

CHAT = ({"role": "user", "content": "3 + 4 ="},)


def prompt(content: Any = "3 + 4 =", **columns: Any) -> Prompt:
    return Prompt(id=0, content=content, text=f"<{content}>", token_ids=(1,), columns=columns)


def made_of(function: Any, weight: float = 1.0, name: str = "mine", **args: Any) -> Reward:
    return Reward(fn=f"here:{name}", name=name, weight=weight, args=args, function=function)


def refusal(function: Any, texts: tuple[str, ...] = ("good", "bad")) -> str:
    """Return the message with which a batch is refused."""
    with pytest.raises(RewardError) as caught:
        score([made_of(function)], [prompt() for _ in texts], texts)
    return str(caught.value)


# The built-in functions


def test_simple_rewards_by_hand() -> None:
    answers = ["7", " 7\n", "7.0", "= 7", ""]
    assert exact_answer([""] * 5, answers, answer=["7", "7 ", 7, "7", "7"]) == [1, 1, 0, 0, 0]
    formats = [
        "<think>a\nb</think>\n<answer>7</answer>",
        " <think></think><answer></answer> ",
        "<think>a</think><answer>7</answer> and more",
        "<answer>7</answer>",
    ]
    assert format_reward([""] * 4, formats) == [1, 1, 0, 0]
    assert format_reward([""] * 3, ["42", "-42", "42."], pattern=r"-?\d+") == [1, 1, 0]
    lengths = ["", "x" * 8, "x" * 10, "x" * 12, "x" * 16, "x" * 40]
    assert length_reward([""] * 6, lengths, max_characters=8) == [1, 1, 0.75, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("gold", "text", "value"),
    [
        ("0.5", "1/2", 1),
        ("1/2", r"The answer is \boxed{\frac{1}{2}}.", 1),
        ("1/2", "50%", 1),
        ("6", "1 + 5 = 6", 1),
        ("6", "1 + 5", 1),
        ("72", "She sold 72 clips.", 1),
        ("1000", "1,000", 1),
        ("-3", "-3", 1),
        ("3", "-3", 0),
        ("6", "", 0),
        ("6", "six", 0),
        ("4", r"\boxed{4} or so", 1),
        ("3", r"\boxed{4}, not 3", 0),
        ("5", "#### 5", 1),
        (0.5, "$0.5$", 1),
        ("", "5", None),
        ("$$", "5", None),
    ],
)
def test_math_answer_is_mathematical_equality_with_the_last_answer(gold: Any, text: str, value: float | None) -> None:
    assert math_answer([""], [text], answer=[gold]) == [value]


def test_math_answer_does_not_run_what_a_model_writes(tmp_path: Path) -> None:
    target = tmp_path / "created"
    attack = f"__import__('os').system('touch {target}')"
    texts = [attack, f"${attack}$", rf"\boxed{{{attack}}}", f"{attack} = 2", f"exec({attack!r})", rf"\[{attack}\]"]
    assert len(math_answer([""] * len(texts), texts, answer=["2"] * len(texts))) == len(texts)
    math_answer([""], ["2"], answer=[attack])
    assert not target.exists()


@pytest.mark.parametrize("gold", ["72", "-3", "1,200", "3.5", "1/2", "5%", "$18", r"\frac{3}{4}", "x+1", "10:30", "[1,2]"])
def test_no_constant_is_the_answer_of_a_verifier(gold: str) -> None:
    texts = [
        *CONSTANTS,
        r"\boxed{}",
        "$$",
        r"\boxed{\infty}",
        r"\boxed{\frac{0}{0}}",
        "9" * 4000,
        r"\boxed{" * 500,
        "1 " * 2000,
    ]
    for verifier in (math_answer, exact_answer):
        assert verifier([""] * len(texts), texts, answer=[gold] * len(texts)) == [0.0] * len(texts)


def test_the_reasoning_gym_reward_is_the_tasks_own_score() -> None:
    row = {"source_dataset": "chain_sum"}
    (reward,) = load_rewards([RewardConfig(fn="reasoning_gym")])
    right, *wrong = score([reward], [prompt(CHAT, answer="7", metadata=row)] * 3, [" 7\n", "8", "x"]).total
    assert right == 1 > max(wrong)


# Finding them


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        ("no_such_package:f", "cannot be imported"),
        ("math:no_such_function", "cannot be imported"),
        ("math:pi", "is a float, not a function"),
    ],
)
def test_what_is_no_function_is_refused_by_its_name(fn: str, said: str) -> None:
    with pytest.raises(RewardError) as caught:
        load_rewards([RewardConfig(fn=fn)])
    assert fn in str(caught.value)
    assert said in str(caught.value)


# Calling them


def test_totals_are_weighted_sums_and_the_breakdown_is_unweighted() -> None:
    first = made_of(lambda completions, **_: [1.0, 0.5], weight=2.0, name="first")
    second = made_of(lambda completions, **_: [3, -1], weight=-1.0, name="second")
    scored = score([first, second], [prompt()] * 2, ["a", "b"])
    assert scored.total == (2 - 3, 1 + 1)
    assert scored.breakdown == {"first": (1.0, 0.5), "second": (3.0, -1.0)}


def test_an_unscorable_completion_leaves_the_total_and_is_nan_when_nothing_scores_it() -> None:
    first = made_of(lambda completions, **_: [None, None, 1.0], name="first")
    second = made_of(lambda completions, **_: [2.0, None, 2.0], name="second")
    scored = score([first, second], [prompt()] * 3, ["a", "b", "c"])
    assert scored.total == pytest.approx((2, math.nan, 3), nan_ok=True)
    assert scored.breakdown["first"] == (None, None, 1.0)


def test_a_function_gets_columns_by_name_and_its_arguments() -> None:
    seen: dict[str, Any] = {}

    def mine(prompts: list[Any], completions: list[Any], **rest: Any) -> list[float | None]:
        seen.update(rest, prompts=prompts, completions=completions)
        return [0.0] * len(completions)

    score([made_of(mine, bound=3)], [prompt(answer="7"), prompt(answer="8", level=2)], ["a", "b"])
    assert seen == {
        "prompts": ["3 + 4 =", "3 + 4 ="],
        "completions": ["a", "b"],
        "answer": ["7", "8"],
        "level": [None, 2],
        "bound": 3,
    }


def test_what_a_function_changes_is_its_own() -> None:
    seen: list[str] = []

    def strikes(prompts: list[Any], completions: list[Any], nums: list[list[int]], facts: Any, marks: Any, **_: Any) -> Any:
        seen.append(repr([prompts, completions, nums, facts, marks]))
        values: list[float | None] = []
        for prompt, completion, left, fact in zip(prompts, completions, nums, facts, strict=True):
            values.append(float(len(left) + len(fact["inner"]["of"]) + len(marks) + len(prompt) + len(prompt[0]["content"])))
            left.clear()
            fact["inner"]["of"].append("more")
            prompt[0]["content"] += "!"
            prompt.append(completion.pop())
        marks.append(1)
        return values

    row = prompt(CHAT, nums=[3, 2, 1], facts={"inner": {"of": []}})
    before, marks = repr(row), [0]
    rewards = [made_of(strikes, name=name, marks=marks) for name in ("one", "two")]
    first = score(rewards, [row] * 4, ["a", "b", "c", "d"])
    second = score(rewards, [row] * 4, ["a", "b", "c", "d"])
    assert first.breakdown == second.breakdown == {"one": (12.0,) * 4, "two": (12.0,) * 4}
    assert len(set(seen)) == 1
    assert (repr(row), marks) == (before, [0])


@pytest.mark.parametrize("content", ["3 + 4 =", CHAT], ids=["plain", "conversation"])
def test_built_in_functions_read_both_kinds(content: Any) -> None:
    rewards = load_rewards(
        [
            RewardConfig(fn="exact_answer"),
            RewardConfig(fn="math_answer"),
            RewardConfig(fn="format", args={"pattern": "7"}),
            RewardConfig(fn="length", args={"max_characters": 1}),
        ]
    )
    assert score(rewards, [prompt(content, answer="7")], ["7"]).total == (4.0,)


def fails_on_bad(completions: list[str], **_: Any) -> list[float | None]:
    if "bad" in completions:
        raise KeyError("the cause")
    return [1.0] * len(completions)


def test_a_function_that_raises_is_named_with_the_sample_and_the_cause() -> None:
    message = refusal(fails_on_bad)
    assert "reward here:mine raised KeyError: 'the cause'" in message
    assert "sample 1: prompt '<3 + 4 =>', completion 'bad'" in message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0, 2.0, 3.0], "returned 3 values for 2 completions"),
        (1.0, "returned a float; expected a list of 2 numbers"),
        ("ab", "returned a str; expected a list of 2 numbers"),
        (None, "returned a NoneType; expected a list of 2 numbers"),
        ([1.0, "2"], "returned '2' (str); expected a finite number or None; sample 1"),
        ([math.nan, 1.0], "returned nan (float); expected a finite number or None; sample 0"),
        ([1.0, math.inf], "returned inf (float)"),
    ],
)
def test_a_function_that_returns_the_wrong_thing_is_refused(values: Any, said: str) -> None:
    message = refusal(lambda **_: values)
    assert message.startswith("reward here:mine ")
    assert said in message


# TRL's own functions run unchanged


def test_trls_accuracy_reward_runs_unchanged() -> None:
    (reward,) = load_rewards([RewardConfig(fn="trl.rewards:accuracy_reward")])
    prompts = [prompt(CHAT, solution=r"\frac{1}{3}")] * 2 + [prompt(CHAT, solution="")]
    scored = score([reward], prompts, [r"\boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}", "7"])
    assert scored.breakdown == {"accuracy_reward": (1.0, 0.0, None)}


def test_a_function_that_takes_messages_for_text_is_told_what_it_gets() -> None:
    def short(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        return [float(len(completion.strip())) for completion in completions]

    with pytest.raises(RewardError) as caught:
        score([made_of(short)], [prompt(CHAT)], ["7"])
    assert "'list' object has no attribute 'strip'" in str(caught.value)
    assert "data.chat_template: true, a reward function gets each prompt and completion as a list of" in str(caught.value)
    with pytest.raises(RewardError) as caught:
        score([made_of(lambda completions, **_: completions[0]["content"])], [prompt()], ["7"])
    assert "chat_template" not in str(caught.value)  # it got text


def test_functions_beside_the_command_are_found_behind_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    for name in ("rewards_of_this_test", "colorsys"):  # the second is the standard library's
        (tmp_path / f"{name}.py").write_text("def short(completions, **columns):\n    return [1.0] * len(completions)\n")
    (reward,) = load_rewards([RewardConfig(fn="rewards_of_this_test:short")])
    assert score([reward], [prompt()], ["x"]).total == (1.0,)
    with pytest.raises(RewardError, match="colorsys:short cannot be imported"):
        load_rewards([RewardConfig(fn="colorsys:short")])
