"""Whether this machine has what a run needs: for each process a slot, and a GPU where it uses one; its trackers."""

import importlib.util
from collections.abc import Iterable, Sequence

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, raised_as
from grpo_core.machine.gpus import visible_gpus
from grpo_core.machine.slots import require_slots, slot_limit
from grpo_core.parallel import processes_here
from grpo_core.run.fit import will_use_gpu


def require_places(configs: Iterable[RunConfig]) -> None:
    """Refuse runs that could never start here.

    Raises:
        ConfigError: one has more processes on this machine than there are slots, or visible GPUs for a run that uses them.
    """
    for config in configs:
        count, gpus = processes_here(config.training.processes), len(visible_gpus())
        if 0 < gpus < count and will_use_gpu(config):
            raise ConfigError(f"training.processes: {count} on this machine take {count} GPUs, and {gpus} are visible")
        require_slots(count)


def require_trackers(config: RunConfig) -> None:
    """Refuse a run that is also tracked where nothing can be sent from here.

    Raises:
        ConfigError: a tracker of `tracking.also` is not installed, or W&B has no login.
    """
    for name in config.tracking.also:
        if (found := importlib.util.find_spec(name)) is None or found.origin is None:  # or a folder of that name lies here
            raise ConfigError(
                f"tracking.also: {name} is not installed here; `pip install 'grpo-flow[{name}]'` installs it, or leave it out"
            )
    if "wandb" in config.tracking.also:
        import wandb

        remedy = "`wandb login` or WANDB_API_KEY gives it one; WANDB_MODE=offline needs neither a login nor a network"
        with raised_as(ConfigError, f"tracking.also: wandb cannot be used ({{cause}}): {remedy}", Exception):
            mode = wandb.setup(wandb.Settings(silent=True)).settings.mode
            if mode == "online" and not wandb.login(prompt=False, verify=False):
                raise LookupError("it has no login")


def runs_at_a_time(configs: Sequence[RunConfig]) -> int:
    """Return how many of a sweep's runs have GPUs of their own here at a time; 1 where they use none."""
    places = slot_limit() or len(visible_gpus()) if any(map(will_use_gpu, configs)) else 1
    return max(1, places // max(config.training.processes for config in configs))
