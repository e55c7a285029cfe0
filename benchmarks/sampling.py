"""Tokens per second of the embedded sampler, of transformers' `generate` and of a vLLM server: `make bench-sampling`.

All three have the same model, type, prompts, threads and number of tokens: end tokens are ignored, so that no completion ends
early. They take turns, so that another process on the machine slows each of them down alike, and each turn has prompts of its
own, as the steps of a training have. Sampling alone is measured, without the server's start and the transfer of weights.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.training import turns
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.opening import ENVIRONMENT, PYTHON_VARIABLE, VllmServer
from grpo_core.generation.vllm.sampler import requests_of
from grpo_core.machine.hardware import avoid_broken_kernels, core_count
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.forward import pad_left
from grpo_core.policy.loading import load_model
from grpo_core.policy.policy import BatchLimits, Policy
from grpo_core.policy.sources.find import load_tokenizer, resolve_model
from grpo_core.types import Prompt

NO_TOKEN = -1
"""An end token that is never drawn."""
PROMPTS = 16
"""Prompts of a batch; each is completed batch / 16 times."""
Engine = Callable[[Sequence[Prompt], SamplingSettings, RandomKey], int]
"""Samples; returns how many tokens it made."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and write a JSON file."""
    options = _options(arguments)
    avoid_broken_kernels()
    torch.set_num_threads(options.threads)
    folder = resolve_model(options.model)
    policy = Policy(model=load_model(folder), tokenizer=load_tokenizer(folder), eos_token_ids=(NO_TOKEN,), dtype=options.dtype)
    before = os.getloadavg()
    with ExitStack() as stack:
        engines = {name: stack.enter_context(ENGINES[name](policy, folder, options)) for name in options.engines}
        seconds = measure(engines, policy, options)
    speeds = rates(seconds, options.tokens)
    asked = {key: getattr(options, key) for key in ("model", "dtype", "threads", "tokens")}
    turns.write(options.output, before, {**asked, "seconds": seconds, "tokens_per_second": speeds})
    print(table(speeds, options))


def measure(engines: dict[str, Engine], policy: Policy, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return {batch: {engine: seconds of each repetition}}."""
    planned = [(batch, turn) for batch in options.batches for turn in range(options.repetitions)]
    found: dict[str, dict[str, list[float]]] = {str(batch): {name: [] for name in engines} for batch in options.batches}
    for engine in engines.values():  # the first products of a process choose and pack their kernels
        engine(prompts_of(policy, 0), SamplingSettings(group_size=1, max_completion_tokens=4), _key(0))
    for number, (batch, turn) in enumerate(planned, start=1):
        settings = SamplingSettings(group_size=batch // PROMPTS, max_completion_tokens=options.tokens)
        for name, engine in engines.items():
            began = time.monotonic()
            made = engine(prompts_of(policy, number), settings, _key(number))
            spent = time.monotonic() - began
            if made != batch * options.tokens:
                raise RuntimeError(f"{name} made {made} tokens instead of {batch} x {options.tokens}")
            found[str(batch)][name].append(spent)
            print(
                f"[{number}/{len(planned)}] batch {batch}, repetition {turn + 1}, {name}: {made / spent:.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    return found


def rates(seconds: dict[str, dict[str, list[float]]], tokens: int) -> dict[str, dict[str, float]]:
    """Return {batch: {engine: tokens per second}} by the median of the repetitions."""
    return {
        batch: {name: int(batch) * tokens / statistics.median(spent) for name, spent in engines.items()}
        for batch, engines in seconds.items()
    }


def table(found: dict[str, dict[str, float]], options: argparse.Namespace) -> str:
    """Return tokens per second as a table in Markdown, with the ratio to the first engine."""
    lines = [
        f"{options.model}, {options.dtype}, {options.tokens} tokens each, {options.threads} thread(s), median of "
        f"{options.repetitions}: tokens/s (ratio to {options.engines[0]})",
        "",
        f"| batch | {' | '.join(options.engines)} |",
        f"|---:|{'---:|' * len(options.engines)}",
    ]
    for batch, engines in found.items():
        first = engines[options.engines[0]]
        cells = [f"{rate:.0f} ({rate / first:.2f})" for rate in engines.values()]
        lines.append(f"| {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def prompts_of(policy: Policy, turn: int) -> tuple[Prompt, ...]:
    """Return the prompts of a turn: the quickstart's, with other numbers in each turn."""
    texts = [
        f"State the final answer to the following arithmetic problem: {(37 * turn + 13 * number) % 90 + 10} - "
        f"{(53 * turn + 29 * number) % 90 + 10} ="
        for number in range(PROMPTS)
    ]
    ids = policy.tokenizer(texts)["input_ids"]
    return tuple(Prompt(id=number, content="", text="", token_ids=tuple(row), columns={}) for number, row in enumerate(ids))


@contextmanager
def embedded(policy: Policy, folder: Path, options: argparse.Namespace) -> Iterator[Engine]:  # noqa: ARG001
    """Yield the embedded sampler, all rows at once."""
    path = SamplingPath.fastest(policy.model, policy.dtype, may_pack=True)
    whole = replace(policy, limits=BatchLimits(rollout_rows=max(options.batches)), path=path)
    yield lambda prompts, settings, key: int(whole.sample(prompts, settings, key).lengths().sum())


@contextmanager
def transformers(policy: Policy, folder: Path, options: argparse.Namespace) -> Iterator[Engine]:
    """Yield `generate` on a model in the wanted type; unlike the other two it returns no log-probabilities."""
    model: Any = load_model(folder).to(getattr(torch, options.dtype)) if options.dtype != "float32" else policy.model

    @torch.no_grad()
    def generate(prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> int:
        torch.manual_seed(key.step)
        rows = [prompt.model_input for prompt in prompts for _ in range(settings.group_size)]
        ids, mask = pad_left(rows, model.device)
        made = model.generate(
            ids,
            attention_mask=mask.long(),
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_new_tokens=settings.max_completion_tokens,
            max_new_tokens=settings.max_completion_tokens,
            pad_token_id=0,
        )
        return int(made[:, ids.shape[1] :].numel())

    yield generate


@contextmanager
def vllm(policy: Policy, folder: Path, options: argparse.Namespace) -> Iterator[Engine]:
    """Yield a server on the same folder, asked for as many completions at a time as the batch has."""
    python = Path(os.environ.get(PYTHON_VARIABLE) or ENVIRONMENT)
    if not python.is_file():
        sys.exit(
            f"no environment with vLLM ({python}): run `make vllm`, name its interpreter in {PYTHON_VARIABLE}, or leave "
            "vllm out of --engines"
        )
    context = max(len(prompt.token_ids) for prompt in prompts_of(policy, 0)) + 8 + options.tokens
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as private:
        settings = ServerSettings(
            python=python,
            model=folder,
            dtype=options.dtype,
            context=context,
            threads=options.threads,
            kv_cache_gib=options.kv_cache_gib,
            log_file=Path(private) / "vllm.log",
        )
        server = VllmServer(settings, max(options.batches))
        try:
            print("starting the vLLM server", file=sys.stderr, flush=True)
            client = server.start()
            client.open_model(context)

            def complete(prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> int:
                requests = requests_of(prompts, settings.group_size, key)
                return sum(len(completion.token_ids) for completion in client.complete(requests, settings, ()))

            yield complete
        finally:
            server.stop()


ENGINES = {"embedded": embedded, "transformers": transformers, "vllm": vllm}


def _key(turn: int) -> RandomKey:
    return RandomKey(seed=0, stream=Stream.TRAIN, step=turn)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2-135m", help="as model.source (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--batches", nargs="+", type=int, default=[16, 64, 256], help=f"multiples of {PROMPTS}")
    parser.add_argument("--tokens", type=int, default=64, help="of each completion (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=core_count(), help="of each engine (default: the cores, %(default)s)")
    parser.add_argument("--kv-cache-gib", type=int, default=2, help="of the server on a CPU (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("build/bench_sampling.json"))
    options = parser.parse_args(arguments)
    if wrong := [batch for batch in options.batches if batch < PROMPTS or batch % PROMPTS]:
        parser.error(f"--batches {wrong}: expected multiples of {PROMPTS}")
    return options


if __name__ == "__main__":
    main()
