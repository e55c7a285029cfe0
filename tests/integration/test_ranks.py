"""Several processes compute what one does: the same tokens, rewards and first figures, and the same weights up to rounding."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config import load_config
from grpo_core.data.prepare import prepare
from grpo_core.run.folder import RunDir, change_passes
from grpo_core.run.journal import read_journal
from tests.conftest import build_model, build_tokenizer
from tests.integration.test_lowered_passes import cut_back
from tests.support.agreement import CHANGE, agree, agree_at_first, change_apart, completions_apart, repeats
from tests.support.killed_rank import PLACES
from tests.support.ranks import TRAIN, RankServer

pytestmark = pytest.mark.proof

BASE = {
    "training.steps": 5,
    "training.checkpoint_every": 2,
    "training.completions_every": 1,
    "training.keep_checkpoints": 9,
    "training.collective_seconds": 60,
    "training.microbatch_tokens": 70,  # a dozen passes a step
    "rollout.num_prompts_per_step": 8,
    "reference.sync_steps": 2,
    "reference.mixup_alpha": 0.5,
    "probe.every_steps": 2,
    "probe.num_prompts": 6,
    "evaluation.every_steps": 2,
    "evaluation.num_prompts": 20,
}
OF_TINY_MODEL = {"model.source": "untied", "rollout.max_prompt_tokens": 80, "training.microbatch_tokens": 400}
VARIANTS: dict[str, dict[str, Any]] = {
    "average": {},
    "exact KL, two epochs of two minibatches": {
        "loss.kl_estimator": "full",
        "loss.minibatches": 2,
        "loss.epochs_per_rollout": 2,
    },
    "groups dropped": {"loss.beta": 0.0, "filtering.drop_zero_variance_groups": True, "rollout.num_prompts_per_step": 7},
    "KL in the reward": {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "advantage.whiten_advantages": True},
    "gradient checkpointing": {"training.gradient_checkpointing": True},
    "fewer prompts than processes": {"rollout.num_prompts_per_step": 2},
    "adapter": {"model.lora.rank": 4},
    "untied head": {**OF_TINY_MODEL, "rewards": [{"fn": "length", "args": {"max_characters": 4}}]},
    "scripted": {
        **OF_TINY_MODEL,
        "rewards": [{"fn": "tests.golden.trajectory:letters"}],
        "data.chat_template": True,
        "rollout.max_prompt_tokens": 128,
        "rollout.max_completion_tokens": 8,
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "spread over one, untied head": VARIANTS["untied head"],
    "bfloat16": {"model.dtype": "bfloat16"},
    "long": {"training.steps": 70, "rollout.num_prompts_per_step": 32, "training.microbatch_tokens": 1024},
    "server": {
        "rollout.engine": "vllm",
        "rollout.vllm.url": "http://127.0.0.1:1",
        "model.dtype": "float32",
        "rollout.num_prompts_per_step": 3,
    },
}
ENTRIES = {
    "server": "tests.support.vllm_stand_in:train",
    "scripted": "tests.support.ranks:train_scripted",
    "spread over one": "tests.support.ranks:train_alone_with_spread_weights",
    "spread over one, untied head": "tests.support.ranks:train_alone_with_spread_weights",
}
LAYOUTS = ((2, 1), (4, 1), (2, 2), (4, 4), (4, 2))
"""(processes, shards)."""
FEW_LAYOUTS = ((4, 1), (4, 2))
Layout = tuple[int, int]
KILLED = [
    *((where, 2) for where in PLACES),
    *(pytest.param(where, 1, marks=pytest.mark.slow) for where in ("update", "rename")),
]


@dataclass
class Runs:
    """Trainings of this file, each made once."""

    server: RankServer
    folder: Path
    untied: Path
    done: dict[str, RunDir] = field(default_factory=dict)

    def create(self, name: str, **changes: Any) -> RunDir:
        """Return a new run."""
        if changes.get("model.source") == "untied":
            changes["model.source"] = str(self.untied)
        config = load_config("sums_tiny_cpu", {**BASE, **changes})
        run = RunDir(self.folder / name)
        run.create(config)
        prepare(config, run.data)
        return run

    def trained(self, variant: str, processes: int = 1, shards: int = 1, *, attempt: int = 1) -> RunDir:
        """Return the run of a variant on so many processes."""
        name = f"{variant} {processes}x{shards} {attempt}"
        if name not in self.done:
            layout = {"training.processes": processes, "training.shards": shards} if processes > 1 else {}
            run = self.create(name, **VARIANTS.get(variant, {}) | OTHERS.get(variant, {}), **layout)
            self.server.train(run, processes, ENTRIES.get(variant, TRAIN))
            self.done[name] = run
        return self.done[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, untied: Path) -> Iterator[Runs]:
    """What trains, and has trained."""
    with RankServer() as server:
        yield Runs(server, tmp_path_factory.mktemp("ranks"), untied)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose head is not its embedding."""
    folder = tmp_path_factory.mktemp("untied")
    config = build_model().config
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    type(build_model())(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


CASES = [
    # Where (4, 2) shares out rows and weights, (4, 1) is the same without the second.
    pytest.param(variant, *layout, marks=[pytest.mark.slow] * (layout == (4, 1) and variant not in ("average", "adapter")))
    for variant in VARIANTS
    for layout in (LAYOUTS if variant in ("average", "scripted") else FEW_LAYOUTS)
    if variant != "adapter" or layout[1] == 1  # each process has the base of an adapter whole
]


@pytest.mark.parametrize(("variant", "processes", "shards"), CASES)
def test_several_processes_compute_what_one_does(runs: Runs, variant: str, processes: int, shards: int) -> None:
    agree(runs.trained(variant), runs.trained(variant, processes, shards))


def test_one_process_computes_the_same_bits_with_spread_weights(runs: Runs) -> None:
    repeats(runs.trained("untied head"), runs.trained("spread over one, untied head"))


def test_a_tied_embedding_whose_rows_plain_weights_add_one_by_one_differs_by_rounding(runs: Runs) -> None:
    agree(runs.trained("average"), runs.trained("spread over one"))


def test_in_the_variants_happens_what_they_are_about(runs: Runs) -> None:
    steps = {name: [one for one in read_journal(runs.trained(name).journal_file) if one.kind == "step"] for name in VARIANTS}
    assert any(step.metrics["group/zero_std_frac"] > 0 for step in steps["groups dropped"])
    assert steps["exact KL, two epochs of two minibatches"][-1].metrics["progress/optimizer_step"] == 20
    assert sum(one.kind == "ref_sync" for one in read_journal(runs.trained("average").journal_file)) == 2


@pytest.mark.parametrize(("processes", "shards"), [pytest.param(4, 1, marks=pytest.mark.slow), (4, 2)])
def test_in_bfloat16_the_first_forward_passes_are_the_same(runs: Runs, processes: int, shards: int) -> None:
    agree_at_first(runs.trained("bfloat16"), runs.trained("bfloat16", processes, shards))


@pytest.mark.slow
def test_seventy_steps_draw_the_same_completions(runs: Runs) -> None:
    """17,920 of them: what rounding has done to the weights by then has changed none."""
    one, two = runs.trained("long"), runs.trained("long", 2)
    assert completions_apart(one, two) == []
    assert change_apart(one, two) < CHANGE


def test_the_same_processes_repeat_bit_for_bit_beside_a_busy_neighbour(runs: Runs) -> None:
    first = runs.trained("average", 4, 2)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        again = runs.trained("average", 4, 2, attempt=2)
    finally:
        for neighbour in busy:
            neighbour.kill()
            neighbour.wait()
    repeats(first, again)


@pytest.mark.parametrize(("where", "shards"), KILLED)
def test_a_run_one_of_whose_ranks_was_killed_is_resumed_bit_for_bit(runs: Runs, where: str, shards: int) -> None:
    killed = runs.create(f"killed in {where} {shards}", **{"training.processes": 2, "training.shards": shards})
    codes = runs.server.run("tests.support.killed_rank:train_until_killed", f"{killed.path} {where}", 2, killed.path)
    assert codes[PLACES[where][0]] == -signal.SIGKILL
    assert 0 not in codes
    runs.server.train(killed, 2)
    repeats(runs.trained("average", 2, shards), killed)
    records = read_journal(killed.journal_file)
    assert [record for record in records if record.kind == "alert"] == []
    assert any(record.kind == "resume" for record in records)


@pytest.mark.parametrize(
    ("saved_by", "resumed_by"),
    [
        ((2, 1), (1, 1)),
        ((2, 2), (4, 2)),
        ((1, 1), (2, 2)),
        *(pytest.param(*layouts, marks=pytest.mark.slow) for layouts in (((2, 2), (4, 1)), ((4, 4), (1, 1)))),
    ],
)
def test_a_run_is_resumed_by_other_processes_and_shards(runs: Runs, saved_by: Layout, resumed_by: Layout) -> None:
    resumed = RunDir(runs.folder / f"{saved_by} then {resumed_by}")
    shutil.copytree(runs.trained("average", *saved_by).path, resumed.path)
    cut_back(resumed, 2)
    change_passes(resumed, dict(zip(("processes", "shards"), resumed_by, strict=True)))
    runs.server.train(resumed, resumed_by[0])
    agree(runs.trained("average"), resumed)
    records = read_journal(resumed.journal_file)
    assert [record for record in records if record.kind == "alert"] == []
    (resume,) = [record for record in records if record.kind == "resume"]
    assert (resume.data.get("processes", 1), resume.data.get("shards", 1)) == resumed_by


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_server_is_asked_by_the_first_process_and_all_get_its_completions(runs: Runs, shards: int) -> None:
    one, two = runs.trained("server"), runs.trained("server", 2, shards)
    agree(one, two)
    steps = [record.metrics for record in read_journal(two.journal_file) if record.kind == "step"]
    assert len(steps) == BASE["training.steps"]
    assert all(0 <= step["kl/sampler/k3"] < 1e-6 for step in steps)
    assert all(step["sampler/probe/difference"] < 1e-4 for step in steps)
