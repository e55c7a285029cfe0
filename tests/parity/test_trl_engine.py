"""Whole steps and whole runs against TRL's GRPOTrainer: `training.engine: trl` is the witness of the native engine."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.backends.trl import Observer, build_trainer
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.run.journal import Journal, read_journal
from grpo_core.training.__main__ import main
from grpo_core.training.ending import StopRequest
from grpo_core.training.measure import Clock
from grpo_core.training.session import open_session
from grpo_core.training.step import collect_rollouts, prompts_for, update
from tests.support.scripted import ScriptedSampler

# What TRL and transformers say about each other's names is not about this project.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*rollout_func.*"),
    pytest.mark.timeout(300),
]
END = 1
RELATIVE, ABSOLUTE = 1e-4, 1e-6


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was(monkeypatch):
    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def scripted(step, prompt_id, index):
    """Two to eight tokens, other ones for each completion; every third completion is truncated."""
    length = 2 + (3 * prompt_id + 5 * index) % 7
    tokens = [5 + (prompt_id * 7 + index * 11 + place * 3 + step) % 70 for place in range(length)]
    return tokens * 4 if index % 3 == 2 else [*tokens, END]


def reward_by_text(prompts, completions, **columns):
    """Rewards that differ within every group."""
    return [float(sum(map(ord, completion[0]["content"])) % 7) for completion in completions]


def stop_now(prompts, completions, path, **columns):
    """Ask the training to end."""
    Path(path).write_text("enough\n")
    return [0.0 for _ in completions]


def perturb(model):
    """Move a reference away from the policy, by the same noise wherever it is called."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def scripted_session(tiny_run):
    """Return a function that opens a run whose completions are scripted."""
    journals = []

    def open_scripted(overrides, name):
        run_dir = tiny_run(overrides, name)
        journals.append(Journal(run_dir.journal_file))
        session = open_session(run_dir, journals[-1], StopRequest(run_dir.stop_file, None))
        return replace(session, sampler=ScriptedSampler(scripted, [END]))

    yield open_scripted
    for journal in journals:
        journal.close()


THREE_UPDATES = {
    "rewards": [{"fn": "tests.parity.test_trl_engine:reward_by_text"}],
    "loss.epochs_per_rollout": 3,
    "loss.aggregation": "token-mean",
    "loss.beta": 0.1,
    "loss.clip_eps": 0.1,
    "optimizer.lr": 0.02,
    "reference.sync_steps": None,
    "training.steps": 1,
    "evaluation.samples": 0,
    "evaluation.verifier": None,
}
CASES = {
    "token-mean": {},
    "corrected KL": {"loss.kl_correction": "importance"},
    "dual clip": {"loss.dual_clip": 1.2},
    "clip-higher": {"loss.clip_eps_high": 0.3},
    "sequence mean": {"loss.aggregation": "seq-mean-token-mean"},
    "Dr. GRPO": {"loss.aggregation": "seq-mean-token-sum-norm", "advantage.scale": "none", "optimizer.lr": 0.01},
    "several passes": {"training.microbatch_tokens": 100},
}


@pytest.mark.parametrize("case", CASES)
def test_three_optimizer_steps_on_scripted_rollouts_are_trls(scripted_session, case):
    overrides = {**THREE_UPDATES, **CASES[case]}
    session = scripted_session(overrides, "native")
    perturb(session.reference.current)
    rollouts = collect_rollouts(session, prompts_for(session, 1), 1, Clock())
    reports = update(session, rollouts, 1, Clock())[1].steps

    other = scripted_session({**overrides, "training.engine": "trl"}, "trl")
    trainer = build_trainer(other, Observer(other))
    perturb(trainer.ref_model)
    trainer.train()
    theirs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]

    assert len(reports) == len(theirs) == 3
    for ours, entry in zip(reports, theirs, strict=True):
        assert ours.loss == pytest.approx(entry["loss"], rel=RELATIVE, abs=ABSOLUTE)
        assert ours.grad_norm == pytest.approx(entry["grad_norm"], rel=RELATIVE, abs=ABSOLUTE)
        assert ours.lr == pytest.approx(entry["learning_rate"])
        if case != "several passes":  # there TRL reports the mean of its passes' means
            assert ours.clipped_low / ours.tokens == pytest.approx(entry["clip_ratio/low_mean"], rel=RELATIVE, abs=ABSOLUTE)
            assert ours.clipped_high / ours.tokens == pytest.approx(entry["clip_ratio/high_mean"], rel=RELATIVE, abs=ABSOLUTE)
        if overrides["loss.aggregation"] == "token-mean" and case != "several passes":
            assert ours.kl_loss == pytest.approx(entry["kl"], rel=RELATIVE, abs=ABSOLUTE)
    # Nothing above is the comparison of zeros.
    assert min(report.kl_loss for report in reports) > 1e-3
    assert max(report.clipped_low + report.clipped_high for report in reports) > 0
    policies = zip(session.policy.parameters(), other.policy.parameters(), strict=True)
    assert all(torch.allclose(one, two, atol=1e-4) for one, two in policies)


RUNS = {
    "as shipped": {},
    "two epochs, EMA, corrected": {
        "loss.epochs_per_rollout": 2,
        "loss.kl_correction": "importance",
        "loss.aggregation": "token-mean",
        "loss.clip_eps": 0.05,
        "reference.mixup_alpha": 0.6,
        "optimizer.lr": 0.01,
    },
    "sequence ratio, batch scale, schedule": {
        "loss.epochs_per_rollout": 2,
        "loss.ratio": "sequence",
        "loss.kl_correction": "none",
        "loss.clip_eps": 0.001,
        "advantage.scale": "batch_std",
        "optimizer.schedule": "linear",
        "training.microbatch_tokens": 100,
    },
    "no KL in the loss": {
        "loss.beta": 0.0,
        "loss.aggregation": "seq-mean-token-sum",
        "reference.sync_steps": None,
        "rollout.temperature": 1.3,
        "probe.every_steps": 2,
    },
    "truncated completions masked": {
        "filtering.mask_truncated_completions": True,
        "loss.aggregation": "token-mean",
        "rollout.num_prompts_per_step": 8,  # in every step some completions end by themselves
    },
}
BY_DEFAULT = ("as shipped", "two epochs, EMA, corrected")
"""What `make test` runs; the others are proofs."""
NOT_COMPARED = ("time/", "perf/")


@pytest.mark.parametrize("name", [pytest.param(run, marks=[pytest.mark.proof] * (run not in BY_DEFAULT)) for run in RUNS])
def test_a_whole_run_journals_the_same_figures_on_both_engines(tiny_run, name):
    """Sampling, rewards, KL panel, syncs: every key of every step, four steps that build on each other."""
    journals = []
    for engine in ("native", "trl"):
        run_dir = tiny_run({"reference.kl_full_every": 2, **RUNS[name], "training.engine": engine}, engine)
        assert main([str(run_dir.path)]) == 0
        journals.append(read_journal(run_dir.journal_file))
    native, theirs = journals
    assert [record.kind for record in native] == [record.kind for record in theirs]
    for ours, other in zip(native, theirs, strict=True):
        if ours.kind == "step":
            assert ours.metrics.keys() == other.metrics.keys()
            compared = {key: value for key, value in ours.metrics.items() if not key.startswith(NOT_COMPARED)}
            assert compared == pytest.approx({key: other.metrics[key] for key in compared}, rel=2e-4, abs=2e-6)
        if ours.kind == "ref_sync":
            assert ours.data["cause"] == other.data["cause"] == "reference.sync_steps"
            figures = {key: value for key, value in ours.data.items() if key != "cause"}
            assert figures == pytest.approx({key: other.data[key] for key in figures}, rel=2e-4, abs=2e-6)


def test_in_bfloat16_the_initial_policy_stays_what_it_was_when_the_reference_moves(tiny_run):
    """TRL replaces the head's forward pass; a copy of it would go on computing with the reference's weights."""
    drifts = []
    for engine in ("native", "trl"):
        options = {"model.dtype": "bfloat16", "optimizer.lr": 0.01, "probe.every_steps": 4, "training.engine": engine}
        run_dir = tiny_run(options, engine)
        assert main([str(run_dir.path)]) == 0
        drifts.append([record.metrics for record in read_journal(run_dir.journal_file) if record.kind == "step"])
        initial = load_file(run_dir.checkpoints / "initial.safetensors")
        start = load_file(Path(run_dir.read_config().model.source) / "model.safetensors")
        assert all(torch.equal(initial[key], start[key]) for key in start)
    native, theirs = drifts
    # Rounding differs from the first step on, hence a loose comparison; the wrong head was off by half.
    for key in ("kl/init/k3", "kl/probe/full_init"):
        assert native[3][key] == pytest.approx(theirs[3][key], rel=0.2)


def test_a_model_with_dropout_in_its_attention_is_refused(tiny_run, tmp_path, tiny_model, tiny_tokenizer, capsys):
    folder = tmp_path / "dropout"
    tiny_model.config.attention_dropout = 0.1
    tiny_model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    run_dir = tiny_run({"training.engine": "trl", "model.source": str(folder)})
    assert main([str(run_dir.path)]) == 1
    assert "would train with dropout ({'attention_dropout': 0.1})" in capsys.readouterr().err


def test_a_run_on_trl_ends_after_its_step_when_asked(tiny_run):
    run_dir = tiny_run({"training.engine": "trl", "training.steps": 50})
    stop_now = {"fn": "tests.parity.test_trl_engine:stop_now", "args": {"path": str(run_dir.stop_file)}}
    run_dir = tiny_run({"training.engine": "trl", "training.steps": 50, "rewards": [stop_now]})
    assert main([str(run_dir.path)]) == 0
    end = read_journal(run_dir.journal_file)[-1]
    assert (end.kind, end.data["status"], end.step) == ("end", "stopped", 1)
    assert (run_dir.checkpoints / "step_000001" / "manifest.json").exists()


def test_a_run_on_trl_cannot_go_on_from_a_checkpoint(tiny_run, capsys):
    run_dir = tiny_run({"training.engine": "trl", "training.steps": 2, "training.checkpoint_every": 1})
    assert main([str(run_dir.path)]) == 0
    assert main([str(run_dir.path)]) == 0  # finished: nothing is left to do
    shutil.rmtree(run_dir.checkpoints / "step_000002")
    assert main([str(run_dir.path)]) == 1
    assert "trl begins at the first step and cannot resume from a checkpoint" in capsys.readouterr().err
    # What it has done stays done.
    assert [record.step for record in read_journal(run_dir.journal_file) if record.kind == "step"] == [1, 2]
