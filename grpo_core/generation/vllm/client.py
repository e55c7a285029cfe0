"""What is asked of a vLLM, and what it answers: here of a server at an address, in `colocated` in the training process.

Token ids go in; token ids and log-probabilities come out; nothing waits without a bound.
"""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row
from grpo_core.config.limits import SERVER_VARIABLE, is_on_this_machine
from grpo_core.errors import SamplerError, ServerGoneError, cause, raised_as, shown
from grpo_core.generation.vllm.pictured import Pictured, require_ids
from grpo_core.types import ModelInput

if TYPE_CHECKING:  # its module loads torch, which the command `grpo` does not
    from grpo_core.generation.sampler import SamplingSettings

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request: hundreds a step

INPUT_CACHES = ("encoder", "mm")
"""vLLM's caches of what encoders made of inputs, whose keys do not tell which weights did; emptied beside that of prefixes."""
KEY_VARIABLE = "GRPO_VLLM_KEY"
"""Environment variable with the key of a server that somebody else has started."""
CONNECT_SECONDS, CONTROL_SECONDS = 5.0, 60.0
COMPLETION_SECONDS = 600.0
"""For one completion, which waits for others: the server computes many at a time."""
MEASURED = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
"""What is asked for where a prompt's own tokens are measured."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion that is asked for."""

    prompt: ModelInput
    seed: int
    """Decides the tokens in float32, whatever else is computed at the same time."""
    pictured: Pictured | None = None
    """Of a prompt with images, which cannot be asked for by its tokens."""

    def wanted(self, settings: "SamplingSettings", end_tokens: Sequence[int]) -> dict[str, Any]:
        """Return it in vLLM's words."""
        return {
            "max_tokens": settings.max_completion_tokens,
            "temperature": settings.temperature,
            "seed": self.seed,
            "stop_token_ids": list(end_tokens),
            "ignore_eos": True,  # the trainer's end tokens decide, not those that the model's folder names
            "logprobs": 0,
        }


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What vLLM made of one request: tokens, the end included, and log-probabilities with the temperature applied."""

    token_ids: tuple[int, ...]
    logps: tuple[float, ...]


def checked_completion(tokens: Sequence[int], logps: Sequence[float], reason: object) -> Completion:
    """Return what vLLM answered as a completion.

    Args:
        tokens: that were drawn.
        logps: of them.
        reason: why it stopped, in vLLM's words.

    Raises:
        ServerGoneError: it was cut off: neither by an end token nor at the full length.
    """
    if reason not in ("stop", "length"):
        raise ServerGoneError(f"vLLM: a completion was cut off after {len(tokens)} tokens (finish_reason {shown(reason)})")
    return Completion(token_ids=tuple(tokens), logps=tuple(logps))


class VllmClient:
    """A server at an address; safe to use from several threads.

    Where it does not answer, or fails, its methods raise `ServerGoneError`, and `SamplerError` where it refuses.
    """

    def __init__(self, url: str, key: str | None, connections: int) -> None:
        """Connect lazily.

        Args:
            url: `http://host:port`.
            key: what the server asks for on every route; None = nothing.
            connections: requests at a time.
        """
        self.url = url.rstrip("/")
        # After an error the server may reset a connection that is kept, so each request has its own.
        headers = {"Connection": "close", **({"Authorization": f"Bearer {key}"} if key else {})}
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        transport = httpx.HTTPTransport(limits=limits, retries=2, trust_env=False)
        self._http = httpx.Client(base_url=self.url, headers=headers, transport=transport, trust_env=False)
        self._model, self._connections = "", connections

    def awake(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: a server keeps its memory."""
        return contextlib.nullcontext()

    def is_ready(self) -> bool:
        """Return whether the server answers that it is well."""
        try:
            return self._http.get("/health", timeout=CONNECT_SECONDS).is_success
        except httpx.HTTPError:
            return False

    def open_model(self, max_tokens: int) -> None:
        """Find the one model that the server has.

        Raises:
            SamplerError: it has none, several, or its context is shorter than `max_tokens`; or it is no vLLM.
            ServerGoneError: it does not answer.
        """
        unlike = f"rollout.vllm.url {self.url}: this is no answer of a vLLM server with one model ({{cause}})"
        with raised_as(SamplerError, unlike, LookupError, TypeError, ValueError):
            (model,) = self._ask("GET", "/v1/models")["data"]
            self._model, length = str(model["id"]), int(model["max_model_len"])
        if length < max_tokens:
            raise SamplerError(
                f"rollout.vllm.url {self.url}: its context is {length} tokens; rollout.max_prompt_tokens + "
                f"rollout.max_completion_tokens are {max_tokens}; start it with --max-model-len {max_tokens} or more"
            )

    def complete(
        self, requests: Sequence[Request], settings: "SamplingSettings", end_tokens: Sequence[int]
    ) -> list[Completion]:
        """Return a completion of each request: one of HTTP for each, as many at a time as there are connections."""
        with ThreadPoolExecutor(self._connections) as pool:
            try:
                return list(pool.map(lambda request: self._complete(request, settings, end_tokens), requests))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error, those that were not sent yet

    def _complete(self, request: Request, settings: "SamplingSettings", end_tokens: Sequence[int]) -> Completion:
        ids_alone = {"return_token_ids": True, "skip_special_tokens": False}
        wanted = {"model": self._model, "prompt": list(request.prompt.token_ids), **request.wanted(settings, end_tokens)}
        if request.pictured is not None:
            (choice,) = self._chat(request.prompt, request.pictured, {**wanted, **ids_alone, "logprobs": True})["choices"]
            logps = [one["logprob"] for one in choice["logprobs"]["content"]]
            return checked_completion(choice["token_ids"], logps, choice["finish_reason"])
        choice = self._ask("POST", "/v1/completions", {**wanted, **ids_alone}, COMPLETION_SECONDS)["choices"][0]
        return checked_completion(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return log p(token | those before it) of every token but the first of each prompt, at temperature 1."""

        def of_prompt(tokens: Sequence[int]) -> list[float]:
            wanted = {"model": self._model, "prompt": list(tokens), **MEASURED}
            return _logps(self._ask("POST", "/v1/completions", wanted)["choices"][0]["prompt_logprobs"], tokens)

        with ThreadPoolExecutor(self._connections) as pool:
            return [logp for logps in pool.map(of_prompt, prompts) for logp in logps]

    def pictured_logps(self, prompt: ModelInput, pictured: Pictured) -> list[float]:
        """Return the same of a prompt with images."""
        return _logps(self._chat(prompt, pictured, MEASURED)["prompt_logprobs"], prompt.token_ids)

    def _chat(self, prompt: ModelInput, pictured: Pictured, wanted: Mapping[str, Any]) -> Any:
        """Ask by text and images, as the route for tokens leaves images out; the server's tokens must be the prompt's."""
        body = {**{name: value for name, value in wanted.items() if name != "prompt"}, **pictured.as_chat()}
        answer = self._ask("POST", "/v1/chat/completions", {**body, "model": self._model}, COMPLETION_SECONDS)
        require_ids(answer["prompt_token_ids"], prompt.token_ids)
        return answer

    def weight_version(self) -> str:
        """Return the label of the weights that were last loaded; `default` since the start."""
        return str(self._ask("GET", "/weight_info")["weight_version"])

    def load_weights(self, path: str, manifest: Mapping[str, Any], version: str) -> None:
        """Load a file of weights, all of it or none, while no request is under way, and forget what was computed with others.

        Args:
            path: a safetensors file.
            manifest: {name: {"shape", "sha256"}} of its tensors.
            version: their label.
        """
        self._ask("POST", "/pause?mode=wait", {})
        self._ask("POST", "/init_weight_transfer_engine", {"init_info": {}})
        self._ask("POST", "/start_weight_update", {})
        self._ask("POST", "/update_weights", {"update_info": {"path": path, "manifest": manifest}}, COMPLETION_SECONDS)
        self._ask("POST", "/finish_weight_update", {"weight_version": version})
        if self._ask("POST", "/reset_prefix_cache", {})["success"] is not True:
            raise SamplerError(f"{self.url}: the prefix cache was not emptied after new weights")
        for cache in INPUT_CACHES:
            self._ask("POST", f"/reset_{cache}_cache", {})
        self._ask("POST", "/resume", {})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = CONTROL_SECONDS) -> Any:
        try:
            timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
            response = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise ServerGoneError(f"{self.url}{path}: no answer ({type(error).__name__}: {cause(error)})") from error
        if not response.is_success:
            kind = ServerGoneError if response.is_server_error else SamplerError
            raise kind(f"{self.url}{path}: refused with {response.status_code}: {shown(response.text, 300)}")
        return response.json() if response.content else None


def _logps(places: Sequence[Any], tokens: Sequence[int]) -> list[float]:
    return [float(place[str(token)]["logprob"]) for token, place in zip(tokens[1:], places[1:], strict=True)]


def connect(config: RunConfig) -> VllmClient:
    """Return a client of the server at `rollout.vllm.url`.

    Raises:
        ServerGoneError: it does not answer.
        SamplerError: it cannot be the sampler of this configuration, or is elsewhere and not the one in GRPO_VLLM_URL.
    """
    url = str(config.rollout.vllm.url)
    if not is_on_this_machine(url) and url != os.environ.get(SERVER_VARIABLE):  # the key is sent there
        raise SamplerError(f"rollout.vllm.url: {url} is not an address of this machine, nor the one in {SERVER_VARIABLE}")
    client = VllmClient(url, os.environ.get(KEY_VARIABLE), config.rollout.vllm.in_flight)
    client.open_model(longest_row(config))
    return client
