"""What the harness says: a line a kill, a table of phases, which required counts are missing, and the same as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tests.torture.phases import Phase
from tests.torture.runs import Death, Outcome

REQUIRED = (Phase.ROLLOUT, Phase.UPDATE, Phase.WRITE, Phase.RENAME, Phase.SYNC)
REQUIRED_KILLS = 2
"""In each of these phases."""
REQUIRED_RUNS = 20


def deaths_of(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Death]]:
    """Return every kill with its run."""
    return [(outcome, death) for outcome in outcomes for death in outcome.deaths]


def counts(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """Return how often happened what has to happen, and how often it has to."""
    deaths = deaths_of(outcomes)
    return {f"kills in {phase}": (_kills(outcomes, phase), REQUIRED_KILLS) for phase in REQUIRED} | {
        "runs": (len(outcomes), REQUIRED_RUNS),
        "kills at mu=2": (sum(outcome.mu == 2 for outcome, _ in deaths), REQUIRED_KILLS),
        "kills while a checkpoint was written beside a step": (sum(_is_beside(death) for _, death in deaths), 2),
        "kills that left a torn line": (sum(death.remains.torn_bytes > 0 for _, death in deaths), 1),
        "kills that left a .partial folder": (sum(death.remains.partial is not None for _, death in deaths), 1),
        "kills between a resume and its first checkpoint": (sum(death.is_again for _, death in deaths), 1),
        "damaged checkpoints": (sum(death.damage is not None for _, death in deaths), 1),
    }


def missing_counts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return in words which of them were not reached."""
    pairs = counts(outcomes).items()
    return [f"{name}: {count}, at least {required}" for name, (count, required) in pairs if count < required]


def kill_line(outcome: Outcome, death: Death) -> str:
    """Return one line: where a run was killed, and what that left."""
    where = death.landing
    place = f"{where.phase} of step {where.step}" if where.step else str(where.phase)
    detail = f" ({where.detail or f'aimed {death.aim}'})" + (f" beside {where.beside}" if where.beside else "")
    damage = f"; then {death.damage}" if death.damage else ""
    return f"{_head(outcome)} life {death.life}: killed in {place}{detail}; left: {death.remains}{damage}"


def end_line(outcome: Outcome) -> str:
    """Return one line: whether a run is its witness."""
    leftovers = f"; left over at the end: {', '.join(outcome.leftovers)}" if outcome.leftovers else ""
    if outcome.is_equal:
        return f"{_head(outcome)} done in {outcome.lives} lives: equal{leftovers}"
    more = f" (and {len(outcome.differences) - 1} more)" if len(outcome.differences) > 1 else ""
    return f"{_head(outcome)} done in {outcome.lives} lives: DIFFERENT: {outcome.differences[0]}{more}{leftovers}"


def phase_table(outcomes: Sequence[Outcome]) -> str:
    """Return the kills of each phase, how many of them were at mu=2, and what else is counted."""
    lines = [f"{'phase':12}{'kills':>6}{'at mu=2':>9}", "-" * 27]
    lines += [f"{phase:12}{_kills(outcomes, phase):6}{_kills(outcomes, phase, mu=2):9}" for phase in Phase]
    every = deaths_of(outcomes)
    lines.append(f"{'all':12}{len(every):6}{sum(outcome.mu == 2 for outcome, _ in every):9}")
    others = {name: count for name, (count, _) in counts(outcomes).items() if not name.startswith("kills in")}
    return "\n".join([*lines, "", *(f"{name}: {count}" for name, count in others.items())])


def as_json(outcomes: Sequence[Outcome], undone: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the whole report as plain values."""
    return {
        "seconds": round(seconds, 1),
        "runs": [asdict(outcome) | {"equal": outcome.is_equal} for outcome in outcomes],
        "kills": {phase.value: _kills(outcomes, phase) for phase in Phase},
        "kills_at_mu_2": {phase.value: _kills(outcomes, phase, mu=2) for phase in Phase},
        "equal": sum(outcome.is_equal for outcome in outcomes),
        "not_done": list(undone),
        "missing": missing_counts(outcomes),
    }


def _is_beside(death: Death) -> bool:
    """Tell whether one thread was writing a checkpoint while the other was in a phase of the next step."""
    return death.landing.beside is not None


def _kills(outcomes: Iterable[Outcome], phase: Phase, mu: int | None = None) -> int:
    return sum(death.landing.phase is phase and mu in (None, outcome.mu) for outcome, death in deaths_of(outcomes))


def _head(outcome: Outcome) -> str:
    return f"run {outcome.plan.number:2} {outcome.plan.variant:12}"
