"""The routes of a vLLM server: token ids in, token ids and log-probabilities out; nothing waits without a bound."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row
from grpo_core.config.limits import SERVER_VARIABLE, is_on_this_machine
from grpo_core.errors import SamplerError, ServerGoneError, cause, shown
from grpo_core.generation.vllm.engine import INPUT_CACHES, Completion, Request, checked_completion
from grpo_core.generation.vllm.waiting import reported

if TYPE_CHECKING:  # its module loads torch, which the command `grpo` does not
    from grpo_core.generation.sampler import SamplingSettings

KEY_VARIABLE = "GRPO_VLLM_KEY"
"""Environment variable with the key of a server at `rollout.vllm.url`."""
CONNECT_SECONDS, CONTROL_SECONDS = 5.0, 60.0
COMPLETION_SECONDS = 600.0
"""For one completion, which waits for others: the server computes many at a time."""
logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request: hundreds a step
TRIES = 3
"""Of a completion that was answered with an error or not at all: it is seeded, so its repetition is the same."""


class TooSlowError(ServerGoneError):
    """No answer in the time that is given for one: to ask again would only make the wait longer."""


class VllmClient:
    """A server at an address; safe to use from several threads."""

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
        timeout = httpx.Timeout(CONTROL_SECONDS, connect=CONNECT_SECONDS, pool=None)
        self._http = httpx.Client(base_url=self.url, headers=headers, limits=limits, timeout=timeout, trust_env=False)
        self._model, self._connections = "", connections

    def __str__(self) -> str:
        """Return the address."""
        return self.url

    def awake(self) -> AbstractContextManager[None]:
        """Do nothing: a server keeps its memory."""
        return nullcontext()

    def is_ready(self) -> bool:
        """Return whether the server answers that it is well."""
        try:
            return self._http.get("/health", timeout=CONNECT_SECONDS).is_success
        except httpx.HTTPError:
            return False

    def open_model(self, max_tokens: int) -> None:
        """Find the model that the server has.

        Raises:
            SamplerError: it has none, several, or its context is shorter than `max_tokens`.
            ServerGoneError: it does not answer.
        """
        answer = self._get("/v1/models")
        models = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], dict):
            raise SamplerError(f"rollout.vllm.url {self.url}: the server must have one model, it answers {shown(answer)}")
        length = models[0].get("max_model_len") or 0
        if length < max_tokens:
            raise SamplerError(
                f"rollout.vllm.url {self.url}: its context is {length} tokens; rollout.max_prompt_tokens + "
                f"rollout.max_completion_tokens are {max_tokens}; start it with --max-model-len {max_tokens} or more"
            )
        self._model = str(models[0].get("id"))

    def complete(
        self, requests: Sequence[Request], settings: "SamplingSettings", end_tokens: Sequence[int]
    ) -> list[Completion]:
        """See `VllmEngine.complete`: one request a completion, as many at a time as there are connections."""
        drawn: list[Completion] = []
        with (
            ThreadPoolExecutor(self._connections) as pool,
            reported(lambda: f"{len(drawn)} of {len(requests)} completions from the vLLM server"),
        ):
            try:
                drawn.extend(pool.map(lambda request: self._complete(request, settings, end_tokens), requests))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error, those that were not sent yet
        return drawn

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """See `VllmEngine.prompt_logps`."""
        with ThreadPoolExecutor(self._connections) as pool:
            return [logp for logps in pool.map(self._prompt_logps, prompts) for logp in logps]

    def _complete(self, request: Request, settings: "SamplingSettings", end_tokens: Sequence[int]) -> Completion:
        wanted = {
            "model": self._model,
            "prompt": list(request.prompt),
            "max_tokens": settings.max_completion_tokens,
            "temperature": settings.temperature,
            "seed": request.seed,
            "stop_token_ids": list(end_tokens),
            "ignore_eos": True,  # the trainer's end tokens decide, not those that the server knows
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        tries = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, ServerGoneError) and not isinstance(error, TooSlowError)),
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(multiplier=1, max=8),
            reraise=True,
        )
        answer = tries(self._post, "/v1/completions", wanted, COMPLETION_SECONDS)
        try:
            choice = answer["choices"][0]
            tokens, logps = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
            reason = choice["finish_reason"]
        except (LookupError, TypeError) as error:
            raise SamplerError(f"{self.url}: the answer to a completion has no tokens: {shown(answer)}") from error
        try:
            return checked_completion(tokens, logps, reason, settings, end_tokens)
        except ServerGoneError as error:
            raise ServerGoneError(f"{self.url}: {error}") from error

    def _prompt_logps(self, tokens: Sequence[int]) -> list[float]:
        wanted = {"model": self._model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answer = self._post("/v1/completions", wanted)
        try:
            found = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(place[str(token)]["logprob"]) for token, place in zip(tokens[1:], found, strict=True)]
        except (LookupError, TypeError, ValueError) as error:
            raise SamplerError(f"{self.url}: the answer has no log-probabilities of the prompt: {shown(answer)}") from error

    def weight_version(self) -> str:
        """Return the label of the weights that were last loaded; `default` since the start."""
        answer = self._get("/weight_info")
        if not isinstance(answer, dict) or "weight_version" not in answer:
            raise SamplerError(f"{self.url}/weight_info: the answer has no version of the weights: {shown(answer)}")
        return str(answer["weight_version"])

    def load_weights(self, path: str, manifest: Mapping[str, Any], version: str) -> None:
        """See `VllmEngine.load_weights`; no request is under way meanwhile."""
        self._post("/pause?mode=wait", {})
        self._post("/init_weight_transfer_engine", {"init_info": {}})
        self._post("/start_weight_update", {})
        self._post("/update_weights", {"update_info": {"path": path, "manifest": manifest}}, COMPLETION_SECONDS)
        self._post("/finish_weight_update", {"weight_version": version})
        answer = self._post("/reset_prefix_cache", {})
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise SamplerError(f"{self.url}: the prefix cache was not emptied after new weights")
        for cache in INPUT_CACHES:
            self._post(f"/reset_{cache}_cache", {})
        self._post("/resume", {})

    def _get(self, path: str) -> Any:
        return self._send(lambda: self._http.get(path), path)

    def _post(self, path: str, body: Mapping[str, Any], seconds: float = CONTROL_SECONDS) -> Any:
        return self._send(lambda: self._http.post(path, json=body, timeout=seconds), path)

    def _send(self, request: Any, path: str) -> Any:
        try:
            response = request()
        except httpx.ReadTimeout as error:
            raise TooSlowError(f"{self.url}{path}: no answer in time") from error
        except httpx.HTTPError as error:
            raise ServerGoneError(f"{self.url}{path}: no answer ({type(error).__name__}: {cause(error)})") from error
        if response.is_server_error:
            raise ServerGoneError(f"{self.url}{path}: answered {response.status_code}: {shown(response.text, 300)}")
        if not response.is_success:
            raise SamplerError(f"{self.url}{path}: refused with {response.status_code}: {shown(response.text, 300)}")
        try:
            return response.json() if response.content else None
        except json.JSONDecodeError as error:
            raise SamplerError(f"{self.url}{path}: the answer is not JSON: {shown(response.text)}") from error


def connect(config: RunConfig) -> VllmClient:
    """Return a client of the server at `rollout.vllm.url`.

    Raises:
        ServerGoneError: it does not answer.
        SamplerError: it cannot be the sampler of this configuration, or is elsewhere and not the one in GRPO_VLLM_URL.
    """
    settings, url = config.rollout.vllm, str(config.rollout.vllm.url)
    if not is_on_this_machine(url) and url != os.environ.get(SERVER_VARIABLE):
        raise SamplerError(
            f"rollout.vllm.url: {url} is not an address of this machine, nor the one in {SERVER_VARIABLE}; set that where "
            "the server mounts the memory through which weights are handed over"
        )
    client = VllmClient(url, os.environ.get(KEY_VARIABLE), settings.in_flight)
    client.open_model(longest_row(config))
    return client
