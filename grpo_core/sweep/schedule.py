"""Which run is next: pure functions of what has been chosen, what has ended and what is under way."""

from collections.abc import Collection, Iterator, Mapping

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.file_models import Outcome
from grpo_core.sweep.schema import SweepConfig

Key = tuple[int, int]
"""(arm, seed)."""


def next_run(
    sweep: SweepConfig, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome], under_way: Collection[Key]
) -> Key | None:
    """Return the run to begin next; None where every run of the arms chosen so far has ended or is under way.

    A grid goes seed by seed, so that a budget that ends early leaves whole blocks in which every arm has the same seeds; a
    sampler, which learns from finished arms, goes arm by arm.
    """
    return next((key for key in runs_in_order(sweep, arms, outcomes) if key not in outcomes and key not in under_way), None)


def runs_in_order(sweep: SweepConfig, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> Iterator[Key]:
    """Yield every run of the arms chosen so far that is wanted: an arm that was pruned once has no further runs."""
    wanted = [number for number in sorted(arms) if original_of(arms[number], arms) == number]
    pruned = {outcome.arm for outcome in outcomes.values() if outcome.status == "pruned"}
    keys = [(number, seed) for number in wanted for seed in sweep.seeds if number not in pruned or (number, seed) in outcomes]
    yield from sorted(keys, key=lambda key: sweep.seeds.index(key[1])) if sweep.sampler == "grid" else keys


def original_of(arm: Arm, arms: Mapping[int, Arm]) -> int:
    """Return the number of the first arm with the same values: a sampler may suggest an arm twice, which runs once."""
    return min(number for number, other in arms.items() if dict(other.values) == dict(arm.values))


def total_runs(num_arms: int, sweep: SweepConfig, arms: Mapping[int, Arm]) -> int:
    """Return how many runs the sweep has, as far as its arms are chosen: one that was suggested again has none of its own."""
    repeated = sum(original_of(arm, arms) != number for number, arm in arms.items())
    return (num_arms - repeated) * len(sweep.seeds)


def arm_has_ended(arm: int, sweep: SweepConfig, outcomes: Mapping[Key, Outcome]) -> bool:
    """Return whether all of an arm's runs have ended, or it was pruned and none of them is to come."""
    of_arm = [outcome for outcome in outcomes.values() if outcome.arm == arm]
    return len(of_arm) == len(sweep.seeds) or any(outcome.status == "pruned" for outcome in of_arm)
