"""What the page of a run shows, gathered as JSON, which the page's script draws; and the page, written.

A page stays below 1 MB, however long the run was: curves are thinned to `MOST_POINTS` in all, and completions are those of a
few steps, the first and the last among them, as many prompts of each as fit. Of images, each is there once, made small.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from markupsafe import Markup

from grpo_core.config.consistency import check_consistency
from grpo_core.config.names import reward_name
from grpo_core.config.origin import flatten
from grpo_core.machine.disk import write_whole
from grpo_core.metrics import LAST_STEPS, find_metric
from grpo_core.pages import for_script, plain_values, render
from grpo_core.run.curves import Curve, Run, read_places
from grpo_core.run.folder import RunDir
from grpo_core.run.pictures import album
from grpo_core.run.resuming import path_argument
from grpo_core.run.samples import HEAD, TAIL, frozen_questions, kept_steps, read_groups, shortened
from grpo_core.run.summary import compare_evaluations, raised_alerts
from grpo_core.text import for_terminal

CURVES = (
    *("reward/mean", "eval/heldout/greedy_accuracy", "eval/heldout_sample/greedy_accuracy", "kl/ref/drift", "kl/init/drift"),
    *("kl/probe/full_init", "policy/entropy", "completion/tokens/mean", "completion/tokens/max"),
    *(
        "completion/truncated_frac",
        "group/zero_std_frac",
        "optim/grad_norm",
        "optim/lr",
        "loss/beta",
        "perf/completion_tokens_per_second",
    ),
    *("time/rollout_seconds", "time/reward_seconds", "time/logps_seconds", "time/update_seconds", "time/sync_seconds"),
    "time/step_seconds",
)
HELD_OUT = ("eval/heldout/greedy_accuracy", "eval/heldout_sample/greedy_accuracy")
MOST_PROBES = 16
MOST_POINTS = 26_000  # of all curves together: those of 1,000 steps are whole
MOST_STEPS, SAMPLE_BYTES = 20, 280_000  # steps of which completions are shown, and how much room they share
PICTURE_BYTES = 160_000  # of all images together
MOST_ROWS = 100  # of the alerts and of the syncs: the last ones


def write_page(run_dir: RunDir, places: Sequence[tuple[str, str]] = (), *, live: bool = False) -> None:
    """Write the page of a run as it is now into its folder.

    Args:
        run_dir: of the run, which need not have begun.
        places: where else it is shown: (label, address or command).
        live: whether it will be written again: a browser then loads it again every 10 s.

    Raises:
        GrpoError: the folder holds no run, or one whose journal is damaged or whose configuration was edited.
        OSError: the page cannot be written.
    """
    data = {**plain_values({**page_data(Run(run_dir.path)), "places": places, "live": live}), "samples": _samples(run_dir)}
    text = render("grpo_core.run_page", "run_page.html.j2", data["title"], [], data=Markup(for_script(data)))
    write_whole(run_dir.page, text)


def page_data(run: Run) -> dict[str, Any]:
    """Return all that the page of a run shows but completions."""
    config, origin, compared = run.config, run.dir.read_origin(), compare_evaluations(run.dir)
    rewards = [reward_name(reward.fn) for reward in config.rewards]
    found = run.curves(*CURVES, *(f"reward/{name}/{figure}" for name in rewards for figure in ("mean", "unscorable_frac")))
    evaluations = [record for record in reversed(run.records) if record.kind == "eval"]
    most = max(10, MOST_POINTS // max(len(found.curves), 1))
    return {
        "title": run.name,
        "preset": origin.preset,
        "folder": path_argument(run.path),
        "state": run.state,
        "reason": run.reason,
        "notes": run.notes,
        "step": run.last_step,
        "steps": config.training.steps,
        "times": [record.time for record in (*run.records[:1], *run.records[-1:])],
        "rewards": rewards,
        "limit": config.rollout.max_completion_tokens,
        "entropy_alarm": getattr(find_metric("policy/entropy"), "alarm", None),
        "last_steps": LAST_STEPS,
        "curves": {key: curve.points(most) for key, curve in found.curves.items()},
        "figures": {key: _figures(curve) for key, curve in found.curves.items()},
        "sync_steps": found.syncs.steps.tolist(),
        "syncs": {"head": list(run.syncs.columns), "rows": run.syncs.tail(MOST_ROWS).to_numpy().tolist()},
        "alerts": [vars(alert) for alert in raised_alerts(run.dir, run.records)[-MOST_ROWS:]],
        "warnings": check_consistency(config),
        "evaluated": next((one.data.get("num_prompts") for key in HELD_OUT for one in evaluations if key in one.metrics), None),
        "difference": compared and vars(compared.difference),
        "positions": _positions(run),
        "changes": [(key, before, now) for key, (before, now) in origin.changes.items()],
        "config": {key: value for key, value in flatten(config).items() if value is not None},
        "provenance": {key: value for key, value in run.dir.read_provenance().items() if key != "git_diff"},
    }


def _figures(curve: Curve) -> dict[str, Any]:
    """Return what stands for a whole curve: means of its first and of its last steps, and the sum."""
    values = curve.values[np.isfinite(curve.values)]
    early = values[: min(5, (len(values) + 1) // 2)]
    late = values[len(early) :][-LAST_STEPS:] if len(values) > len(early) else values
    means = {name: float(part.mean()) if len(part) else None for name, part in (("early", early), ("late", late))}
    recent = curve.values[-LAST_STEPS:][np.isfinite(curve.values[-LAST_STEPS:])]
    counts = {"early_steps": len(early), "late_steps": len(late)}
    return {**means, **counts, "recent": float(recent.mean()) if len(recent) else None, "sum": float(values.sum())}


def _positions(run: Run) -> dict[str, Any] | None:
    """Return where the drift is, at no more probes than are drawn: the last one, and others at even distances before it."""
    found = read_places(run.records)
    if found is None:
        return None
    found = found.iloc[:, ::-1].iloc[:, :: -(-found.shape[1] // MOST_PROBES)].iloc[:, ::-1]
    return {"rows": list(found.index), "steps": list(found.columns), "cells": found.to_numpy().tolist()}


def _samples(run_dir: RunDir) -> dict[str, Any]:
    """Return completions of some steps, as many of their prompts, in their order, as there is room for, with their images."""
    steps, shown = kept_steps(run_dir), list[Any]()
    largest = max([1, *(_cards(run_dir, step)[1][0] for step in steps[-1:])])
    count = min(len(steps), MOST_STEPS, max(2, SAMPLE_BYTES // largest))
    for place in np.linspace(0, len(steps) - 1, count):
        cards, sizes = _cards(run_dir, steps[round(place)])
        fit = max(1, int(np.searchsorted(sizes, SAMPLE_BYTES // count, side="right")))
        shown.append({"step": steps[round(place)], "total": len(cards), "groups": cards[:fit]})
    digests = list(_in_order([[card.get("images", ()) for card in one["groups"]] for one in shown]))
    return {
        "shared": for_terminal(frozen_questions(run_dir.data)[0][-TAIL:]) if steps else "",
        "steps": shown,
        **(album([run_dir], digests, PICTURE_BYTES) if digests else {}),
    }


def _in_order(images: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Yield the images of each step's cards: half of them the last step's, which is seen first, then one card a step."""
    *others, last = images or [[]]
    share = max(1, len(others))
    for turn in range(max(map(len, [*others, last]))):
        for cards in (last[turn * share : (turn + 1) * share], *(one[turn : turn + 1] for one in others)):
            for digests in cards:
                yield from digests


@lru_cache(maxsize=4 * MOST_STEPS)
def _cards(run_dir: RunDir, step: int) -> tuple[list[Any], Sequence[int]]:
    """Return a card a prompt, and the room that the cards up to each take.

    Completions that are equal in everything are one, with their number; long texts are cut.
    """
    cards = []
    try:
        groups = read_groups(run_dir, step)
    except (OSError, ValueError):  # a damaged table: the rest of the page is whole
        return [], [0]
    for group in groups:
        rows = Counter(
            (
                *shortened(one.text),
                *(one.tokens, one.reward, one.advantage, one.truncated, one.is_right, tuple(one.by_function.values())),
                *([one.box] if group.images else []),
            )
            for one in group.completions
        )
        about = {"prompt": group.end[-HEAD:], "answer": group.answer and group.answer[-TAIL:], "verdict": group.verdict}
        seen = {"images": group.images, "box": group.box} if group.images else {}
        cards.append(plain_values({**about, **seen, "rows": [(count, *row) for row, count in rows.items()]}))
    return cards, np.cumsum([len(for_script(card)) for card in cards]).tolist()
