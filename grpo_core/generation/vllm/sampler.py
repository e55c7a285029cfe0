"""The sampler of a run whose rollouts come from a vLLM server: fresh weights first, then one seeded request a completion."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from grpo_core.config import RunConfig
from grpo_core.errors import SamplerError, ServerGoneError, StaleWeightsError
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings
from grpo_core.generation.vllm.client import KEY_VARIABLE, Completion, VllmClient
from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.proof import ProbeLogps, Verdict, judge, probe_tokens
from grpo_core.generation.vllm.server import ServerSettings, find_python
from grpo_core.generation.vllm.waiting import reported
from grpo_core.generation.vllm.weights import weights_file, weights_of
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt

logger = logging.getLogger(__name__)

RESTARTS = 2
"""How often within one call a server that was lost is started again."""


class VllmSampler:
    """Samples from a server that holds a copy of the policy."""

    def __init__(
        self,
        connect: Callable[[], VllmClient],
        policy: Policy,
        probe: Sequence[Sequence[int]],
        *,
        in_flight: int,
        folder: Path,
        end: Callable[[], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """Connect at the first use.

        Args:
            connect: returns a client of a server that is ready, whatever weights it has; called again after a server was lost.
            policy: whose weights are sampled from, as they are at each call.
            probe: prompts whose log-probabilities show that the server uses these weights.
            in_flight: requests at a time.
            folder: where the weights lie for a moment if they do not fit in shared memory.
            end: ends the server; None = it is somebody else's, and one that is lost cannot be started again.
            leave: leaves a server that has passed every check to the next run; None = it is ended.
        """
        self._connect, self._policy, self._folder = connect, policy, folder
        self._probe, self._in_flight, self._restarts = probe_tokens(probe), in_flight, 0 if end is None else RESTARTS
        self._end = end or (lambda: None)
        self._leave = leave or self._end
        self._client: VllmClient | None = None
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
                client = self._fresh_client()
                completions = self._complete(client, prompts, settings, key)
                self._refuse_other_weights(client)
            except ServerGoneError as error:
                self._client = self._version = self._confirmed = None
                if attempt == self._restarts:
                    raise
                logger.warning("%s; starting the vLLM server again for the same step", error)
            except SamplerError:
                self._version = None  # such a server is left to nobody
                raise
            else:
                batch = as_batch(prompts, settings.group_size, completions, self._policy)
                return replace(batch, weights=str(self._version), figures=self._figures)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        """End the server, if it is this run's; one that has the run's weights is left to the next run where servers stay."""
        (self._end if self._version is None else self._leave)()

    def _fresh_client(self) -> VllmClient:
        """Return a client whose server has the policy's weights, and has shown that it uses them."""
        client = self._client = self._client or self._connect()
        weights = weights_of(self._policy)
        version = weights.digest[:16]
        began = time.monotonic()
        self._figures = {}
        if version != self._version or client.weight_version() != version:
            self._version = None  # until all of it has succeeded
            handing_over = reported(lambda: "the vLLM server is given the weights")
            with handing_over, weights_file(self._policy, self._folder) as path:
                client.load_weights(str(path), weights.manifest, version)
            self._refuse_version(client, version)
            self._figures = self._prove(client).figures()
            self._version = version
        self._figures["time/transfer_seconds"] = time.monotonic() - began
        return client

    def _prove(self, client: VllmClient) -> Verdict:
        with ThreadPoolExecutor(self._in_flight) as pool:
            server = [logp for logps in pool.map(client.prompt_logps, self._probe) for logp in logps]
        now = ProbeLogps(server=torch.tensor(server, dtype=torch.float64), trainer=self._trainer_logps())
        verdict = judge(now, self._confirmed, self._policy.dtype)
        if verdict.is_conclusive or self._confirmed is None:
            self._confirmed = now
        return verdict

    def _trainer_logps(self) -> torch.Tensor:
        """Return those of the probe's tokens, each but the first of its prompt, in float32 at temperature 1."""
        after_first = [
            Completion(token_ids=tokens[1:], logps=(0.0,) * len(tokens[1:]), truncated=True) for tokens in self._probe
        ]
        prompts = [
            Prompt(id=number, content="", text="", token_ids=tokens[:1], columns={})
            for number, tokens in enumerate(self._probe)
        ]
        rows = as_batch(prompts, 1, after_first, self._policy)
        return replace(self._policy, temperature=1.0, dtype="float32").logps(rows)[rows.completion_mask].double().cpu()

    def _complete(
        self, client: VllmClient, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey
    ) -> list[Completion]:
        rows = [(prompt, index) for prompt in prompts for index in range(settings.group_size)]
        drawn: list[Completion] = []

        def complete(row: tuple[Prompt, int]) -> Completion:
            prompt, index = row
            return client.complete(prompt.token_ids, settings, request_seed(key, prompt.id, index), self._policy.eos_token_ids)

        with (
            ThreadPoolExecutor(self._in_flight) as pool,
            reported(lambda: f"{len(drawn)} of {len(rows)} completions from the vLLM server"),
        ):
            try:
                drawn.extend(completion for completion in pool.map(complete, rows))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error, those that were not sent yet
        return drawn

    def _refuse_other_weights(self, client: VllmClient) -> None:
        """Refuse a rollout in which a server took the place of another, or somebody loaded other weights."""
        assert self._version is not None
        self._refuse_version(client, self._version)

    def _refuse_version(self, client: VllmClient, version: str) -> None:
        found = client.weight_version()
        if found == "default":
            raise ServerGoneError(f"{client.url}: the server was started again meanwhile; its weights are those of its start")
        if found != version:
            raise StaleWeightsError(f"{client.url}: the server has the weights {found}, the policy's are {version}")


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


def open_vllm_sampler(config: RunConfig, policy: Policy, model: Path, prompts: Sequence[Prompt], folder: Path) -> VllmSampler:
    """Return the sampler of a run, with the server that the run starts, or the one at `rollout.vllm.url`.

    Args:
        config: the run's.
        policy: what is trained.
        model: the folder of the initial policy, for a server that is started here.
        prompts: of the training; the first ones are the probe.
        folder: the run's, for the server's log.

    Raises:
        SamplerError: a server is to be started and no environment with vLLM is found.
    """
    settings = config.rollout.vllm
    context = config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens
    server = None
    if settings.url is None:
        server = TrainingServer(
            ServerSettings(
                python=find_python(settings.python),
                model=model,
                dtype=config.model.dtype,
                context=context,
                threads=config.training.threads or len(os.sched_getaffinity(0)),
                kv_cache_gib=settings.kv_cache_gib,
                log_file=folder / "vllm.log",
            ),
            settings.in_flight,
        )

    def connect() -> VllmClient:
        if server is not None:
            client = server.start()
        else:
            client = VllmClient(str(settings.url), os.environ.get(KEY_VARIABLE), settings.in_flight)
        client.open_model(context)
        return client

    probe = [prompt.token_ids for prompt in prompts]
    end, leave = (None, None) if server is None else (server.stop, server.leave)
    return VllmSampler(connect, policy, probe, in_flight=settings.in_flight, folder=folder, end=end, leave=leave)
