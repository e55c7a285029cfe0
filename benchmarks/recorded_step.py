"""Record the drift of a trained policy, completion by completion: the data of tests/unit/test_recorded_step.py.

python -m benchmarks.recorded_step RUN_DIR --step 50 --prompts 300 --completions 12 --out FILE.npz

Arrays, one row a completion: `prompt` (id), `tokens`, and `k1`, `k3`, `full`: the sums over its tokens of the estimators and
of the exact KL(policy || initial policy), in nats.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from grpo_core.algorithm.kl import k1, k3
from grpo_core.data.prepare import load_frozen
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.checkpoint import POLICY_FOLDER
from grpo_core.policy.device import pin_threads
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.policy.saved import checkpoint_name, stored_initial
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import config_here, find_model
from grpo_core.types import Prompt

Arrays = dict[str, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample completions of held-out prompts (where these are too few, of training prompts, too) and write the arrays."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded_step", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--step", type=int, required=True, help="of a checkpoint")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--completions", type=int, default=12, help="of each prompt")
    parser.add_argument("--out", type=Path, required=True, help="NPZ to write")
    options = parser.parse_args(arguments)
    run_dir = RunDir(options.run_dir)
    config = config_here(run_dir)
    pin_threads(config.training)
    train_prompts, held_out = load_frozen(run_dir.data)
    prompts = (*held_out, *train_prompts)[: options.prompts]
    initial = open_policy(find_model(run_dir), config, stored_initial(run_dir.checkpoints))
    policy = open_policy(run_dir.checkpoints / str(checkpoint_name(options.step)) / POLICY_FOLDER, config)
    settings = replace(SamplingSettings.of(config.rollout), group_size=options.completions)
    key = RandomKey(seed=config.training.seed, stream=Stream.EVAL, step=options.step)
    at_once = max(1, config.training.rollout_rows // options.completions)
    parts = [
        record(policy, initial, prompts[first : first + at_once], settings, key) for first in range(0, len(prompts), at_once)
    ]
    np.savez_compressed(options.out, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def record(policy: Policy, initial: Policy, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> Arrays:
    """Return the arrays of some prompts."""
    completions = policy.sample(prompts, settings, key)
    exact = policy.measure(completions, initial)
    assert exact.full_kl is not None
    log_ratio, mask = initial.logps(completions) - exact.logps, completions.completion_mask
    figures = {"k1": k1(log_ratio), "k3": k3(log_ratio), "full": exact.full_kl}
    sums = {name: torch.where(mask, values, 0.0).double().sum(dim=1).cpu().numpy() for name, values in figures.items()}
    rows = np.repeat([prompt.id for prompt in prompts], settings.group_size)
    return {"prompt": rows, "tokens": completions.lengths().cpu().numpy(), **sums}


if __name__ == "__main__":
    main()
