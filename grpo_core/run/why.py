"""When a run went wrong, and which figure moved first: what `grpo why` prints.

A figure leaves its band at the first of `LASTS` steps in a row that lie outside, on one side, of

    median +- max(WIDTH x 1.4826 MAD, least, share x |median|)

of its own earlier values: the `RECENT` before that step, or the first third of all before it; of each at least `FEWEST`. A
straight line stays inside for ever (it needs 6.75), and so does noise; what bends or jumps does not. A KL, which grows with the
square of the distance, is taken by its root. Reward and accuracy, which should rise, are measured by how far they are below
their best so far, a median of five, and leave it downwards alone. Beyond its `alarm` of METRICS.md for as many steps a figure
is outside without a history: a run that is lost at once has none.

Adding a figure: a row of `WATCHED`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grpo_core.config import RunConfig
from grpo_core.config.names import reward_name
from grpo_core.metrics import find_metric
from grpo_core.run.black_box import read_tokens
from grpo_core.run.curves import Curve, Floats, Run, read_curve
from grpo_core.run.journal import Record
from grpo_core.run.samples import kept_steps, read_groups
from grpo_core.run.summary import raised_alerts

WIDTH, OF_OUTCOME, RECENT, FEWEST, LASTS, BEST_OF = 10.0, 6.0, 20, 6, 3, 5
NORMAL = 1.4826
"""Standard deviations in a median absolute deviation of normal noise, inverted."""
SHOWN_GROUPS, SHOWN_COMPLETIONS, SHOWN_ALERTS, AROUND = 3, 2, 10, 40
"""Of the last: characters of the completion on either side of a token, and of its prompt's end."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A figure, what it is called, the side on which it is outside, and its smallest change that counts.

    That is `least`, or `share` of its median. Of an `is_outcome` the fall below its best so far is watched, of an `is_square`
    the root.
    """

    key: str
    name: str
    side: Literal["above", "below", "either"]
    least: float = 0.0
    share: float = 0.1
    is_outcome: bool = False
    is_square: bool = False


WATCHED = (
    Watched(
        key="eval/heldout/greedy_accuracy", name="accuracy on all held-out prompts", side="below", least=0.05, is_outcome=True
    ),
    Watched(key="eval/heldout_sample/greedy_accuracy", name="held-out accuracy", side="below", least=0.05, is_outcome=True),
    Watched(key="reward/mean", name="reward", side="below", is_outcome=True),
    Watched(key="kl/init/drift", name="KL to the initial policy", side="above", least=0.5, is_square=True),
    Watched(key="policy/entropy", name="entropy", side="either", share=0.2),
    Watched(key="completion/tokens/mean", name="completion length", side="either", share=0.2),
    Watched(key="completion/truncated_frac", name="truncated completions", side="above", least=0.1),
    Watched(key="optim/grad_norm", name="gradient norm", side="above", share=1.0),
    Watched(key="policy/clip_frac/low", name="tokens held by the lower clip", side="above", least=0.05),
    Watched(key="policy/clip_frac/high", name="tokens held by the upper clip", side="above", least=0.05),
    Watched(key="optim/lr", name="learning rate", side="above", share=0.5),  # a schedule lowers it
    Watched(key="loss/beta", name="beta", side="either", share=0.5),
)
"""Of figures that leave at one step, the first here moved first."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A figure that left its bounds at `step`, and how, in words."""

    figure: Watched
    step: int
    text: str


def watched_curves(records: Sequence[Record], config: RunConfig) -> list[tuple[Watched, Curve]]:
    """Return what is watched of a run and was measured: of several rewards, also that of the verifier."""
    verifier = config.evaluation.verifier or config.rewards[0].fn
    judged = Watched(key=f"reward/{reward_name(verifier)}/mean", name=f"reward {verifier}", side="below", is_outcome=True)
    figures = [judged, *WATCHED] if len(config.rewards) > 1 else WATCHED
    return [(figure, curve) for figure in figures if len(curve := read_curve(records, figure.key))]


def first_moves(curves: Sequence[tuple[Watched, Curve]]) -> list[Move]:
    """Return the figures that left their bands, in the order in which they did."""
    moves = [move for figure, curve in curves if (move := first_move(figure, curve.steps.tolist(), curve.values)) is not None]
    return sorted(moves, key=lambda move: move.step)


def first_move(figure: Watched, steps: Sequence[int], values: Floats) -> Move | None:
    """Return where a figure leaves its band; None where it does not.

    >>> first_move(WATCHED[5], range(1, 16), np.array([4.0, 4.2] * 6 + [9.0, 9.5, 9.1])).text
    'step 13: completion length 9, above 5.58 (band 2.62 to 5.58 of steps 1 to 12)'
    """
    metric = find_metric(figure.key)
    alarm = None if metric is None else metric.alarm
    scaled = np.sqrt(np.maximum(values, 0)) if figure.is_square else values
    best = _best_so_far(values) if figure.is_outcome else np.zeros(len(values))
    watched = scaled - best

    def move(low: float, high: float, of: str) -> Move:
        value = float(values[index])
        outside = f"below {low:.3g}" if value < low else f"above {high:.3g}"
        what = "is no number" if math.isnan(value) else f"{value:.3g}, {outside}"
        return Move(figure=figure, step=steps[index], text=f"step {steps[index]}: {figure.name} {what} ({of})")

    for index in range(len(values)):
        tail = watched[index : index + LASTS]
        if len(tail) < 2 and math.isfinite(tail[0]):  # one step at the end says nothing
            continue
        for first, last in ((max(0, index - RECENT), index), (0, index // 3)):
            band = _band(figure, scaled[first:last], watched[first:last])
            if band is not None and _is_outside(figure, tail, *band):
                low, high = (max(end, 0) ** 2 if figure.is_square else end + float(best[index]) for end in band)
                return move(low, high, f"band {low:.3g} to {high:.3g} of steps {steps[first]} to {steps[last - 1]}")
        low, high = (alarm or 0, math.inf) if figure.side == "either" else (-math.inf, alarm or 0)
        if alarm is not None and len(tail) == LASTS and _is_outside(figure, values[index : index + LASTS], low, high):
            return move(low, high, "its alarm")
    return None


def _best_so_far(values: Floats) -> Floats:
    """Return, at each place, the largest median of up to `BEST_OF` values in a row before it; of the first, itself."""
    known = np.where(np.isfinite(values), values, -math.inf)
    medians = [np.median(known[max(0, end - BEST_OF) : end]) for end in range(1, len(known))]
    return np.maximum.accumulate(np.array([*known[:1], *medians]))


def _band(figure: Watched, values: Floats, watched: Floats) -> tuple[float, float] | None:
    base = watched[np.isfinite(watched)]
    if len(base) < FEWEST:
        return None
    middle, level = _median(base), abs(_median(values[~np.isnan(values)]))
    factor = NORMAL * (OF_OUTCOME if figure.is_outcome else WIDTH)
    width = max(factor * _median(np.abs(base - middle)), figure.least, figure.share * level)
    return middle - width, middle + width


def _median(values: Floats) -> float:
    """Return the median of a few values, none of them NaN, ten times as fast as `numpy.median`."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _is_outside(figure: Watched, tail: Floats, low: float, high: float) -> bool:
    """Return whether values lie outside on one side, or are no numbers."""
    sides = {"above": [tail > high], "below": [tail < low], "either": [tail > high, tail < low]}[figure.side]
    return any(bool(np.all(side | np.isnan(tail))) for side in sides)


def explain(run: Run) -> Iterator[str]:
    """Yield what `grpo why` prints of a run, line by line: any text of a model, its data or a reward is in them as it is."""
    curves = watched_curves(run.records, run.config)
    moves = first_moves(curves)
    yield f"{run.path}: {run.state}, step {run.last_step} of {run.config.training.steps}"
    if moves:
        names = [move.figure.name for move in moves if move.step == moves[0].step]
        yield f"it began at step {moves[0].step}: {', '.join(names)} moved first"
        yield from (f"  {move.text}" for move in moves)
    else:
        yield "no figure left its own earlier band (docs/collapse.md has the rule)"
    for figure, curve in curves:
        if figure.is_outcome:
            values = (curve.values[0], max(filter(math.isfinite, curve.values), default=math.nan), curve.values[-1])
            first, best, last = (f"{value:.3g}" for value in values)
            yield f"{figure.name}: {first} at step {curve.steps[0]}, at best {best}, {last} at step {curve.steps[-1]}"
    yield from _noise(run)
    if alerts := raised_alerts(run.dir, run.records):
        yield f"alerts, the first {SHOWN_ALERTS} of {len(alerts)}" if len(alerts) > SHOWN_ALERTS else "alerts"
        yield from (f"  {alert.text}" for alert in alerts[:SHOWN_ALERTS])
    if moves:
        yield from _tokens(run, moves[0].step)
        yield from _completions(run, moves[0].step)


def _noise(run: Run) -> Iterator[str]:
    """Yield the batch that the gradient noise scale suggests, its parts averaged over the steps that have measured them."""
    variance, signal = (read_curve(run.records, key).values for key in ("optim/grad_variance", "optim/grad_signal"))
    if len(signal):
        size = run.config.rollout.num_prompts_per_step
        scale = f"{variance.mean() / signal.mean():.3g} prompts" if signal.mean() > 0 else "too large to be measured"
        yield f"gradient noise scale, mean of {len(signal)} step(s): {scale}; a step has {size} (docs/collapse.md)"


def _tokens(run: Run, began: int) -> Iterator[str]:
    """Yield the worst tokens of the first kept step since it began, else of the last."""
    kept = read_tokens(run.dir, run.last_step)
    step = min((one for one in kept if one >= began), default=max(kept, default=0))
    if step:
        yield f"worst tokens of step {step} (blackbox/ has those of {len(kept)} steps)"
    for one in kept.get(step, ()):
        around = f"{one['prompt'][-AROUND:]} | {one['before'][-AROUND:]} [{one['token']}] {one['after'][:AROUND]}"
        yield f"  {one['kind']} {float(one['value']):.3g}   {around}   r {float(one['reward']):.3g}"


def _completions(run: Run, began: int) -> Iterator[str]:
    """Yield completions of the last kept step before it began, and of the run's last."""
    kept = [step for step in kept_steps(run.dir) if step <= run.last_step]
    before = max((step for step in kept if step < began), default=None)
    for step in dict.fromkeys(step for step in (before, *kept[-1:]) if step is not None):
        yield f"completions of step {step}, {'before' if step < began else 'after'}"
        for group in read_groups(run.dir, step)[:SHOWN_GROUPS]:
            yield "  " + "   ".join(filter(None, [group.end, group.answer and f"gold {group.answer}", group.verdict]))
            yield from (f"    {one.line}   r {one.reward:.3g}" for one in group.completions[:SHOWN_COMPLETIONS])
