"""Settings by name, and the verdict on what a sweep's file claims."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats

from grpo_core.config import apply_overrides, validate_config
from grpo_core.errors import ConfigError
from grpo_core.sweep.arms import GROUP_SIZE, PROMPTS, Arm, grid
from grpo_core.sweep.display import MINUS
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.report.answer import answer
from grpo_core.sweep.report.files import render_page
from grpo_core.sweep.statistics.findings import find
from grpo_core.sweep.statistics.verdict import verdict
from tests.support.sweep_frames import run, swept
from tests.support.sweeps import stored_sweep

SETTINGS = {
    "GRPO": {"advantage.scale": "group_std", "loss.beta": 0.1},
    "Dr. GRPO": {"advantage.scale": "none", "loss.aggregation": "seq-mean-token-sum-norm", "loss.beta": 0.0},
}
CLAIM = {"says": "it is better", "source": "a paper", "effect": 0.02, "margin": 0.01, "limits": "everything"}

LEVEL = "some.key"
ASKED = {"knob": "setting", "first": "GRPO", "second": "Dr. GRPO"}


def sweep(**changes: Any) -> dict[str, Any]:
    return {"base": "sums_tiny_cpu", "settings": SETTINGS, "seeds": [0, 1], **changes}


def test_each_named_setting_changes_its_own_keys() -> None:
    plan = make_plan(sweep(axes={"optimizer.lr": [1e-4, 3e-4]}))
    assert list(grid(plan.sweep))[:2] == [{"setting": "GRPO", "optimizer.lr": lr} for lr in (1e-4, 3e-4)]
    found = [(c.advantage.scale, c.loss.aggregation, c.loss.beta, c.optimizer.lr) for c in plan.configs]
    assert found == [
        ("group_std", "seq-mean-token-mean", 0.1, 1e-4),
        ("group_std", "seq-mean-token-mean", 0.1, 3e-4),
        ("none", "seq-mean-token-sum-norm", 0.0, 1e-4),
        ("none", "seq-mean-token-sum-norm", 0.0, 3e-4),
    ]
    again = make_plan(plan.sweep.model_dump(mode="json"))  # what a sweep's folder keeps
    assert again.configs == plan.configs


def test_a_question_may_be_about_lists() -> None:
    axes, asked = {"optimizer.adam_betas": [[0.9, 0.9], [0.9, 0.99]]}, {"knob": "optimizer.adam_betas", "first": [0.9, 0.9]}
    plan = make_plan(sweep(settings={}, axes=axes, primary={**asked, "second": [0.9, 0.99]}))
    assert plan.sweep.primary is not None
    assert plan.sweep.primary.levels == ([0.9, 0.9], [0.9, 0.99])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"one": {"loss.beta": 1}}}, "axes.setting: only one value"),
        ({"settings": {"one": {"loss.bta": 1}, "two": {}}}, "loss.bta"),
        ({"axes": {"setting": ["GRPO", "other"]}}, "axes.setting: 'other' is not among settings"),
        ({"axes": {"setting": ["a", "b"]}, "settings": {}}, "axes.setting: 'a' is not among settings"),
        (
            {"axes": {"setting": {"low": 0, "high": 1}}, "sampler": "random", "trials": 3},
            "axes.setting: Range.* is not among settings",
        ),
        ({"settings": {"same": {"loss.beta": 1.0}, "twin": {}}}, "settings: same, twin are the same configuration"),
        ({"settings": {"": {"loss.beta": 2}, "b": {}}}, "settings..*one line of text without blanks around it, got ''"),
        ({"settings": {"a\nb": {"loss.beta": 2}, "b": {}}}, "settings..*one line of text without blanks around it"),
        ({"axes": {"loss.beta": [0.1, 1.0]}}, "axes.loss.beta: also in settings; give it once"),
        (
            {"settings": {"a": {"loss": {"clip_eps": 0.1}}, "b": {}}, "overrides": {"loss.beta": 1}},
            "settings.a.loss: also among",
        ),
        (
            {"axes": {GROUP_SIZE: [4, 8]}, "hold": "completions", "settings": {"a": {PROMPTS: 4}, "b": {PROMPTS: 8}}},
            f"{PROMPTS}: contradicts hold: completions, which decides it",
        ),
        ({"overrides": {"loss.beta": 1}}, "settings.GRPO.loss.beta: also among overrides"),
        ({"settings": {"a": {"training.seed": 1}, "b": {}}}, "settings: training.seed is set by the sweep itself"),
        ({"claim": CLAIM}, "claim: is about primary.first and primary.second"),
        ({"claim": {**CLAIM, "effect": -0.005}, "primary": ASKED}, r"claim\.effect: -0\.005 is within claim\.margin 0\.01"),
        ({"claim": CLAIM, "primary": ASKED, "sampler": "random", "trials": 3}, "claim: is about .* of a grid"),
        ({"axes": {"loss": [{"beta": 0}, {"beta": 1}]}, "settings": {}, "overrides": {"loss.clip_eps": 0.1}}, "loss.clip_eps"),
    ],
)
def test_what_contradicts_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(sweep(**changes))


@pytest.mark.parametrize("seed", range(20))
def test_a_verdict_is_that_of_two_one_sided_tests_and_of_the_t_test(seed: int) -> None:
    random = np.random.default_rng(seed)
    differences = random.normal(random.choice([-0.03, 0, 0.01, 0.03]), 0.012, size=8)
    found = verdict(list(differences), effect=0.02, margin=0.01)
    tests = [("greater", -0.01), ("less", 0.01)]
    sides = [stats.ttest_1samp(differences, at, alternative=side).pvalue for side, at in tests]
    test = stats.ttest_1samp(differences, 0)
    assert found.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.narrow == pytest.approx(tuple(test.confidence_interval(0.9)))
    wanted = "undecided" if test.pvalue >= 0.05 else "shown" if differences.mean() > 0 else "refuted"
    assert found.word == ("equivalent within the margin" if max(sides) < 0.05 else wanted)


def test_that_nothing_differs_is_refuted_by_a_difference_beyond_the_margin_alone() -> None:
    assert verdict([0.031, 0.028, 0.034], effect=0, margin=0.01).word == "refuted"
    assert verdict([0.012, 0.008, 0.015], effect=0, margin=0.01).word == "undecided"  # there is one, perhaps within it
    assert verdict([0.004], effect=0, margin=0.01).word == "undecided"


def test_the_same_difference_in_a_few_seeds_may_be_chance() -> None:
    eighth = 0.75 - 0.625  # one of eight prompts
    found = [verdict([eighth] * seeds, effect=0.02, margin=margin).word for seeds in (2, 5, 6) for margin in (0.01, 0.2)]
    assert found == ["undecided"] * 4 + ["shown", "equivalent within the margin"]
    assert verdict([0.0, 0.0], effect=0, margin=0.01).word == "undecided"


@pytest.mark.parametrize("levels", [(0.1, 4), ("k3", "exact"), ([0.9, 0.9], [0.9, 0.99])])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_card_gives_the_second_level_minus_the_first_as_the_t_test_does(levels: tuple[Any, Any], is_turned: bool) -> None:
    first, second = levels[::-1] if is_turned else levels
    scores = {0: (0.50, 0.52, 0.49, 0.55), 1: (0.55, 0.58, 0.55, 0.60)}
    rows = [run(arm, seed, (levels[arm],), scores[arm][seed], (LEVEL,)) for arm in scores for seed in range(4)]
    asked = {"knob": LEVEL, "first": first, "second": second}
    claim = {**CLAIM, "effect": 0.05, "margin": 0.02}
    runs = swept(pandas.DataFrame(rows), (LEVEL,), range(4), hold=None, primary=asked, claim=claim)
    (card, *_) = answer(find(runs)).cards
    sign = -1 if is_turned else 1
    test = stats.ttest_1samp([sign * (high - low) for low, high in zip(*scores.values(), strict=True)], 0)
    wide, narrow = (", ".join(f"{end:.3f}" for end in test.confidence_interval(level)) for level in (0.95, 0.9))
    assert (card.title, card.claim) == ("Claim (a paper): it is better", "refuted" if is_turned else "shown")
    assert card.detail == (
        f"{second} minus {first}: {MINUS if is_turned else '+'}0.055 accuracy over 4 seeds, "
        f"95 % [{wide}], 90 % [{narrow}]; claimed +0.050, margin 0.020"
    )


def test_the_report_says_in_what_settings_by_name_do_not_compare() -> None:
    named = {"a": {"rollout.temperature": 1.0, "data.seed": 1}, "b": {"rollout.temperature": 0.7, "data.seed": 2}}
    rows = [run(arm, seed, (level,), 0.5, ("setting",)) for arm, level in enumerate(named) for seed in range(3)]
    runs = swept(pandas.DataFrame(rows), (), hold=None, settings=named)
    (card,) = [card for card in answer(find(runs)).cards if card.title == "Not compared like with like"]
    assert card.claim == "settings have other prompts, also held-out ones"
    assert card.detail.startswith("runs differ in rollout.temperature: their KL figures")
    page = render_page(find(runs))
    assert "runs differ in rollout.temperature" in page.partition('id="sure"')[2]
    assert "<dd>b: rollout.temperature 0.7, data.seed 2</dd>" in page


def test_a_run_is_found_by_its_setting_and_has_a_name_that_fits(tmp_path: Path) -> None:
    name = "x" * 600
    stored = stored_sweep(tmp_path, settings={name: {"loss.beta": 0.2}, "b": {}}, axes={})
    keys = stored.run_overrides(Arm(number=0, values={"setting": name}), 0)
    assert keys["tracking.labels"] == {"sweep": "id-1", "arm": "000", "setting": name}
    named = {key: value for key, value in keys.items() if key.startswith("tracking.")}
    assert validate_config(apply_overrides(stored.plan.base, named)).tracking.run_name == "x" * 499 + "…"
