"""The objective of a run prompt by prompt, where it is the mean over held-out prompts of its final evaluation."""

import re

import pandas

from grpo_core.evaluation.results import table_file
from grpo_core.evaluation.statistics import pass_at_k
from grpo_core.run.folder import RunDir
from grpo_core.run.tables import read_table
from grpo_core.sweep.schema import ObjectiveConfig

COLUMNS = {"prompt_id", "sample", "correct"}
SHARE = re.compile(r"eval/heldout/(?:pass_at_(?P<k>\d+)|greedy_accuracy)")


def objective_by_prompt(run_dir: RunDir, objective: ObjectiveConfig, value: float) -> pandas.Series | None:
    """Return the objective of each held-out prompt, by its id; None where it is not a mean of such figures.

    Args:
        run_dir: of a run.
        objective: what is maximised; one with a price on the drift has no figure of a prompt.
        value: of the run. A table whose mean is another one is not of the same policy, and is not used.
    """
    asked = SHARE.fullmatch(objective.metric)
    if asked is None or objective.kl_penalty is not None:
        return None
    table = read_table(table_file(run_dir, "final"))
    if table is None or not COLUMNS.issubset(table.columns):
        return None
    sampled = table[(table["sample"] < 0) if asked["k"] is None else (table["sample"] >= 0)]
    correct = sampled["correct"].astype(bool).groupby(sampled["prompt_id"]).agg(["size", "sum"]).sort_index()
    k = int(asked["k"] or 1)
    if correct.empty or int(correct["size"].min()) < k:
        return None
    scores = pandas.Series([pass_at_k(int(n), int(c), k) for n, c in correct.itertuples(index=False)], index=correct.index)
    return scores if abs(float(scores.mean()) - value) < 1e-9 else None
