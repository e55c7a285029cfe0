"""The drift that a training reports: the same whatever the loss leaves out, exact where it is due, and only a measurement."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.metrics import find_metric
from grpo_core.run.journal import Journal, read_journal
from grpo_core.training.__main__ import main
from grpo_core.training.ending import StopRequest
from grpo_core.training.session import FRESH, open_session
from grpo_core.training.step import run_step

FILTERS = {"filtering.drop_zero_variance_groups": True, "filtering.mask_truncated_completions": True}
OF_EXACT = ("full", "full_se", "drift", "drift_se", "seq")


def long_ones(prompts, completions, **columns):
    """Reward the completions of two of three prompts alike."""
    return [float(index % 3 + index // 8 * (index % 2)) if index >= 8 else 1.0 for index in range(len(completions))]


def trained(run_dir):
    """Return the metrics of each step."""
    assert main([str(run_dir.path)]) == 0
    return [record.metrics for record in read_journal(run_dir.journal_file) if record.kind == "step"]


def one_step(run_dir):
    """Return the step of a policy that is not its reference any more."""
    journal = Journal(run_dir.journal_file)
    session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in session.policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=random))
    result = run_step(session, FRESH)
    journal.close()
    return result


@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_the_same_policy_and_completions_have_the_same_figures_whatever_is_filtered(tiny_run, estimator):
    changes = {"rewards": [{"fn": f"{__name__}:long_ones"}], "reference.kl_full_every": 1, "loss.kl_estimator": estimator}
    plain, filtered = one_step(tiny_run(changes, "plain")), one_step(tiny_run(changes | FILTERS, "filtered"))
    assert (
        0 < filtered.metrics["progress/tokens"] < plain.metrics["progress/tokens"] == plain.metrics["progress/generated_tokens"]
    )
    keys = [key for key in plain.metrics if key.startswith(("kl/", "policy/entropy"))]
    assert {"kl/ref/full", "kl/init/k3", "kl/sampler/k3"} < set(keys)
    assert {key: filtered.metrics[key] for key in keys} == {key: plain.metrics[key] for key in keys}
    assert plain.metrics["kl/ref/drift"] == plain.metrics["kl/ref/full"] > 0
    assert plain.metrics["kl/ref/full"] == pytest.approx(plain.metrics["kl/ref/k1"], abs=5 * plain.metrics["kl/ref/k1_se"])


@pytest.mark.parametrize("changes", [{}, {"loss.minibatches": 2}], ids=str)
def test_the_exact_drift_is_measured_where_it_is_due_and_changes_nothing(tiny_run, changes):
    changes = {"training.steps": 5, "reference.sync_steps": 3, "reference.kl_init_every": 5, **changes}
    runs = [tiny_run({**changes, "reference.kl_full_every": every}, f"every-{every}") for every in (2, None)]
    measured, never = (trained(run_dir) for run_dir in runs)
    steps = {
        key: [step for step, figures in enumerate(measured, 1) if key in figures] for key in ("kl/ref/full", "kl/init/full")
    }
    assert steps == {"kl/ref/full": [2, 4], "kl/init/full": [2]}  # the initial policy is due at step 5, which is no second one
    assert measured[1]["kl/init/full"] == measured[1]["kl/ref/full"] == measured[1]["kl/ref/drift"] > 0
    for one, other in zip(measured, never, strict=True):
        same = {key for key in one if find_metric(key).deterministic and not (key.startswith("kl/") and key.endswith(OF_EXACT))}
        assert {key: one[key] for key in same} == {key: other[key] for key in same}
        assert other["kl/ref/drift"] == other["kl/ref/k1"]
    left, right = (load_file(max(run.checkpoints.glob("step_*")) / "policy" / "model.safetensors") for run in runs)
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_a_loss_of_the_exact_kl_measures_it_at_every_step(tiny_run):
    changes = {"loss.kl_estimator": "full", "loss.aggregation": "token-mean", "reference.kl_full_every": None}
    steps = trained(tiny_run(changes))
    assert steps[1]["kl/ref/full"] > 0
    for figures in steps:
        assert figures["kl/ref/drift"] == figures["kl/ref/full"] == pytest.approx(figures["loss/kl"], rel=1e-5)
    assert ["kl/init/full" in figures for figures in steps] == [True, True, False, False]  # until the first sync


def test_the_age_of_the_reference_is_that_of_what_is_in_it_also_after_a_resume(tiny_run):
    run_dir = tiny_run({"training.steps": 6, "reference.mixup_alpha": 0.5, "training.checkpoint_every": 3})
    # Half of each average is the policy of now: (1 + 1) / 2 = 1, (2 + 1) / 2 = 1.5, ...; on the way to k (1 - a) / a = 2.
    expected = [1.0, 1.0, 2.0, 1.5, 2.5, 1.75]
    assert [figures["ref/lag"] for figures in trained(run_dir)] == expected
    shutil.rmtree(run_dir.checkpoints / "step_000006")
    assert [figures["ref/lag"] for figures in trained(run_dir)] == expected
