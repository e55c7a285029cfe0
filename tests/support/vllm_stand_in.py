"""A vLLM without vLLM: a model in this process, with the weights that it is given, and no seed's tokens depend on another's."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file

from grpo_core.config import RunConfig
from grpo_core.generation.sampler import SamplingSettings
from grpo_core.generation.vllm import opening
from grpo_core.generation.vllm.client import Completion, Request
from grpo_core.policy.loading import load_model
from grpo_core.policy.sources.find import resolve_model


class StandIn:
    """Does what `VllmClient` asks a server for."""

    def __init__(self, config: RunConfig) -> None:
        """Hold the weights of a run's initial policy."""
        self._model, self._version = load_model(resolve_model(config.model.source)), "default"

    def awake(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which it can be asked."""
        return contextlib.nullcontext()

    def weight_version(self) -> str:
        """Return that of the weights it was given last."""
        return self._version

    @torch.no_grad()
    def load_weights(self, path: str, manifest: Mapping[str, Any], version: str) -> None:
        """Take the weights in a file."""
        own, given = dict(self._model.named_parameters()), load_file(path)
        assert own.keys() == given.keys() == manifest.keys()
        for name, tensor in given.items():
            own[name].copy_(tensor)
        self._version = version

    @torch.no_grad()
    def _logps(self, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        logits: torch.Tensor = self._model(input_ids=torch.tensor([list(ids)])).logits[0]
        return (logits.float() / temperature).log_softmax(-1)

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return those of all tokens but the first of each prompt."""
        rows = [(self._logps(ids), ids[1:]) for ids in prompts]
        return [float(row[at, token]) for row, ids in rows for at, token in enumerate(ids)]

    def complete(self, requests: Sequence[Request], settings: SamplingSettings, ends: Sequence[int]) -> list[Completion]:
        """Return one completion a request."""
        return [self._completion(request, settings, ends) for request in requests]

    def _completion(self, request: Request, settings: SamplingSettings, ends: Sequence[int]) -> Completion:
        random, ids, logps = torch.Generator().manual_seed(request.seed), list[int](), list[float]()
        while len(ids) < settings.max_completion_tokens and not (ids and ids[-1] in ends):
            row = self._logps([*request.prompt.token_ids, *ids], settings.temperature)[-1]
            ids.append(int(torch.multinomial(row.exp(), 1, generator=random)))
            logps.append(float(row[ids[-1]]))
        return Completion(token_ids=tuple(ids), logps=tuple(logps))


def train(run_dir: str) -> int:
    """Be a rank of a training whose server is the stand-in; the first one alone may ask for it."""
    from tests.support import ranks

    def connect(config: RunConfig) -> Any:
        assert os.environ.get("RANK", "0") == "0"
        return StandIn(config)

    opening.connect = connect  # type: ignore[assignment]
    return ranks.train(run_dir)
