"""An evaluation's figures, estimates over prompts with their confidence intervals, and its files in the run.

The files are eval/<policy>.parquet, an `eval` record, and last eval/<policy>.json; figures are called `eval/<set>/...`, after
the evaluation set. The prompt is the independent unit. Of the same prompts before and after a training, a difference in
accuracy nets what was lost and gained; how much of what was right is retained is what RL's Razor (arXiv:2509.04259) calls
forgetting (`AnswerChanges`).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_core.machine.disk import build, durable, durable_folder, read_json, whole_or_gone, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, Record

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over prompts with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as `0.512 [0.443, 0.581]`."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, total: int) -> Estimate:
    """Return a share with its score interval (Wilson 1927, JASA 22(158)).

    >>> print(proportion(5, 10))
    0.500 [0.237, 0.763]
    """
    from scipy import special  # not scipy.stats, whose import takes longer than most evaluations during a training

    return _score_interval(successes / total, total, float(special.ndtri(0.5 + CONFIDENCE / 2)))


def mean_share(shares: Sequence[float]) -> Estimate:
    """Return the mean of one share per prompt, such as pass@k, with a score interval over prompts.

    Wilson's interval (1927, JASA 22(158)) of the mean with the quantile of Student's t of n - 1 degrees of freedom and, for the
    n prompts, their effective number n p (1 - p) / s^2: a prompt is a cluster of its samples (Miller 2024, arXiv:2411.00640),
    and s^2 is the variance between prompts, which is p (1 - p) where each is 0 or 1 and less elsewhere. To p and s^2 half a
    prompt is added, a quarter right and a quarter wrong: where all prompts agree the others need not, so there it is Wilson's
    of n prompts. Within 0.05..0.9 it has the width of the t interval to a few percent at 50 prompts and to 1 % at 200; near
    0 and 1, where that one covers as little as 27 %, it covers 94 % and more (`make coverage`).

    >>> print(mean_share([1.0] * 50))
    1.000 [0.925, 1.000]
    """
    array = np.asarray(shares, dtype=float)
    centre, count = min(1.0, max(0.0, float(array.mean()))), len(array)
    if count < 2:
        return Estimate(value=centre, low=0.0, high=1.0)
    middle = (float(array.sum()) + 0.25) / (count + 0.5)
    variance = (float((array**2).sum()) + 0.25) / (count + 0.5) - middle**2
    return _score_interval(centre, count * middle * (1 - middle) / variance, _student(count - 1))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value per prompt with its t interval: all numbers for a single one, width 0 where all agree."""
    array = np.asarray(values, dtype=float)
    centre = float(array.mean())
    if len(array) < 2:
        return Estimate(value=centre, low=-math.inf, high=math.inf)
    half = _student(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Estimate(value=centre, low=centre - half, high=centre + half)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the mean of after - before over the same prompts, both in [0, 1], with an interval that never has width 0.

    Agresti & Min 2005 (Stat. Med. 24(5)): of binary outcomes, half a prompt is added to each of the four cells of before and
    after, and the interval is the mean of these n + 2 prompts give or take q times its standard error; here q is Student's t
    of n - 1 degrees of freedom. For shares (several samples a prompt) it is the paired t interval over prompts with the same
    two prompts added, one of no change and one of half +1, half -1: where no prompt of n changed, it is about 0 +- 2 / n.

    Raises:
        ValueError: the two do not have the same length.
    """
    changes = np.asarray([later - earlier for earlier, later in zip(before, after, strict=True)], dtype=float)
    count, total = len(changes), len(changes) + 2
    if count < 2:
        return Estimate(value=float(changes.mean()), low=-1.0, high=1.0)
    centre = float(changes.sum()) / total
    half = _student(count - 1) * math.sqrt((float((changes**2).sum()) + 1) / total - centre**2) / math.sqrt(total)
    return Estimate(value=float(changes.mean()), low=max(-1.0, centre - half), high=min(1.0, centre + half))


def _student(freedom: int) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def _score_interval(share: float, count: float, quantile: float) -> Estimate:
    """Return a share with the values p at which it lies no more than `quantile` times sqrt(p (1 - p) / count) away."""
    scale = 2 * (count + quantile**2)
    centre = (2 * count * share + quantile**2) / scale
    half = quantile / scale * math.sqrt(4 * count * share * (1 - share) + quantile**2)
    return Estimate(value=share, low=0.0 if share == 0 else centre - half, high=1.0 if share == 1 else centre + half)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k samples is correct (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


@dataclass(frozen=True, kw_only=True)
class AnswerChanges:
    """Counts of prompts by what became of their answers."""

    right_before: int
    lost: int
    """Right before, wrong after."""
    gained: int
    """Wrong before, right after."""

    @property
    def retained(self) -> Estimate | None:
        """The share of those right before that still are, with its Wilson interval; None where none was."""
        return proportion(self.right_before - self.lost, self.right_before) if self.right_before else None

    @property
    def p(self) -> float:
        """McNemar's exact p (1947, Psychometrika 12): min(1, 2 P(X <= min(lost, gained))), X binomial(lost + gained, 1/2)."""
        from scipy import special  # not scipy.stats, whose import takes long

        return min(1.0, 2 * float(special.bdtr(min(self.lost, self.gained), self.lost + self.gained, 0.5)))

    def __str__(self) -> str:
        """Return it as a clause, such as `of 40 right before, still right 0.950 [0.835, 0.986]; lost 2, gained 31 (...)`."""
        kept = "none was right before"
        if self.retained is not None:
            kept = f"of {self.right_before} right before, still right {self.retained}"
        return f"{kept}; lost {self.lost}, gained {self.gained} (McNemar's exact p {self.p:.2g})"


def answer_changes(before: Sequence[bool], after: Sequence[bool]) -> AnswerChanges:
    """Return what became of the answers to the same prompts.

    >>> print(answer_changes([True, True, False, False, False], [True, False, True, True, True]))
    of 2 right before, still right 0.500 [0.095, 0.905]; lost 1, gained 3 (McNemar's exact p 0.62)

    Raises:
        ValueError: the two do not have the same length.
    """
    pairs = list(zip(before, after, strict=True))
    return AnswerChanges(
        right_before=sum(was for was, _ in pairs),
        lost=sum(was and not now for was, now in pairs),
        gained=sum(now and not was for was, now in pairs),
    )


HELD_OUT = "heldout"
"""The evaluation set that every run has: the held-out split of its own data."""
HELD_OUT_SAMPLE = "heldout_sample"
"""The first `evaluation.every_num_prompts` of it: what is evaluated during training has a name, hence curves, of its own."""


def set_name(source: str) -> str:
    """Return the name of a data source as an evaluation set: part of a metric key, and never one of the names above.

    >>> set_name("reasoning_gym:chain_sum"), set_name("file:some/GSM8K-test.jsonl"), set_name("hub:openai/gsm8k")
    ('chain_sum', 'gsm8k_test', 'gsm8k')
    """
    kind, _, name = source.partition(":")
    last = Path(name).stem if kind == "file" else name.rsplit("/", maxsplit=1)[-1]
    found = re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_") or "data"
    return f"{found}_data" if found in (HELD_OUT, HELD_OUT_SAMPLE) else found


def table_file(run_dir: RunDir, policy: str) -> Path:
    """Return where the completions of an evaluation lie."""
    return run_dir.eval / f"{policy}.parquet"


def facts_file(run_dir: RunDir, policy: str) -> Path:
    """Return where the figures of an evaluation lie; while it is not there, the evaluation is not finished."""
    return run_dir.eval / f"{policy}.json"


def read_estimates(run_dir: RunDir, policy: str) -> dict[str, Estimate]:
    """Return the figures of a finished evaluation, by metric key.

    Raises:
        OSError, ValueError, LookupError: there is none, or its file was changed into something else.
    """
    return build(dict[str, Estimate], read_json(facts_file(run_dir, policy))["estimates"])


def evaluations_after(history: Sequence[Record], step: int) -> dict[str, Record]:
    """Return {evaluation set: its newest record} of the policy after a step; one of another step says nothing of it."""
    return {str(record.data.get("set")): record for record in history if record.kind == "eval" and record.step == step}


def write_evaluation(
    run_dir: RunDir,
    policy: str,
    facts: Mapping[str, Any],
    write_table: Callable[[Path], object],
    *,
    remarks: Mapping[str, Any] | None = None,
    journal: Journal | None = None,
) -> None:
    """Write an evaluation down.

    Args:
        run_dir: of the run.
        policy: `base` or `final`.
        facts: `policy`, `set`, `step`, `num_prompts` and `estimates`, each with a `value`.
        write_table: writes every completion to a file.
        remarks: what the record holds beside them.
        journal: of the run, where this process has it open.

    Raises:
        DiskFullError, JournalError: it cannot be written; what could not be finished is gone.
    """
    durable_folder(run_dir.eval)
    table, last = table_file(run_dir, policy), facts_file(run_dir, policy)
    last.unlink(missing_ok=True)  # of an earlier policy, whose table is about to go
    with whole_or_gone(f"evaluation of {policy}", table), durable(table) as partial:
        write_table(partial)
    metrics = {key: estimate["value"] for key, estimate in facts["estimates"].items()}
    with closing(Journal(run_dir.journal_file)) if journal is None else nullcontext(journal) as opened:
        opened.append("eval", facts["step"], {**facts, **(remarks or {}), "metrics": metrics})
    # Last: whoever finds it finds the whole evaluation.
    with whole_or_gone(f"evaluation of {policy}", last):
        write_json(last, facts)
