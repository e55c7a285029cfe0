"""Whether this machine has a place for each process of a run: a slot, and a GPU where it uses one."""

from collections.abc import Iterable, Sequence

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
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


def runs_at_a_time(configs: Sequence[RunConfig]) -> int:
    """Return how many of a sweep's runs have GPUs of their own here at a time; 1 where they use none."""
    places = slot_limit() or len(visible_gpus()) if any(map(will_use_gpu, configs)) else 1
    return max(1, places // max(config.training.processes for config in configs))
