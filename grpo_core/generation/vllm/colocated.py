"""vLLM inside the training process, in an environment that has both: they may use a GPU's memory in turn.

`training.python` names the interpreter of such an environment; `make vllm ARGS=--trainer` makes one.
"""

import contextlib
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row
from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.client import INPUT_CACHES, MEASURED, Completion, Request, checked_completion
from grpo_core.generation.vllm.launch import GIB, HEAD_IN_FLOAT32, process_variables
from grpo_core.generation.vllm.pictured import Pictured, require_ids
from grpo_core.types import ModelInput

if TYPE_CHECKING:
    from grpo_core.generation.sampler import SamplingSettings

logger = logging.getLogger(__name__)


class ColocatedVllm:
    """vLLM in this process; one may be made in the life of a process. What it raises is vLLM's."""

    def __init__(self, config: RunConfig, model: Path) -> None:
        """Start it: it reads the model's folder, and has its weights.

        Args:
            config: of the run.
            model: folder of the initial policy.
        """
        settings, context = config.rollout.vllm, longest_row(config)
        os.environ.update({**process_variables(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"})
        logger.info("vLLM is starting in the training process, which may take minutes")
        with _process_kept():
            from vllm import LLM

            self._llm: Any = LLM(
                model=str(model),
                dtype=config.model.dtype,
                max_model_len=context,
                max_num_seqs=settings.in_flight,
                logprobs_mode="processed_logprobs",  # with the temperature, as the trainer's
                generation_config="vllm",  # no sampling settings from the model's folder
                # Seeded requests and chunks of prompts end the engine on a CPU, see `launch.command`.
                enable_chunked_prefill=False,
                max_num_batched_tokens=max(8192, context),
                kv_cache_memory_bytes=settings.kv_cache_gib * GIB,
                gpu_memory_utilization=0.01,  # what remains of it is a check at the start, when the trainer has its part
                enable_sleep_mode=settings.sleep,
                enforce_eager=True,
                hf_overrides=HEAD_IN_FLOAT32,
                weight_transfer_config={"backend": "grpo_file"},
            )
            self._llm.init_weight_transfer_engine({"init_info": {}})
            if settings.sleep:
                self._llm.sleep(level=1)
        self._sleeps = settings.sleep

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Inside, it has its memory; outside the trainer may have it: the weights are on the CPU, and the cache is gone."""
        if self._sleeps:
            self._llm.wake_up()
        try:
            yield
        finally:
            if self._sleeps:
                self._llm.sleep(level=1)

    def weight_version(self) -> str:
        """See `VllmClient.weight_version`."""
        return str(self._llm.get_weight_version())

    def load_weights(self, path: str, manifest: Mapping[str, Any], version: str) -> None:
        """See `VllmClient.load_weights`."""
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": {"path": path, "manifest": manifest}})
        self._llm.finish_weight_update(version)
        if self._llm.reset_prefix_cache() is not True:
            raise SamplerError("vLLM: the prefix cache was not emptied after new weights")
        for cache in INPUT_CACHES:
            getattr(self._llm.llm_engine, f"reset_{cache}_cache")()

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """See `VllmClient.prompt_logps`."""
        answers = self._generate(prompts, [MEASURED] * len(prompts), [None] * len(prompts))
        return [
            logp for prompt, answer in zip(prompts, answers, strict=True) for logp in _logps(answer.prompt_logprobs, prompt)
        ]

    def complete(
        self, requests: Sequence[Request], settings: "SamplingSettings", end_tokens: Sequence[int]
    ) -> list[Completion]:
        """See `VllmClient.complete`."""
        wanted = [request.wanted(settings, end_tokens) for request in requests]
        answers = self._generate([request.prompt.token_ids for request in requests], wanted, [one.pictured for one in requests])
        return [_completion(answer.outputs[0]) for answer in answers]

    def pictured_logps(self, prompt: ModelInput, pictured: Pictured) -> list[float]:
        """See `VllmClient.pictured_logps`."""
        (answer,) = self._generate([prompt.token_ids], [MEASURED], [pictured])
        return _logps(answer.prompt_logprobs, prompt.token_ids)

    def _generate(
        self, prompts: Sequence[Sequence[int]], wanted: Sequence[Mapping[str, Any]], pictured: Sequence[Pictured | None]
    ) -> Sequence[Any]:
        from vllm import SamplingParams

        rows = [
            {"prompt_token_ids": list(tokens) if seen is None else self._unexpanded(seen)}
            | ({} if seen is None else {"multi_modal_data": {"image": list(seen.images)}})
            for tokens, seen in zip(prompts, pictured, strict=True)
        ]
        params = [SamplingParams(detokenize=False, **params) for params in wanted]
        answers: Sequence[Any] = self._llm.generate(rows, params, use_tqdm=False)
        for tokens, seen, answer in zip(prompts, pictured, answers, strict=True):
            if seen is not None:
                require_ids(answer.prompt_token_ids, tokens)
        return answers

    def _unexpanded(self, seen: Pictured) -> list[int]:
        """Return the tokens of a text in which one stands for each image: vLLM puts those of its features in their places."""
        tokens: list[int] = self._llm.get_tokenizer()(seen.text, add_special_tokens=seen.add_special_tokens)["input_ids"]
        return tokens


def _logps(places: Sequence[Any], tokens: Sequence[int]) -> list[float]:
    return [float(place[token].logprob) for token, place in zip(tokens[1:], places[1:], strict=True)]


def _completion(output: Any) -> Completion:
    logps = [float(place[token].logprob) for token, place in zip(output.token_ids, output.logprobs, strict=True)]
    return checked_completion(output.token_ids, logps, output.finish_reason)


@contextlib.contextmanager
def _process_kept() -> Iterator[None]:
    """Undo what vLLM's start does to the process: it seeds all generators, and replaces a function of torch by a warning."""
    of_python, of_numpy, set_threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_num_threads = set_threads
