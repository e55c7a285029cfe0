"""How far two runs of the same configuration are apart: with as many processes not at all, with others by rounding."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas
import torch
from safetensors.torch import load_file
from torch import Tensor

from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.reproduction import IN_OTHER_PASSES, compare_journals, differences, figures, shared_records

CHANGE = 1e-4
"""Of the weights: how far two final policies may be apart, relative to what the training has changed."""
AFTER_THE_UPDATE = ("probe", "sync", "adapter_average", "eval", "multi_update")
OF_THE_UPDATE, OF_SEVERAL_UPDATES = ("optim/", "ref/"), ("loss/", "policy/ratio", "policy/clip_frac")
"""Keys of what the update gives; several updates give what one does only up to rounding."""
OF_THE_SAMPLER = ("kl/sampler/k3",)
"""Rounded as its products are, whose sizes depend on how many rows are sampled at once."""

SHARES = ("kl/probe/top_decile_share_init",)
MOST_KEYS = 35
"""Fewer figures of a step than each run has before its update."""


def agree(one: RunDir, several: RunDir) -> None:
    """Require what one process and several have in common: all of it but the last digits of gradients, and what follows."""
    agree_at_first(one, several)
    assert completions_apart(one, several) == []
    assert figures_apart(one, several) == []
    assert change_apart(one, several) < CHANGE


def agree_at_first(one: RunDir, several: RunDir) -> None:
    """Require the same completions, and figures before the update, of step 1, bit for bit."""
    assert completions_apart(one, several, first=1) == []
    found = list(first_figures(one, several))
    assert len(found) > MOST_KEYS
    assert [f"{key}: {before!r}, {now!r}" for key, before, now in found if before != now] == []


def completions_apart(one: RunDir, other: RunDir, *, first: int | None = None) -> list[str]:
    """Return the tables in which completions, rewards or advantages differ, of the `first` steps or of all.

    Advantages that hold the KL of the policy, which has been rounded by then, may differ by rounding.
    """
    files, others = (sorted(run.completions.glob("*.parquet"))[:first] for run in (one, other))
    assert [file.name for file in files] == [file.name for file in others] != []
    with_kl = one.read_config().loss.kl_placement == "reward"
    return [file.name for file, same in zip(files, others, strict=True) if not _is_same_table(file, same, with_kl=with_kl)]


def _is_same_table(one: Path, other: Path, *, with_kl: bool) -> bool:
    # A server's weights are named by their digest, which rounding changes.
    table, same = (pandas.read_parquet(file).drop(columns="weights") for file in (one, other))
    if with_kl:
        rounded = [torch.tensor(some.pop("advantage").explode().astype(float).to_numpy()) for some in (table, same)]
        return bool(table.equals(same)) and torch.allclose(*rounded, rtol=1e-4, atol=1e-5)
    return bool(table.equals(same))


def first_figures(one: RunDir, other: RunDir) -> Iterator[tuple[str, float, float]]:
    """Yield (key, its value, that of the other) of what step 1 measures before its update, bit for bit the same.

    With one update, its loss is of the policy that made the rollouts.
    """
    config = one.read_config().loss
    is_single = config.epochs_per_rollout == 1 and config.minibatches == 1
    of_update = OF_THE_UPDATE if is_single else (*OF_THE_UPDATE, *OF_SEVERAL_UPDATES)
    before, now = next(pair for pair in shared_records(*map(read_journal, (one.journal_file, other.journal_file))))
    for key, value in figures(before).items():
        is_later = (found := find_metric(key)) is None or found.when in AFTER_THE_UPDATE
        if not (is_later or key.startswith((*of_update, *OF_THE_SAMPLER)) or math.isnan(value)):
            yield key, value, figures(now)[key]


def figures_apart(one: RunDir, other: RunDir) -> list[str]:
    """Return the figures of all steps, syncs and evaluations that differ by more than rounding.

    A share of a KL that may be next to nothing is left out.
    """
    pairs = shared_records(*map(read_journal, (one.journal_file, other.journal_file)))
    assert pairs != []
    return [str(found) for before, now in pairs for found in differences(before, now, SHARES, IN_OTHER_PASSES)]


def repeats(one: RunDir, other: RunDir) -> None:
    """Require two runs to be the same, bit for bit."""
    assert completions_apart(one, other) == []
    found = compare_journals(*map(read_journal, (one.journal_file, other.journal_file)))
    assert found.is_identical
    assert found.steps > 0
    assert weights(one).keys() == weights(other).keys()
    assert all(tensor.equal(weights(other)[name]) for name, tensor in weights(one).items())


def weights(run: RunDir) -> Mapping[str, Tensor]:
    """Return those of the newest checkpoint's policy, or of its adapter."""
    (file,) = (list_checkpoints(run.checkpoints)[-1] / "policy").glob("*.safetensors")
    loaded: Mapping[str, Tensor] = load_file(file)
    return loaded


def change_apart(one: RunDir, other: RunDir) -> float:
    """Return the distance of two final policies over what the first has changed of its initial policy."""
    found, start = weights(one), load_file(one.checkpoints / "initial.safetensors")
    if one.read_config().model.lora is not None:  # its second factors start at 0; the change of the first ones is left out
        start = {name: torch.zeros_like(tensor) if "lora_B" in name else tensor for name, tensor in found.items()}
    return _distance(found, weights(other)) / _distance(found, start)


def _distance(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((tensor.double() - others[name].double()).square().sum()) for name, tensor in some.items()))
