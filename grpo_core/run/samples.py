"""What the model wrote in a step: its completions in groups, read from `completions/` and the frozen prompts."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from grpo_core.config import RunConfig
from grpo_core.config.names import reward_name
from grpo_core.data.prepare import load_frozen
from grpo_core.rewards.boxes import Box, first_box
from grpo_core.run.boxes import Scale, box_scale, predicted_box
from grpo_core.run.folder import RunDir
from grpo_core.types import text_of

SIGNS = {True: "✓", False: "✗", None: "·"}
SHOWN = 160
DIGEST = re.compile("[0-9a-f]{64}")
HEAD, TAIL = 400, 200
"""Characters of a longer completion that a page shows, from its beginning and its end; of a prompt the end."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One completion: its text and tokens, the total reward and that of each function before weights, NaN where unscorable.

    `is_right`: the verifier accepts it, as in `group/all_correct_frac`; None where the run has neither gold answers nor a
    verifier of its own. `truncated`: it reached `rollout.max_completion_tokens`. An advantage that differs from token to token
    is their mean. `box`: the one that it predicts, in pixels of the prompt's only image, where the run rewards boxes.
    """

    text: str
    tokens: int
    reward: float
    by_function: Mapping[str, float]
    advantage: float
    truncated: bool
    is_right: bool | None
    box: Box | None = None

    @property
    def line(self) -> str:
        """Return `✗ 4 =`: whether it is right, and as much of the text as a line shows."""
        return f"{SIGNS[self.is_right]} {self.text[:SHOWN]}{'…' * (len(self.text) > SHOWN)}{' [cut]' * self.truncated}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completions of one prompt: its whole text, its own `end` after what all prompts share, its gold answer if any.

    `images`: digests of its images, the names of files in `data/images`. `box`: the gold one, in pixels of the only image,
    where the run rewards boxes.
    """

    prompt_id: int
    prompt: str
    end: str
    answer: str | None
    completions: tuple[Completion, ...]
    images: tuple[str, ...] = ()
    box: Box | None = None

    @property
    def verdict(self) -> str:
        """Return `5 of 8 right`; empty where right and wrong are not known."""
        right = [one.is_right for one in self.completions if one.is_right is not None]
        return f"{sum(right)} of {len(right)} right" if right else ""


def shortened(text: str) -> tuple[str, int]:
    """Return as much of a text as a page shows, and its length in characters, 0 where that is the whole text."""
    is_whole = len(text) <= HEAD + TAIL
    return (text, 0) if is_whole else (f"{text[:HEAD]}\n[…]\n{text[-TAIL:]}", len(text))


def kept_steps(run_dir: RunDir) -> list[int]:
    """Return the steps whose table of completions is there, in their order."""
    return sorted(int(file.stem.removeprefix("step_")) for file in run_dir.completions.glob("step_" + 6 * "[0-9]" + ".parquet"))


def read_groups(run_dir: RunDir, step: int) -> tuple[Group, ...]:
    """Return the groups of a step whose table was kept.

    Raises:
        OSError, ValueError: there is no such table, or it cannot be read.
        DataError: the frozen prompts cannot be read.
    """
    rows = pandas.read_parquet(run_dir.completions_file(step)).to_dict("records")
    config, (_, frozen) = run_dir.read_config(), frozen_questions(run_dir.data)
    groups = []
    for first in range(0, len(rows), config.rollout.group_size):
        prompt_id, prompt = rows[first]["prompt_id"], rows[first]["prompt"]
        end, answer = frozen.get(prompt_id, (prompt, rows[first].get("answer")))
        images = digests_in(rows[first].get("images"))
        scale = box_scale(run_dir, config, images)
        completions = tuple(_completion(config, row, scale) for row in rows[first : first + config.rollout.group_size])
        groups.append(
            Group(
                prompt_id=prompt_id,
                prompt=prompt,
                end=end,
                answer=answer,
                completions=completions,
                images=images,
                box=first_box(answer) if scale and answer else None,
            )
        )
    return tuple(groups)


def digests_in(cell: Any) -> tuple[str, ...]:
    """Return the digests of a cell of the column `images`, empty where a table has none; what is no digest is left out."""
    return tuple(one for one in cell if DIGEST.fullmatch(str(one))) if isinstance(cell, list | np.ndarray) else ()


def _completion(config: RunConfig, row: Mapping[Any, Any], scale: Scale | None) -> Completion:
    verifier = config.evaluation.verifier or (config.rewards[0].fn if config.data.answer_column else None)
    return Completion(
        text=row["completion"],
        tokens=row["tokens"],
        reward=row["reward"],
        by_function={key.removeprefix("reward_"): value for key, value in row.items() if key.startswith("reward_")},
        advantage=float(np.mean(np.atleast_1d(row["advantage"])[: row["tokens"]])),
        truncated=row["truncated"],
        is_right=row[f"reward_{reward_name(verifier)}"] >= config.evaluation.pass_score if verifier else None,
        box=predicted_box(row["completion"], scale) if scale else None,
    )


def samples_table(run_dir: RunDir, step: int) -> pandas.DataFrame:
    """Return the completions of a step for people, one a row: the prompt's own end, the completion, the gold answer, rewards.

    Raises:
        OSError, ValueError, DataError: as `read_groups`.
    """
    rows = [
        {
            "prompt": group.end,
            "completion": one.text,
            "answer": group.answer,
            "reward": one.reward,
            **{f"reward_{name}": value for name, value in one.by_function.items()},
            "advantage": one.advantage,
            "tokens": one.tokens,
            "truncated": one.truncated,
            "step": step,
            "prompt_id": group.prompt_id,
        }
        for group in read_groups(run_dir, step)
        for one in group.completions
    ]
    return pandas.DataFrame(rows).dropna(axis="columns", how="all")


@lru_cache(maxsize=8)
def frozen_questions(folder: Path) -> tuple[str, dict[int, tuple[str, str | None]]]:
    """Return what the questions of all frozen prompts begin with, and {prompt: (its own end, its gold answer)}.

    The question of a conversation is its last message.
    """
    prompts = load_frozen(folder, with_images=False)[0]
    asked = [one.content if isinstance(one.content, str) else text_of(one.content[-1]["content"]) for one in prompts]
    shared = os.path.commonprefix([min(asked), max(asked)]) if len(set(asked)) > 1 else ""  # noqa: RUF071
    shared = shared[: max(map(shared.rfind, " \n")) + 1]  # whole words
    return shared, {one.id: (text[len(shared) :], one.answer) for one, text in zip(prompts, asked, strict=True)}
