"""A policy whose weights are spread: what each process keeps of it, and that what is sampled is what is trained."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.config import load_config
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.parallel.world import World, joined, local
from grpo_core.policy import loading
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.sources.find import resolve_model
from grpo_core.training.update import build_optimizer
from grpo_core.types import Prompt
from tests.support.ranks import RankServer, logs_of

pytestmark = pytest.mark.proof

CPU = torch.device("cpu")
FP32 = 4


def opened(world: World, **changes: Any) -> tuple[Policy, torch.optim.Optimizer]:
    config = load_config("sums_tiny_cpu", {"training.processes": world.size, "training.microbatch_tokens": 40, **changes})
    policy = loading.open_policy(resolve_model(config.model.source), config, None, world)
    return policy, build_optimizer(policy.model, config.optimizer, total_steps=10)[0]


def sampled(policy: Policy, lengths: Sequence[int] = (3, 4, 5)) -> SampledCompletions:
    """Return two completions of each of some prompts, the same ones of the same policy."""
    prompts = [
        Prompt(id=number, content="", text="", token_ids=tuple(range(2, 2 + length)), columns={})
        for number, length in enumerate(lengths)
    ]
    asked = SamplingSettings(group_size=2, max_completion_tokens=6)
    return policy.sample(prompts, asked, RandomKey(seed=1, stream=Stream.TRAIN, step=1))


def backward(policy: Policy, batch: Any) -> list[Tensor]:
    """Return this process's rows of the gradient of a sum of log-probabilities."""
    policy.forward(batch, range(batch.num_rows)).logps.sum().backward()
    policy.end_passes()
    return [local(parameter.grad).clone() for parameter in policy.parameters() if parameter.grad is not None]


def move(policy: Policy, optimizer: torch.optim.Optimizer, batch: Any, lr: float) -> None:
    """Take a step of AdamW."""
    backward(policy, batch)
    optimizer.param_groups[0]["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def on_two(folder: str) -> None:
    """Be one of two processes with spread weights, and store what is asked about below."""
    with joined(2, 2, 60, CPU) as world:
        policy, optimizer = opened(world)
        first = sampled(policy)
        for _ in range(5):
            move(policy, optimizer, first, lr=0.0)
        seen = {"unmoved": torch.equal(sampled(policy).sampling_per_token_logps, first.sampling_per_token_logps)}
        gradients = backward(policy, first)
        optimizer.zero_grad(set_to_none=True)
        policy.measure(first)
        seen["undisturbed"] = all(map(torch.equal, gradients, backward(policy, first)))
        optimizer.zero_grad(set_to_none=True)
        move(policy, optimizer, first, lr=0.05)
        after = sampled(policy)
        seen |= {"sampled": after.sampling_per_token_logps, "measured": policy.logps(after)}
        seen["moved"] = float((policy.logps(first) - first.sampling_per_token_logps).abs().max())
        seen["saved"] = saved_matrices(opened(world, **{"model.dtype": "bfloat16"})[0])
    torch.save(seen, Path(folder) / f"seen_{world.rank}.pt")


def saved_matrices(policy: Policy) -> tuple[int, int]:
    """Return (how many weights a bfloat16 pass has noted for its backward pass, how many bytes of them are still there)."""
    # So few tokens that no activation has the shape of a matrix.
    batch, saved = sampled(policy, lengths=(7,)), list[Tensor]()
    shapes = {tuple(parameter.shape) for parameter in policy.parameters() if parameter.ndim == 2}

    def note(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) in shapes or tuple(tensor.shape[::-1]) in shapes:
            saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        figures = policy.forward(batch, range(batch.num_rows))
    size = sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}.values())
    figures.logps.sum().backward()
    policy.end_passes()
    return len(saved), size


def on_four(folder: str) -> None:
    """Be one of four processes, and store the bytes of weights, moments, reference and initial policy, here and in all."""
    with joined(4, 4, 60, CPU) as world:
        policy, optimizer = opened(world)
        reference = Reference(policy)
        reference.leave_initial()
        move(policy, optimizer, sampled(policy), lr=1e-3)
        moments = [moment for state in optimizer.state.values() for moment in state.values() if moment.ndim]
        models = [policy.model, reference.current.model, reference.initial.model]
        tensors = [*moments, *(parameter for model in models for parameter in model.parameters())]
        found = (
            sum(local(tensor).untyped_storage().nbytes() for tensor in tensors),
            sum(tensor.numel() * FP32 for tensor in tensors),
        )
    torch.save(found, Path(folder) / f"seen_{world.rank}.pt")


def on_two_replicas(folder: str) -> None:
    """Be one of four processes, two replicas of two shards, and store after how many seconds each group gives up."""
    with joined(4, 2, 7, CPU) as world:
        assert world.mesh is not None
        groups = [world.mesh.get_group(name) for name in ("replicas", "shards")]
        found = [group._get_backend(CPU).options._timeout.total_seconds() for group in groups]
    torch.save(found, Path(folder) / f"seen_{world.rank}.pt")


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Starts processes."""
    with RankServer() as started:
        yield started


def run(server: RankServer, function: Any, processes: int, folder: Path) -> list[Any]:
    codes = server.run(f"{__name__}:{function.__name__}", str(folder), processes, folder)
    assert not any(codes), logs_of(folder)
    return [torch.load(folder / f"seen_{rank}.pt") for rank in range(processes)]


@pytest.fixture(scope="module")
def two(server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Any]:
    """What each of two processes has seen."""
    return run(server, on_two, 2, tmp_path_factory.mktemp("two"))


def test_every_group_of_processes_gives_up_after_collective_seconds(server: RankServer, tmp_path: Path) -> None:
    assert run(server, on_two_replicas, 4, tmp_path) == [[7.0, 7.0]] * 4


def test_with_a_learning_rate_of_0_the_sampler_gives_the_same_bits(two: Any) -> None:
    assert [seen["unmoved"] for seen in two] == [True, True]


def test_passes_without_gradient_leave_the_gradient_as_it_is(two: Any) -> None:
    assert [seen["undisturbed"] for seen in two] == [True, True]


def test_after_a_large_step_the_sampler_has_the_weights_that_are_trained(two: Any) -> None:
    for seen in two:
        torch.testing.assert_close(seen["sampled"], seen["measured"], rtol=1e-4, atol=1e-5)
        assert seen["moved"] > 0.5


def test_after_a_forward_pass_in_bfloat16_no_weight_is_kept(two: Any) -> None:
    for count, size in (seen["saved"] for seen in two):
        assert count >= 7
        assert size == 0


def test_each_of_four_processes_keeps_a_quarter_of_the_states(server: RankServer, tmp_path: Path) -> None:
    for here, everywhere in run(server, on_four, 4, tmp_path):
        assert here == pytest.approx(everywhere / 4, rel=1e-2)
