"""What several processes share out and where they agree, in real processes; two of them take the steps that one takes."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from grpo_core.config import apply_overrides, load_config, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.errors import RewardError, TrainingError
from grpo_core.parallel.reasons import read_reasons
from grpo_core.parallel.world import SOLO, World, joined
from grpo_core.policy.forward import some_tokens
from grpo_core.policy.loading import open_policy
from grpo_core.policy.sources.find import resolve_model
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tests.conftest import build_model, build_tokenizer, build_values
from tests.support.agreement import agree, agree_at_first
from tests.support.ranks import RankServer

PROCESSES = 3
NAMES = "abcdefg"
REWARDS = (0.0, 1.0, 1.0, 2.0)
"""Of a group: two of its rows have no advantage, and so no gradient where there is no KL term."""
OPTIONS: dict[str, Any] = {
    "training.steps": 2,
    "training.collective_seconds": 30,
    "training.completions_every": 1,
    "training.microbatch_tokens": 400,  # one or two rows
    "reference.mixup_alpha": 0.5,
    "reference.sync_steps": 1,
    # Not reasoning_gym, of which each training starts a process to judge.
    "rewards": [{"fn": "length", "args": {"max_characters": 4}}],
}
IN_BFLOAT16: dict[str, Any] = {
    "rollout.num_prompts_per_step": 1,  # one process samples nothing
    "rewards": [{"fn": "tests.unit.test_ranks:by_place"}],
    "loss.beta": 0.0,
    "model.dtype": "bfloat16",
}


def by_place(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward a completion for its place in its group."""
    return [REWARDS[place % len(REWARDS)] for place in range(len(completions))]


def in_each_process(folder: str) -> None:
    """Do with the others what processes of a training do, and store what each of them has seen."""
    with joined(int(os.environ["WORLD_SIZE"]), 1, 60, torch.device("cpu")) as world:
        seen = {"part": [*world.part(7)], "dealt": _dealt(world, NAMES), "few": _dealt(world, NAMES[:1])}
        seen |= {"gathered": world.gather(torch.full((world.rank + 1,), float(world.rank)))}
        seen |= {"first": _on_first(world), "stop": world.agreed("STOP" if world.rank == 1 else None)}
        seen |= {"nobody": world.agreed(None), "apart": _apart(world), "gradients": _gradients(world)}
    torch.save(seen, Path(folder) / f"seen_{world.rank}.pt")


def _dealt(world: World, names: str) -> Any:
    calls = list[tuple[str, bool]]()

    def compute(name: str, counts: bool) -> str:
        calls.append((name, counts))
        return f"{name} by {world.rank}"

    return world.deal(names, compute), calls


def _on_first(world: World) -> Any:
    def fail() -> None:
        raise RewardError("no reward")

    calls = list[int]()
    result = world.on_first(lambda: calls.append(world.rank) or "scores")
    try:
        world.on_first(fail)
    except RewardError as error:
        return calls, result, str(error)
    return None


def _apart(world: World) -> str:
    world.require_equal("the same", "step 1")
    try:
        world.require_equal("other" if world.rank == 2 else "the same", "step 2")
    except TrainingError as error:
        return str(error)
    return ""


def _gradients(world: World) -> list[Any]:
    each, one, nobody, frozen = (Parameter(torch.zeros(2), requires_grad=name != "frozen") for name in ("", "", "", "frozen"))
    each.grad = torch.tensor([1.0, 10.0]) * (world.rank + 1)
    if world.rank == 1:
        one.grad = torch.tensor([2.0, 3.0])
    world.add_gradients([each, one, nobody, frozen])
    return [parameter.grad if parameter.grad is None else parameter.grad.tolist() for parameter in (each, one, nobody, frozen)]


def forward_with_spread_weights(folder: str) -> None:
    """Be one of two processes that share the weights, and store which of these are whole after a pass."""
    config = load_config("sums_tiny_cpu", {"training.processes": 2})
    with joined(2, 2, 60, torch.device("cpu")) as world:
        policy = open_policy(resolve_model(config.model.source), config, None, world)
        models = (policy, policy.frozen_copy())
        tokens = some_tokens(17, policy.device)
        for model in models:
            model.forward(tokens, range(tokens.num_rows))
        named = [pair for model in models for pair in model.model.named_parameters()]
        whole = [name for name, weight in named if not isinstance(weight, DTensor)]
    torch.save(whole, Path(folder) / f"whole_{world.rank}.pt")


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Starts processes."""
    with RankServer() as started:
        yield started


@pytest.fixture(scope="module")
def seen(server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Any]:
    """What each process has seen; empty if one failed."""
    folder = tmp_path_factory.mktemp("world")
    codes = server.run("tests.unit.test_ranks:in_each_process", str(folder), PROCESSES, folder)
    return [] if any(codes) else [torch.load(folder / f"seen_{rank}.pt") for rank in range(PROCESSES)]


def of_each(seen: Sequence[Any], name: str) -> list[Any]:
    assert len(seen) == PROCESSES, "a process has failed"
    return [one[name] for one in seen]


def test_prompts_are_shared_out_in_a_row_and_none_is_left(seen: Any) -> None:
    assert of_each(seen, "part") == [[0, 1], [2, 3], [4, 5, 6]]


def test_pieces_come_back_in_their_order_whoever_computed_them(seen: Any) -> None:
    results = [f"{name} by {number % PROCESSES}" for number, name in enumerate(NAMES)]
    assert [result for result, _ in of_each(seen, "dealt")] == [results] * PROCESSES


def test_each_process_computes_equally_often_and_what_it_repeats_does_not_count(seen: Any) -> None:
    calls = [calls for _, calls in of_each(seen, "dealt")]
    assert calls[0] == [("a", True), ("d", True), ("g", True)]
    assert calls[1] == [("b", True), ("e", True), ("a", False)]
    assert calls[2] == [("c", True), ("f", True), ("b", False)]
    assert of_each(seen, "few") == [(["a by 0"], [("a", rank == 0)]) for rank in range(PROCESSES)]


def test_each_gets_the_values_of_all(seen: Any) -> None:
    for values in of_each(seen, "gathered"):
        assert [value.tolist() for value in values] == [[0.0], [1.0] * 2, [2.0] * 3]


def test_the_first_alone_does_what_is_done_once_and_its_result_or_error_reaches_all(seen: Any) -> None:
    calls, *rest = zip(*of_each(seen, "first"), strict=True)
    assert calls == ([0], [], [])
    assert rest == [("scores",) * PROCESSES, ("no reward",) * PROCESSES]


def test_all_stop_where_one_is_told_to(seen: Any) -> None:
    assert of_each(seen, "stop") == ["STOP"] * PROCESSES
    assert of_each(seen, "nobody") == [None] * PROCESSES


def test_a_process_that_holds_something_else_is_named(seen: Any) -> None:
    for message in of_each(seen, "apart"):
        assert message == "rank 2: step 2 is not that of rank 0; the processes have come apart"


def test_gradients_are_added_up_and_a_missing_one_is_nothing(seen: Any) -> None:
    assert of_each(seen, "gradients") == [[[6.0, 60.0], [2.0, 3.0], None, None]] * PROCESSES


def test_one_process_does_it_all_by_itself() -> None:
    assert _dealt(SOLO, "ab") == (["a by 0", "b by 0"], [("a", True), ("b", True)])
    assert SOLO.on_first(lambda: 1) == 1


class Trainings:
    """Runs of the tiny model."""

    def __init__(self, server: RankServer, folder: Path, values: Any) -> None:
        """Begin with none."""
        self._server, self._folder, self._values = server, folder, values

    def of(self, options: dict[str, Any], processes: int = 1, shards: int = 1) -> RunDir:
        """Return a run that was trained by so many processes."""
        run = self.new(options, processes, shards)
        self._server.train(run, processes)
        return run

    def new(self, options: dict[str, Any], processes: int, shards: int) -> RunDir:
        """Return a run that has not begun."""
        layout = {"training.processes": processes, "training.shards": shards} if processes > 1 else {}
        config = validate_config(apply_overrides(self._values, {**OPTIONS, **options, **layout}))
        run = RunDir(self._folder / f"{len(options)} by {processes}x{shards}")
        run.create(config)
        prepare(config, run.data)
        return run


@pytest.fixture(scope="module")
def trainings(server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """What trains a model whose norms have learned something: a factor of 1 cannot be rounded."""
    folder, model = tmp_path_factory.mktemp("runs"), build_model()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    return Trainings(server, folder, build_values(folder / "model"))


def test_two_processes_take_the_steps_of_one_and_one_of_them_writes(trainings: Trainings) -> None:
    one, two = trainings.of({}), trainings.of({}, 2)
    agree(one, two)
    assert [record.kind for record in read_journal(two.journal_file)] == [
        record.kind for record in read_journal(one.journal_file)
    ]


def test_a_process_that_has_lost_another_does_not_say_why_the_run_ended(trainings: Trainings, server: RankServer) -> None:
    run = trainings.new({"training.steps": 9}, 2, 1)
    codes = server.run("tests.support.killed_rank:train_until_killed", f"{run.path} update", 2, run.path)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] > 0
    assert read_journal(run.journal_file)[-1].kind != "end"
    assert read_reasons(run.ranks)[0].kind == "lost"


def test_weights_that_are_spread_give_the_first_figures_of_one_process(trainings: Trainings) -> None:
    one, two = trainings.of(IN_BFLOAT16), trainings.of(IN_BFLOAT16, 2, 2)
    agree_at_first(one, two)
    norms = [read_journal(run.journal_file)[1].metrics["optim/grad_norm"] for run in (one, two)]
    assert norms[0] == pytest.approx(norms[1], rel=5e-3)


def test_no_weight_is_whole_after_a_forward_pass_be_it_of_a_layer_or_not(server: RankServer, tmp_path: Path) -> None:
    codes = server.run("tests.unit.test_ranks:forward_with_spread_weights", str(tmp_path), 2, tmp_path)
    assert codes == [0, 0]
    assert [torch.load(tmp_path / f"whole_{rank}.pt") for rank in range(2)] == [[], []]
