"""Whether a run can also be tracked as its configuration asks (`tracking.also`)."""

import importlib.util

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, raised_as


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
