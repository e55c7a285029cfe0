"""The sampler of a run whose rollouts come from vLLM: fresh weights first, then one seeded request a completion."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo_core.errors import ServerGoneError, StaleWeightsError
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, sample_rows
from grpo_core.generation.vllm.client import VllmClient, reported
from grpo_core.generation.vllm.colocated import ColocatedVllm
from grpo_core.generation.vllm.engine import Completion, Request
from grpo_core.generation.vllm.weights import ProbeLogps, judge, probe_of, weights_file, weights_of
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt

logger = logging.getLogger(__name__)

VllmEngine = VllmClient | ColocatedVllm
RESTARTS = 2
"""How often within one call a server that was lost is started again."""


class VllmSampler:
    """Samples from a vLLM that holds a copy of the policy."""

    def __init__(
        self,
        connect: Callable[[], VllmEngine],
        policy: Policy,
        probe: Sequence[Sequence[int]],
        *,
        folder: Path,
        end: Callable[[], None] | None = None,
    ) -> None:
        """Connect at the first use.

        Args:
            connect: returns a vLLM that is ready, whatever weights it has; called again after a server was lost.
            policy: whose weights are sampled from, as they are at each call.
            probe: prompts whose log-probabilities show that vLLM uses these weights.
            folder: where the weights lie for a moment if they do not fit in shared memory.
            end: ends the server; None = it is somebody else's, and one that is lost cannot be started again.
        """
        self._connect, self._policy, self._folder = connect, policy, folder
        self._probe, self._restarts = probe_of(probe), 0 if end is None else RESTARTS
        self._end = end or (lambda: None)
        self._engine: VllmEngine | None = None
        self._version: str | None = None
        self._confirmed: ProbeLogps | None = None
        self._figures: dict[str, float] = {}

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. A server that is lost is started again, given the weights and asked for the same completions.

        Raises:
            StaleWeightsError: the server does not compute with the policy's weights.
            SamplerError: it refuses, or is lost for good.
        """
        for attempt in range(self._restarts + 1):
            try:
                engine = self._engine = self._engine or self._connect()
                with engine.awake():
                    self._hand_over_weights(engine)
                    requests = requests_of(prompts, settings.group_size, key)
                    completions = engine.complete(requests, settings, self._policy.eos_token_ids)
                    # A server may have taken the place of another, or somebody may have loaded other weights.
                    self._refuse_version(engine, str(self._version))
            except ServerGoneError as error:
                self._engine = self._version = self._confirmed = None
                if attempt == self._restarts:
                    raise
                logger.warning("%s; starting the vLLM server again for the same step", error)
            else:
                batch = as_batch(prompts, settings.group_size, completions, self._policy)
                return replace(batch, weights=str(self._version), figures=self._figures)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        """End the server, if it is this run's."""
        self._end()

    def _hand_over_weights(self, engine: VllmEngine) -> None:
        """Give it the policy's weights, unless it has them, and have it show that it uses them."""
        weights = weights_of(self._policy)
        version = weights.digest[:16]
        began = time.monotonic()
        self._figures = {}
        if version != self._version or engine.weight_version() != version:
            self._version = None  # until all of it has succeeded
            handing_over = reported(lambda: "vLLM is given the weights")
            with handing_over, weights_file(self._policy, self._folder) as path:
                engine.load_weights(str(path), weights.manifest, version)
            self._refuse_version(engine, version)
            self._figures = self._prove(engine)
            self._version = version
        self._figures["time/transfer_seconds"] = time.monotonic() - began

    def _prove(self, engine: VllmEngine) -> dict[str, float]:
        server = torch.tensor(engine.prompt_logps(self._probe), dtype=torch.float64)
        now = ProbeLogps(server=server, trainer=self._trainer_logps())
        figures = judge(now, self._confirmed, self._policy.dtype)
        if figures["conclusive"] or self._confirmed is None:
            self._confirmed = now
        return {f"sampler/probe/{name}": value for name, value in figures.items()}

    def _trainer_logps(self) -> torch.Tensor:
        """Return those of the probe's tokens, each but the first of its prompt, at temperature 1."""
        rest = [Completion(token_ids=tokens[1:], logps=(0.0,) * len(tokens[1:]), truncated=True) for tokens in self._probe]
        firsts = [
            Prompt(id=number, content="", text="", token_ids=tokens[:1], columns={})
            for number, tokens in enumerate(self._probe)
        ]
        rows = as_batch(firsts, 1, rest, self._policy)
        return replace(self._policy, temperature=1.0).logps(rows)[rows.completion_mask].double().cpu()

    def _refuse_version(self, engine: VllmEngine, version: str) -> None:
        found = engine.weight_version()
        if found == "default":
            raise ServerGoneError(f"{engine}: the server was started again meanwhile; its weights are those of its start")
        if found != version:
            raise StaleWeightsError(f"{engine}: vLLM has the weights {found}, the policy's are {version}")


def requests_of(prompts: Sequence[Prompt], group_size: int, key: RandomKey) -> list[Request]:
    """Return one request a completion, prompt by prompt, no two with the same seed."""
    rows, repeated = sample_rows(prompts, group_size), (prompt for prompt in prompts for _ in range(group_size))
    return [
        Request(prompt=prompt.model_input, seed=request_seed(key, *row)) for prompt, row in zip(repeated, rows, strict=True)
    ]


def as_batch(
    prompts: Sequence[Prompt], group_size: int, completions: Sequence[Completion], policy: Policy
) -> SampledCompletions:
    """Return completions, prompt by prompt, as the tensors of a step."""
    width = max(len(completion.token_ids) for completion in completions)
    ids = torch.full((len(completions), width), policy.eos_token_ids[0])
    mask = torch.zeros(len(completions), width, dtype=torch.bool)
    logps = torch.zeros(len(completions), width)
    for row, completion in enumerate(completions):
        length = len(completion.token_ids)
        ids[row, :length] = torch.tensor(completion.token_ids)
        mask[row, :length] = True
        logps[row, :length] = torch.tensor(completion.logps)
    device = policy.device
    return SampledCompletions(
        prompts=tuple(prompts),
        group_size=group_size,
        completion_ids=ids.to(device),
        completion_mask=mask.to(device),
        sampling_per_token_logps=logps.to(device),
    )


def request_seed(key: RandomKey, prompt_id: int, completion_index: int) -> int:
    """Return the seed of one completion's request, 63 bits: a hash, as servers make the seeds of neighbours by adding one."""
    parts = f"{key.seed}/{int(key.stream)}/{key.step}/{prompt_id}/{completion_index}"
    return int.from_bytes(hashlib.sha256(parts.encode()).digest()[:8]) >> 1
