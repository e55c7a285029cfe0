"""The sampler of a run whose rollouts come from vLLM: fresh weights first, then one seeded request a completion.

The weights are a file for a vLLM on the same machine, with a manifest of what must be in it, which the plugin checks. That they
are used is shown by a probe: log-probabilities of fixed tokens on both sides.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grpo_core.errors import GrpoError, SamplerError, ServerGoneError, StaleWeightsError, TrainingError, cause
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, sample_rows
from grpo_core.generation.vllm.client import Completion, Request, VllmClient
from grpo_core.generation.vllm.colocated import ColocatedVllm
from grpo_core.generation.vllm.pictured import Pictured, pictured_by
from grpo_core.machine.disk import free_bytes, is_full_disk
from grpo_core.parallel.sharded import gathered, is_spread
from grpo_core.policy.device import is_out_of_memory
from grpo_core.policy.policy import Policy
from grpo_core.policy.weights import as_on_hub
from grpo_core.types import Prompt

logger = logging.getLogger(__name__)

VllmEngine = VllmClient | ColocatedVllm
TRIES = 3
"""Of one call whose server was lost: all is seeded, so its repetition is the same."""
MEMORY = Path("/dev/shm")
"""Where files are memory."""
MOST_TOKENS = 256
MOST_PICTURED = 2
"""Prompts with images of a probe: each is read whole."""
MOST_DIFFERENCE = 1e-4
"""In float32, of any token, in nats."""
MOST_RMS = 5e-5
"""In float32, of the change since the last weights, root mean square over tokens."""
OVER_ROUNDING = 4.0
"""In bfloat16, of a change that is judged, whose slope equal rounding before and after it moves by at most 2 / 4
(Cauchy-Schwarz); and at most, of what the server's change differs from the trainer's."""
LEAST_FOLLOWED = 0.5


def manifest_of(policy: Policy) -> dict[str, dict[str, Any]]:
    """Return {name: {"shape", "sha256"}} of the live weights, in the type that the server holds them in.

    Raises:
        TrainingError: a weight is not finite.
    """
    tensors = _tensors(policy)
    if broken := [name for name, value in tensors.items() if not bool(value.isfinite().all())]:
        raise TrainingError(f"the policy's weights are not finite and are not sent to the server: {broken[0]}")
    return {
        name: {"shape": list(tensor.shape), "sha256": hashlib.sha256(tensor.view(torch.uint8).numpy().data).hexdigest()}
        for name, tensor in tensors.items()
    }


@contextlib.contextmanager
def weights_file(policy: Policy, folder: Path) -> Iterator[Path]:
    """Write the weights where both processes can read them, and remove them at the end: memory, or `folder` if that is full."""
    tensors = _tensors(policy)
    size = sum(tensor.nbytes for tensor in tensors.values())
    place = MEMORY if os.access(MEMORY, os.W_OK) and free_bytes(MEMORY) > 2 * size else folder
    with tempfile.TemporaryDirectory(prefix="grpo-weights-", dir=place) as private:
        path = Path(private) / "weights.safetensors"
        save_file(tensors, path)
        yield path


def _tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """Return each parameter once, by its name in transformers, with its adapter: a tied head has none of its own.

    Of a model that reads images, by the names in its folder, by which vLLM has found the weights of its tower.
    """
    dtype = getattr(torch, policy.dtype)
    copy = is_spread(policy.model)  # memory that NumPy has seen could not be given back
    weights = dict(policy.merged_weights())
    named = weights if policy.images is None else as_on_hub(policy.model, weights)
    return {name: value.to(device="cpu", dtype=dtype, copy=copy).contiguous() for name, value in named.items()}


def probe_of(prompts: Sequence[Sequence[int]], most: int = MOST_TOKENS) -> list[tuple[int, ...]]:
    """Return the first prompts, each once, with `most` log-probabilities in all: of all tokens but the first of each.

    >>> probe_of([[5, 6, 7], [8], [5, 6, 7], [5, 6, 8, 9]], most=4)
    [(5, 6, 7), (5, 6, 8)]
    """
    chosen: list[tuple[int, ...]] = []
    for prompt in dict.fromkeys(map(tuple, prompts)):
        cut = prompt[: most + 1]
        if len(cut) > 1:
            chosen.append(cut)
            most -= len(cut) - 1
    return chosen


@dataclass(frozen=True, kw_only=True)
class ProbeLogps:
    """Log-probabilities of the same fixed tokens on both sides, under one version of the weights."""

    server: Float[Tensor, " N"]
    trainer: Float[Tensor, " N"]


def judge(now: ProbeLogps, confirmed: ProbeLogps | None, dtype: str) -> dict[str, float]:
    """Compare both sides of a probe, and their changes since the weights that were `confirmed` last.

    Returns:
        {name: value} of the figures `sampler/probe/<name>`

    Raises:
        StaleWeightsError: the server computes with other weights than the trainer's.
    """
    if not bool(now.server.isfinite().all()):
        raise StaleWeightsError("vLLM computes with broken weights: its log-probabilities are not finite")
    difference, moved, missed, followed = float((now.server - now.trainer).abs().max()), 0.0, 0.0, 1.0
    is_exact, over_rounding = dtype == "float32", inf
    if confirmed is not None:
        of_trainer, of_server = now.trainer - confirmed.trainer, now.server - confirmed.server
        moved, missed = _rms(of_trainer), _rms(of_server - of_trainer)
        followed = float((of_server @ of_trainer) / of_trainer.square().sum()) if moved else 1.0
        over_rounding = OVER_ROUNDING * _rms(confirmed.server - confirmed.trainer)
    is_conclusive, most_missed = is_exact or moved > over_rounding, MOST_RMS if is_exact else over_rounding
    differs = missed > most_missed or (is_exact and difference > MOST_DIFFERENCE)
    if followed < LEAST_FOLLOWED and (differs if is_exact else is_conclusive):
        raise StaleWeightsError(
            f"vLLM computes with old weights: its log-probabilities moved {followed:.2f} times as far as the trainer's"
        )
    if differs:
        raise StaleWeightsError(
            f"vLLM computes with other weights than the trainer's: a log-probability differs by {difference:.2g} nats, the "
            f"changes since the last weights by {missed:.2g} (at most {MOST_DIFFERENCE:g} in float32, and {most_missed:.2g})"
        )
    figures = {"difference": difference, "moved": moved, "missed": missed, "conclusive": float(is_conclusive)}
    return figures if confirmed is None else {**figures, "followed": followed}


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


class VllmSampler:
    """Samples from a vLLM that holds a copy of the policy."""

    def __init__(
        self,
        connect: Callable[[], VllmEngine],
        policy: Policy,
        probe: Sequence[Sequence[int]],
        *,
        folder: Path,
        end: Callable[[], None] = lambda: None,
        pictured: Sequence[Prompt] = (),
        add_special_tokens: bool = False,
    ) -> None:
        """Connect at the first use.

        Args:
            connect: returns a vLLM that is ready, whatever weights it has; called again after a server was lost.
            policy: whose weights are sampled from, as they are at each call.
            probe: prompts whose log-probabilities show that vLLM uses these weights.
            folder: where the weights lie for a moment if they do not fit in shared memory.
            end: ends the server, if it is this run's.
            pictured: prompts with images; those among the first that have text behind them belong to the probe.
            add_special_tokens: whether prompts were made with those of the tokenizer.
        """
        self._connect, self._policy, self._folder, self._end = connect, policy, folder, end
        self._probe, self._pictured = probe_of(probe), pictured_by(policy, add_special_tokens=add_special_tokens)
        read = (prompt for prompt in pictured if self._behind_images(prompt) < len(prompt.token_ids))
        self._seen = tuple(itertools.islice(read, MOST_PICTURED))
        self._engine: VllmEngine | None = None
        self._version: str | None = None
        self._confirmed: ProbeLogps | None = None

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. A server that is lost is started again, given the weights and asked for the same completions.

        Of several processes, the first does it and hands the completions to the others.

        Raises:
            StaleWeightsError: the server does not compute with the policy's weights.
            SamplerError: it refuses, or is lost for good.
        """
        with gathered(self._policy.model):
            return self._policy.world.on_first(lambda: self._ask(prompts, settings, key))

    def close(self) -> None:
        """End the server, if it is this run's."""
        self._end()

    def _ask(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        is_lost, tries = retry_if_exception_type(ServerGoneError), stop_after_attempt(TRIES)
        try:
            return Retrying(retry=is_lost, stop=tries, after=self._forget, reraise=True)(self._sample, prompts, settings, key)
        except Exception as error:
            if isinstance(error, GrpoError) or is_out_of_memory(error) or is_full_disk(error):  # the trainer's own
                raise
            raise SamplerError(f"vLLM cannot be used: {cause(error)}") from error

    def _forget(self, attempt: RetryCallState) -> None:
        logger.warning("%s; a vLLM server is asked again for the same step", attempt.outcome and attempt.outcome.exception())
        self._engine = self._version = self._confirmed = None

    def _sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        engine = self._engine = self._engine or self._connect()
        with engine.awake():
            figures, version = self._hand_over_weights(engine)
            requests = requests_of(prompts, settings.group_size, key, self._pictured)
            completions = engine.complete(requests, settings, self._policy.eos_token_ids)
            # A server may have taken the place of another, or somebody may have loaded other weights.
            _refuse_version(engine, version)
        return replace(as_batch(prompts, settings.group_size, completions, self._policy), weights=version, figures=figures)

    def _hand_over_weights(self, engine: VllmEngine) -> tuple[dict[str, float], str]:
        """Give it the policy's weights, unless it has them, and have it show that it uses them; return figures and version."""
        began, figures, manifest = time.monotonic(), dict[str, float](), manifest_of(self._policy)
        version = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
        if version != self._version or engine.weight_version() != version:
            self._version = None  # until all of it has succeeded
            with weights_file(self._policy, self._folder) as path:
                engine.load_weights(str(path), manifest, version)
            _refuse_version(engine, version)
            figures = self._prove(engine)
            self._version = version
        return {**figures, "time/transfer_seconds": time.monotonic() - began}, version

    def _prove(self, engine: VllmEngine) -> dict[str, float]:
        found = engine.prompt_logps(self._probe)
        for prompt in self._seen:
            pictured = self._pictured(prompt)
            assert pictured is not None
            found += engine.pictured_logps(prompt.model_input, pictured)[self._behind_images(prompt) - 1 :]
        now = ProbeLogps(server=torch.tensor(found, dtype=torch.float64), trainer=self._trainer_logps())
        figures = judge(now, self._confirmed, self._policy.dtype)
        if figures["conclusive"] or self._confirmed is None:
            self._confirmed = now
        return {f"sampler/probe/{name}": value for name, value in figures.items()}

    def _trainer_logps(self) -> torch.Tensor:
        """Return those of the probe's tokens at temperature 1: of each prompt all but the first, or those behind its images."""
        whole = [Prompt(id=0, content="", text="", token_ids=tokens, columns={}) for tokens in self._probe]
        parts = [*((prompt, 1) for prompt in whole), *((prompt, self._behind_images(prompt)) for prompt in self._seen)]
        rest = [Completion(token_ids=one.token_ids[at:], logps=(0.0,) * (len(one.token_ids) - at)) for one, at in parts]
        firsts = [replace(one, id=number, token_ids=one.token_ids[:at]) for number, (one, at) in enumerate(parts)]
        rows = as_batch(firsts, 1, rest, self._policy)
        with torch.no_grad():  # one pass, of this process alone
            found = replace(self._policy, temperature=1.0).forward(rows, range(rows.num_rows))
        return found.logps[rows.completion_mask].double().cpu()

    def _behind_images(self, prompt: Prompt) -> int:
        """Return the place of the first token of a prompt that comes after all that stand for its images."""
        assert self._policy.images is not None
        placeholder = self._policy.images.processor.placeholder_id
        return len(prompt.token_ids) - prompt.token_ids[::-1].index(placeholder)


def _refuse_version(engine: VllmEngine, version: str) -> None:
    found = engine.weight_version()
    if found == "default":
        raise ServerGoneError("the vLLM server was started again meanwhile; its weights are those of its start")
    if found != version:
        raise StaleWeightsError(f"vLLM has the weights {found}, the policy's are {version}")


def requests_of(
    prompts: Sequence[Prompt],
    group_size: int,
    key: RandomKey,
    pictured: Callable[[Prompt], Pictured | None] = lambda _: None,
) -> list[Request]:
    """Return one request a completion, prompt by prompt, no two with the same seed; see `pictured_by`."""
    rows, asked = sample_rows(prompts, group_size), ((one, pictured(one)) for one in prompts)
    repeated = (pair for pair in asked for _ in range(group_size))
    return [
        Request(prompt=prompt.model_input, seed=request_seed(key, *row), pictured=seen)
        for (prompt, seen), row in zip(repeated, rows, strict=True)
    ]


def as_batch(
    prompts: Sequence[Prompt], group_size: int, completions: Sequence[Completion], policy: Policy
) -> SampledCompletions:
    """Return completions, prompt by prompt, as the tensors of a step."""
    tokens = [torch.tensor(completion.token_ids) for completion in completions]
    lengths, device = torch.tensor([len(row) for row in tokens]), policy.device
    ids = pad_sequence(tokens, batch_first=True, padding_value=policy.eos_token_ids[0])
    logps = pad_sequence([torch.tensor(completion.logps) for completion in completions], batch_first=True)
    return SampledCompletions(
        prompts=tuple(prompts),
        group_size=group_size,
        completion_ids=ids.to(device),
        completion_mask=(torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).to(device),
        sampling_per_token_logps=logps.to(device),
    )


def request_seed(key: RandomKey, prompt_id: int, completion_index: int) -> int:
    """Return the seed of one completion's request, 63 bits: a hash, as servers make the seeds of neighbours by adding one."""
    of_completion = f"{key.seed}/{int(key.stream)}/{key.step}/{prompt_id}/{completion_index}"
    return int.from_bytes(hashlib.sha256(of_completion.encode()).digest()[:8]) >> 1
