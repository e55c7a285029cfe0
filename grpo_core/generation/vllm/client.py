"""The routes of a vLLM server: token ids in, token ids and log-probabilities out; nothing waits without a bound."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row
from grpo_core.config.limits import SERVER_VARIABLE, is_on_this_machine
from grpo_core.errors import SamplerError, ServerGoneError, cause, raised_as, shown
from grpo_core.types import ModelInput

if TYPE_CHECKING:
    from grpo_core.generation.sampler import SamplingSettings

INPUT_CACHES = ("encoder", "mm")
"""vLLM's caches of what encoders made of inputs, whose keys do not tell which weights did; emptied beside that of prefixes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion that is asked for."""

    prompt: ModelInput
    seed: int
    """Decides the tokens in float32, whatever else is computed at the same time."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What vLLM made of one request."""

    token_ids: tuple[int, ...]
    """The end token included."""
    logps: tuple[float, ...]
    """Of these tokens, under the policy with the temperature applied."""
    truncated: bool


def checked_completion(
    tokens: Sequence[int], logps: Sequence[float], reason: object, settings: "SamplingSettings", end_tokens: Sequence[int]
) -> Completion:
    """Return what vLLM answered as a completion.

    Args:
        tokens: that were drawn.
        logps: of them.
        reason: why it stopped, in vLLM's words.
        settings: what was asked for.
        end_tokens: at any of which a completion ends.

    Raises:
        ServerGoneError: it was cut off: neither an end token nor the full length.
    """
    ends = bool(tokens) and tokens[-1] in end_tokens
    whole = len(tokens) == len(logps) and (ends or len(tokens) == settings.max_completion_tokens)
    if not whole or reason not in ("stop", "length"):
        why = f"{len(tokens)} tokens, {len(logps)} log-probabilities, finish_reason {shown(reason)}"
        raise ServerGoneError(f"vLLM: a completion was cut off ({why})")
    return Completion(token_ids=tuple(tokens), logps=tuple(logps), truncated=not ends)


logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request: hundreds a step

KEY_VARIABLE = "GRPO_VLLM_KEY"
"""Environment variable with the key of a server that somebody else has started."""
CONNECT_SECONDS, CONTROL_SECONDS = 5.0, 60.0
COMPLETION_SECONDS = 600.0
"""For one completion, which waits for others: the server computes many at a time."""
TRIES = 3
"""Of a completion that was answered with an error or not at all: it is seeded, so its repetition is the same."""
REPORT_SECONDS = 30.0


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
            SamplerError: it has none, several, or its context is shorter than `max_tokens`.
            ServerGoneError: it does not answer.
        """
        with self._understood():
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

    def _complete(self, request: Request, settings: "SamplingSettings", end_tokens: Sequence[int]) -> Completion:
        wanted = {
            "model": self._model,
            "prompt": list(request.prompt.token_ids),
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
            retry=retry_if_exception(_is_worth_another_try),
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(multiplier=1, max=8),
            reraise=True,
        )
        with self._understood():
            choice = tries(self._ask, "POST", "/v1/completions", wanted, COMPLETION_SECONDS)["choices"][0]
            tokens, logps = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            return checked_completion(tokens, logps, choice["finish_reason"], settings, end_tokens)

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return log p(token | those before it) of every token but the first of each prompt, at temperature 1."""
        with ThreadPoolExecutor(self._connections) as pool:
            return [logp for logps in pool.map(self._prompt_logps, prompts) for logp in logps]

    def _prompt_logps(self, tokens: Sequence[int]) -> list[float]:
        wanted = {"model": self._model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        with self._understood():
            found = self._ask("POST", "/v1/completions", wanted)["choices"][0]["prompt_logprobs"][1:]
            return [float(place[str(token)]["logprob"]) for token, place in zip(tokens[1:], found, strict=True)]

    def weight_version(self) -> str:
        """Return the label of the weights that were last loaded; `default` since the start."""
        with self._understood():
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
        with self._understood():
            if self._ask("POST", "/reset_prefix_cache", {})["success"] is not True:
                raise SamplerError(f"{self.url}: the prefix cache was not emptied after new weights")
        for cache in INPUT_CACHES:
            self._ask("POST", f"/reset_{cache}_cache", {})
        self._ask("POST", "/resume", {})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = CONTROL_SECONDS) -> Any:
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        try:
            response = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise ServerGoneError(f"{self.url}{path}: no answer ({type(error).__name__}: {cause(error)})") from error
        if not response.is_success:
            kind = ServerGoneError if response.is_server_error else SamplerError
            raise kind(f"{self.url}{path}: refused with {response.status_code}: {shown(response.text, 300)}")
        with self._understood():
            return response.json() if response.content else None

    def _understood(self) -> contextlib.AbstractContextManager[None]:
        """Raise whatever goes wrong inside with an answer as one error."""
        message = f"{self.url}: this is no answer of a vLLM server with one model ({{cause}})"
        return raised_as(SamplerError, message, LookupError, TypeError, ValueError)


def _is_worth_another_try(error: BaseException) -> bool:
    """Return whether it was not a lack of time: to ask again would only make that wait longer."""
    return isinstance(error, ServerGoneError) and not isinstance(error.__cause__, httpx.ReadTimeout)


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


@contextlib.contextmanager
def reported(what: Callable[[], str]) -> Iterator[None]:
    """Log, every 30 s while inside, what is waited for and for how long.

    Args:
        what: returns it in words; called from a thread.
    """
    began, done = time.monotonic(), threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            logger.info("%s, %.0f s so far", what(), time.monotonic() - began)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
