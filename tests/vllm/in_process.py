"""Run by vLLM's interpreter: what a colocated vLLM draws, and what its faults lead to.

Arguments: a model's folder, a file that holds the mistake of the faulty engine. Prints one line of JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import vllm
from grpo_core.config import load_config
from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.colocated import ColocatedVllm
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.loading import load_model
from grpo_core.policy.policy import Policy
from grpo_core.policy.sources.find import load_tokenizer
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move

COLOCATED = {
    "rollout.engine": "vllm",
    "rollout.vllm": {"mode": "colocate", "in_flight": 16, "kv_cache_gib": 1},
    "rollout.max_prompt_tokens": 112,
    "rollout.max_completion_tokens": 16,
    "model.dtype": "float32",
}
MISTAKES = ("nothing", "head not packed", "one stale", "half")


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except SamplerError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(model: Path, fault: Path) -> None:
    real = vllm.LLM
    vllm.LLM = lambda **options: real(**{**options, "weight_transfer_config": {"backend": "grpo_faulty"}})  # type: ignore[misc]
    fault.write_text("")
    policy = Policy(model=load_model(model), tokenizer=load_tokenizer(model), eos_token_ids=(1,))
    config = load_config("quickstart", {**COLOCATED, "model.source": str(model)})
    engine = ColocatedVllm(config, model)
    sampler = VllmSampler(lambda: engine, policy, [prompt.token_ids for prompt in PROMPTS], folder=fault.parent)

    def tokens() -> list[list[int]]:
        drawn = sampler.sample(PROMPTS[:2], SETTINGS, KEY)
        return [ids[mask].tolist() for ids, mask in zip(drawn.completion_ids, drawn.completion_mask, strict=True)]

    move(policy)
    first, again = tokens(), tokens()
    drawn = sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    difference = (policy.logps(drawn) - drawn.sampling_per_token_logps)[drawn.completion_mask].abs().max()
    refusals = {}
    for number, mistake in enumerate(MISTAKES):
        move(policy, seed=2 + number)
        fault.write_text(mistake)
        refusals[mistake] = refusal(tokens)
        fault.write_text("")
        refusals[f"after {mistake}"] = refusal(tokens)
    seen = {"first": first, "again": again, "difference": float(difference), "refusals": refusals}
    print(json.dumps(seen))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
