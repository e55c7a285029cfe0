"""The split of prompts into those that are trained on and those that are held out: no image and no prompt is on both sides.

Prompts that share an image, directly or through others, are one group and stay together; a prompt without images is a group
with those of the same text. The groups whose seeded hash is smallest are held out, so a prompt's side does not depend on the
order of the rows.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.config import DataConfig
from grpo_core.errors import DataError
from grpo_core.machine.images import PromptImages
from grpo_core.types import Prompt


@dataclass(frozen=True, kw_only=True)
class PromptSplit:
    """Prompts ready to be frozen, and how many were dropped: longer than `max_prompt_tokens`, and doubles.

    Doubles are dropped from eval, where an earlier prompt is the same. Train keeps them: they are the task's own distribution.
    `images` are those of the prompts, and `processor` what has made tokens of them; None where there are none.
    """

    train: tuple[Prompt, ...]
    eval: tuple[Prompt, ...]
    num_too_long: int
    num_duplicates: int
    images: PromptImages | None = None
    processor: dict[str, Any] | None = None


def identity(prompt: Prompt) -> tuple[str, tuple[str, ...]]:
    """Return what two prompts share that are the same: text and images."""
    return prompt.text, prompt.images


def split_prompts(prompts: Sequence[Prompt], num_too_long: int, config: DataConfig) -> PromptSplit:
    """Return train and eval.

    Raises:
        DataError: a side would be empty.
    """
    groups = _groups(prompts)
    held_out_groups = _held_out(groups.values(), config)
    train = tuple(prompt for prompt in prompts if groups[identity(prompt)] not in held_out_groups)
    held_out = {identity(prompt): prompt for prompt in reversed(prompts) if groups[identity(prompt)] in held_out_groups}
    return PromptSplit(
        train=train,
        eval=tuple(sorted(held_out.values(), key=lambda prompt: prompt.id)),
        num_too_long=num_too_long,
        num_duplicates=len(prompts) - len(train) - len(held_out),
    )


def _held_out(groups: Iterable[str], config: DataConfig) -> set[str]:
    """Return which groups of distinct prompts are held out: in the order of their hashes, those that still fit in."""
    members = Counter(groups)
    num_eval, found, count = count_held_out(sum(members.values()), config), set[str](), 0
    for group in sorted(members, key=lambda name: hashlib.sha256(f"{config.seed}\n{name}".encode()).digest()):
        if count + members[group] <= num_eval:
            found.add(group)
            count += members[group]
    if num_eval and not found:
        raise DataError(
            f"data.eval_fraction: {config.eval_fraction} of {sum(members.values())} distinct prompts is {num_eval}, and the "
            f"smallest of {len(members)} groups of prompts that share images has {min(members.values())}; hold out more"
        )
    return found


def _groups(prompts: Sequence[Prompt]) -> dict[tuple[str, tuple[str, ...]], str]:
    """Return {prompt: group}: of text its text, of images the digests of all that are connected with them, a line each."""
    leader: dict[str, str] = {}

    def find(digest: str) -> str:
        while leader.setdefault(digest, digest) != digest:
            leader[digest] = digest = leader[leader[digest]]
        return digest

    for prompt in prompts:
        for digest in prompt.images[1:]:
            leader[find(digest)] = find(prompt.images[0])
    connected = defaultdict[str, set[str]](set)
    for prompt in prompts:
        for digest in prompt.images:
            connected[find(digest)].add(digest)
    names = {first: "\n".join(sorted(digests)) for first, digests in connected.items()}
    return {identity(one): names[find(one.images[0])] if one.images else one.text for one in prompts}


def count_held_out(num_distinct: int, config: DataConfig) -> int:
    """Return how many of so many distinct prompts are held out.

    Raises:
        DataError: nothing would be held out although that is asked for, or nothing would be left for training.
    """
    num_eval = round(num_distinct * config.eval_fraction)
    if num_eval == num_distinct or (config.eval_fraction > 0 and num_eval == 0):
        raise DataError(
            f"data.eval_fraction: {config.eval_fraction} of {num_distinct} distinct prompts leaves "
            f"{num_distinct - num_eval} for training and {num_eval} held out; both need at least 1"
        )
    return num_eval


def hold_out_all(split: PromptSplit) -> PromptSplit:
    """Return the split in which every distinct prompt is held out: a data set on which nothing is trained."""
    rows = sorted((*split.train, *split.eval), key=lambda prompt: prompt.id)
    held_out = tuple(sorted({identity(prompt): prompt for prompt in reversed(rows)}.values(), key=lambda prompt: prompt.id))
    return replace(split, train=(), eval=held_out, num_duplicates=split.num_duplicates + len(rows) - len(held_out))
