"""Completions side by side: what several runs wrote for the same prompt, drawn with the same random numbers.

The number behind each token is a function of seed, step, prompt, completion and position (`generation/sampler.py`), so runs
with the same seed, frozen prompts and engine draw the k-th completion of a prompt in a step with the same numbers, whatever
else is in the step and however large the groups are.
"""

import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from grpo_core.compare.runs import ComparedRun
from grpo_core.errors import GrpoError
from grpo_core.pages import for_script, plain_values
from grpo_core.run.folder import RunDir
from grpo_core.run.pictures import album
from grpo_core.run.samples import HEAD, TAIL, Completion, Group, frozen_questions, kept_steps, read_groups, shortened
from grpo_core.sweep.display import first_few
from grpo_core.text import for_terminal

MOST_STEPS, TRIED_STEPS, MOST_ACROSS = 5, 20, 6
"""Steps of which completions are shown; those among which they are looked for where some have no prompt that all runs had,
as with several prompts a step; and runs side by side: the first ones."""
SAMPLE_BYTES = 400_000
"""Room that all completions of a page share; as many prompts of each step as fit, the first ones."""
PICTURE_BYTES = 300_000
"""Room that all images of a page share."""


def side_by_side(runs: Sequence[ComparedRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the completions of runs that share random numbers, set of runs by set; and why the other runs have none."""
    members: dict[tuple[Any, ...], list[int]] = {}
    kept = [set(kept_steps(one.run.dir)) for one in runs]
    for number in [number for number, steps in enumerate(kept) if steps]:
        config = runs[number].run.config
        members.setdefault((config.training.seed, runs[number].prompts, config.rollout.engine), []).append(number)
    shared = {key: numbers for key, numbers in members.items() if key[1] is not None and len(numbers) > 1}
    alone = [runs[number].label for key, numbers in members.items() if key not in shared for number in numbers]
    reasons = {
        "no completions were kept": [one.label for at, one in enumerate(runs) if not kept[at]],
        "no other run with completions has the seed, prompts and sampler": alone,
    }
    notes = [f"{reason}: {first_few(labels, MOST_ACROSS)}" for reason, labels in reasons.items() if labels and len(runs) > 1]
    found = list[dict[str, Any]]()
    for (seed, *_), numbers in shared.items():
        folders = [runs[number].run.dir for number in numbers[:MOST_ACROSS]]
        steps = sorted(set.intersection(*(kept[number] for number in numbers[:MOST_ACROSS])))
        spreads = [np.linspace(0, len(steps) - 1, min(len(steps), most)) for most in (MOST_STEPS, TRIED_STEPS)]
        tried = dict.fromkeys(steps[round(place)] for places in spreads for place in places)
        room = SAMPLE_BYTES // len(shared) // max(1, min(len(steps), MOST_STEPS))
        cards = ((step, part) for step in tried if (part := _cards(folders, step, room))["cards"])
        if shown := [{"step": step, **part} for step, part in sorted(islice(cards, MOST_STEPS), key=lambda one: one[0])]:
            begin = for_terminal(frozen_questions(folders[0].data)[0][-TAIL:])
            more = [runs[number].label for number in numbers[MOST_ACROSS:]]
            found.append({"seed": seed, "runs": numbers[:MOST_ACROSS], "more": more, "shared": begin, "steps": shown})
        else:
            notes.append(f"seed {seed}: no step with a prompt that all of them had")
    return found, notes


def images_of(runs: Sequence[ComparedRun], sets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the images of what `side_by_side` found as `album` does, one card of each step after the other."""
    steps = [step["cards"] for one in sets for step in reversed(one["steps"])]
    digests = [digest for cards in zip_longest(*steps, fillvalue={}) for card in cards for digest in card.get("images", ())]
    return album([one.run.dir for one in runs], digests, PICTURE_BYTES)


def _cards(folders: Sequence[RunDir], step: int, room: int) -> dict[str, Any]:
    """Return a card a prompt that all runs had in a step, as many as fit into so many bytes; and how many there are."""
    try:
        first, *others = [_by_prompt(read_groups(folder, step)) for folder in folders]
    except (GrpoError, OSError, ValueError):  # a damaged table: the rest of the page is whole
        return {"total": 0, "cards": []}
    shared = [key for key in first if all(key in other for other in others)]
    cards = list[Any]()
    for key in shared:
        groups = [first[key], *(other[key] for other in others)]
        rows = zip(*(group.completions for group in groups), strict=False)  # groups of several sizes: those that all have
        card = {
            "prompt": groups[0].end[-HEAD:],
            "answer": groups[0].answer and groups[0].answer[-TAIL:],
            **({"images": groups[0].images, "box": groups[0].box} if groups[0].images else {}),
            "rows": [[_answer(row[0], one) + [one.box] * bool(groups[0].images) for one in row] for row in rows],
        }
        cards.append(plain_values(card))
        room -= len(for_script(cards[-1]))
        if room < 0 and len(cards) > 1:
            cards.pop()
            break
    return {"total": len(shared), "cards": cards}


def _by_prompt(groups: Sequence[Group]) -> dict[tuple[int, int], Group]:
    """Return groups by (prompt, how often it was there before in the step)."""
    seen, found = Counter[int](), dict[tuple[int, int], Group]()
    for group in groups:
        found[group.prompt_id, seen[group.prompt_id]] = group
        seen[group.prompt_id] += 1
    return found


def _answer(first: Completion, one: Completion) -> list[Any]:
    """Return text, characters of a text that is cut, tokens, reward, cut at the limit, right; and where it leaves the first.

    The place is that of the first character, as a browser counts them, that is not the first run's; None = the same text.
    """
    text, characters = shortened(one.text)
    shared = os.path.commonprefix([for_terminal(shortened(first.text)[0]), for_terminal(text)])  # noqa: RUF071
    place = None if one.text == first.text else len(shared.encode("utf-16-le")) // 2
    return [text, characters, one.tokens, one.reward, one.truncated, one.is_right, place]
