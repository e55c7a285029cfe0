"""The answer of a sweep: its headline, its cards and its commands, from frames made by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas
import pytest

from grpo_core.sweep.display import MINUS
from grpo_core.sweep.report.answer import Answer, Card, answer
from grpo_core.sweep.statistics.findings import find
from grpo_core.sweep.statistics.runs import SweepRuns
from tests.support.sweep_frames import BETA, BOUND, GROUP, SYNC, bounded, crossed, grid, run, swept, two_knobs

LR = "optimizer.lr"


def answered(sweep: SweepRuns) -> Answer:
    return answer(find(sweep))


def card(found: Answer, title: str) -> Card:
    (one,) = [one for one in found.cards if one.title == title]
    return one


def two_sizes(scores: dict[float, Sequence[float]], **keys: object) -> SweepRuns:
    """Return two betas at two group sizes, whose accuracy is a little higher with 8; every run took a minute."""
    seeds = range(len(scores[0.1]))
    rows = [
        run(2 * place + (size == 8), seed, (beta, size), of_beta[seed] + 0.001 * (size == 8) * seed, (BETA, GROUP))
        | {"objective_before": 0.48, "run_dir": f"runs/sw/runs/arm-{2 * place + (size == 8):03d}-seed-{seed}", "steps": 15}
        for place, (beta, of_beta) in enumerate(scores.items())
        for size in (4, 8)
        for seed in seeds
    ]
    return replace(swept(pandas.DataFrame(rows), (BETA, GROUP), seeds, **{"hold": "prompts", **keys}), folder="runs/sw")


def test_a_difference_that_stands_is_established_and_the_headline_names_the_best_setting() -> None:
    found = answered(two_sizes({0.1: (0.80, 0.85, 0.90, 0.95, 0.85), 4.0: (0.30, 0.36, 0.40, 0.44, 0.35)}))
    assert found.headline == "β 0.1 with G 8 did best: 87 % of held-out prompts right, 48 % before training."
    assert found.facts == "20 runs, 4 settings × 5 seeds, 15 steps each, 16 min 40 s in all"  # noqa: RUF001 - times
    beta = card(found, "β")
    assert (beta.claim, beta.chip) == ("0.1 over 4: +0.50 accuracy", "established")
    assert beta.detail.startswith("higher in all 5 seeds (95 % interval +0.4")
    assert card(found, "Not compared like with like").claim == "G 8 saw twice the completions of G 4 (hold: prompts)"
    assert found.next[-1].command == "grpo export runs/sw/runs/arm-001-seed-3"


def test_a_difference_that_only_its_own_interval_shows_is_a_hint_with_its_seeds() -> None:
    found = answered(two_sizes({0.1: (0.8, 0.9), 4.0: (0.5, 0.59)}))
    beta = card(found, "β")
    assert (beta.claim, beta.chip) == ("0.1 over 4: +0.31 accuracy", "hint")
    assert beta.detail == "higher in both seeds (+0.30, +0.31)"
    (sure, use) = found.next
    assert (sure.aim, sure.command) == ("To be sure", "grpo sweep --extend runs/sw seeds=[0,1,2,3]")
    assert sure.cost == "about 4 minutes"  # 4 settings, 2 seeds, a minute each, two at a time
    assert (use.aim, use.command) == ("To use the best", "grpo export runs/sw/runs/arm-001-seed-1")
    assert found.lines[:2] == (found.headline, "β: 0.1 over 4: +0.31 accuracy; higher in both seeds (+0.30, +0.31) [hint]")
    assert found.lines[-2] == "To be sure: grpo sweep --extend runs/sw seeds=[0,1,2,3] (about 4 minutes)"


def test_where_nothing_is_shown_the_card_says_in_how_many_seeds_it_is_ahead() -> None:
    beta = card(answered(two_sizes({0.1: (0.8, 0.4, 0.6), 4.0: (0.5, 0.6, 0.5)})), "β")
    assert (beta.chip, beta.detail) == ("no difference shown yet", f"higher in 2 of 3 seeds (+0.30, {MINUS}0.20, +0.10)")
    equal = answered(two_sizes({0.1: (0.75, 0.25), 4.0: (0.25, 0.75)}))
    same = card(equal, "β")
    assert (same.claim, same.chip) == ("0.1 and 4: the same accuracy on average", "no difference shown yet")
    assert same.detail == f"0.1 minus 4 by seed: +0.50, {MINUS}0.50"
    assert equal.headline.startswith("β 0.1 with G 8, and equally β 4 with G 8, did best so far: 50 % of held-out ")


def test_an_interaction_that_stands_replaces_the_cards_of_its_two_parameters() -> None:
    found = answered(two_knobs(crossed, (0, 1, 2, 3)))
    both = card(found, "β and sync period")
    assert both.claim == "β matters more where the reference never moves than with sync period 5"
    assert both.chip == "established"
    assert both.detail == "0.1 over 4, accuracy: +0.18 where the reference never moves, +0.0080 with sync period 5"
    assert not {"β", "Sync period"} & {one.title for one in found.cards}


@pytest.mark.parametrize(
    ("weak", "claim"),
    [
        ((0.01, -0.02, 0.02, -0.01), "β matters only where the reference never moves"),
        ((0.05, 0.051, 0.05, 0.049), "β matters more where the reference never moves than with sync period 5"),
        ((-0.05, -0.051, -0.05, -0.049), "β has opposite effects where the reference never moves and with sync period 5"),
    ],
)
def test_where_a_parameter_matters(weak: Sequence[float], claim: str) -> None:
    def objective(beta: float, sync: int | None, seed: int) -> float:
        return 0.4 + 0.01 * seed + (beta == 0.1) * (weak[seed] if sync == 5 else 0.4 + 0.001 * (seed % 2))

    assert card(answered(two_knobs(objective, (0, 1, 2, 3))), "β and sync period").claim == claim


def test_one_seed_is_no_ranking() -> None:
    found = answered(swept(grid(effect=-0.2, seeds=(0,)), seeds=(0,)))
    assert found.headline.startswith("β 0.01 with G ")
    assert " was highest in the one seed: " in found.headline
    assert {one.chip for one in found.cards if one.section == "sure"} == {"no difference shown yet"}
    assert card(found, "β").detail.startswith("higher in the one seed (+0.")


def test_runs_that_are_missing_or_failed_are_named_with_the_commands_for_them() -> None:
    frame = grid(effect=-0.2)
    frame.loc[0, ["status", "cause"]] = ["failed", "no memory"]
    frame.loc[1, "status"] = "interrupted"
    found = answered(replace(swept(frame), folder="runs/sw"))
    assert found.headline == "Not finished: 2 of 3 seeds complete, 1 run to come; no setting is called best before that."
    assert {one.chip for one in found.cards} == {"no difference shown yet", None}
    assert card(found, "Not in the statistics").claim == "2 of 24 runs: 1 failed, 1 interrupted"
    commands = [one.command for one in found.next]
    assert commands == ["grpo sweep --resume runs/sw", "grpo sweep --resume runs/sw --retry-failed"]
    nothing = answered(swept(grid().assign(status="failed", objective=math.nan)))
    assert nothing.headline == "Nothing to compare yet: no run is complete with a known held-out accuracy."


def test_a_metric_that_is_no_share_has_its_own_name_and_no_percent() -> None:
    sweep = two_sizes({0.1: (2.5, 2.6), 4.0: (1.25, 1.35)}, objective={"metric": "reward/mean"})
    found = answered(replace(sweep, runs=sweep.runs.drop(columns="objective_before")))
    assert found.headline == "β 0.1 with G 8 did best so far: reward 2.550."
    assert card(found, "β").claim == "0.1 over 4: +1.2 reward"
    penalty = answered(swept(grid(), objective={"kl_penalty": 0.5}))
    assert "held-out accuracy - 0.5 x kl/init/seq 0.6" in penalty.headline


def test_a_bound_that_settings_break_is_a_card_and_part_of_the_headline() -> None:
    found = answered(swept(bounded(), **BOUND))
    assert " did best, of the settings that keep the bound: " in found.headline
    bound = card(found, "kl/init/seq at most 10")
    assert bound.claim == "5 of 8 settings keep it"
    assert bound.detail.startswith("over it, so never the best: β 0.01 · G 4 · sync 10, ")
    none = answered(swept(bounded().assign(drift=99.0), **BOUND))
    assert none.headline == "No setting keeps kl/init/seq at or below 10."


def test_a_search_without_matched_settings_tells_of_associations() -> None:
    rows = [run(arm, seed, (0.001 * (arm + 1),), 0.5 + 0.03 * arm + 0.01 * seed, (LR,)) for arm in range(9) for seed in (0, 1)]
    found = answered(swept(pandas.DataFrame(rows), (LR,), (0, 1), sampler="tpe", trials=9, hold=None))
    assert found.headline.startswith("lr 0.009 did best: ")
    (lr,) = [one for one in found.cards if one.title == LR]
    assert lr.claim.startswith("larger values go with a higher accuracy (rank correlation +1.00 over 9 settings, Holm p")
    assert (lr.detail, lr.chip) == (
        "an association, not matched settings: the sampler drew 9 values of it, more than 8",
        "established",
    )


def test_the_drift_card_says_which_level_stays_closer() -> None:
    frame = grid()
    frame["kl_init_seq"] = 5 - 3 * (frame[BETA] == 0.5) + 0.01 * frame["seed"] * frame[BETA]
    drift = card(answered(swept(frame)), "Drift from the initial policy")
    assert drift.claim == f"β 0.5 under 0.01: {MINUS}3.0 nats a completion"
    assert drift.detail == f"lower in all 3 seeds ({MINUS}3.0, {MINUS}3.0, {MINUS}3.0)"
    warm = swept(frame.rename(columns={SYNC: "rollout.temperature"}), (BETA, GROUP, "rollout.temperature"))
    assert "their KL figures" in card(answered(warm), "Not compared like with like").detail
