"""Rails of runs that a deployment has started: the code that their parameters may not name, and files that are not quoted.

They guard against mistakes, and against a client that may only start runs. Whoever holds the secret of Prefect's API can
register another deployment and run any code as the worker's user; docs/security.md says what that means.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, find_config, load_config
from grpo_core.config.code import Code, code_in, is_allowed
from grpo_core.config.presets import FOLDERS, find_sweep
from grpo_core.config.vllm_limits import SERVER_VARIABLE
from grpo_core.errors import ConfigError, listed, shown
from grpo_core.sweep.plan import Plan, load_sweep
from tasks.process.context import is_deployed

ALLOWED_VARIABLE = "GRPO_ALLOWED_REWARDS"
"""Modules, separated by commas, whose functions deployments may name as rewards; set by whoever starts the worker."""
REMEDY = "or start the run with `grpo` at a terminal of the worker's machine"


def refuse_code(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations that run code, or name a server, which the worker's owner has not allowed.

    At a terminal everything is allowed.

    Raises:
        ConfigError: names each key, its value and the remedy.
    """
    if not is_deployed():
        return
    modules, configs = allowed_modules(), list(configs)
    codes = dict.fromkeys(code for config in configs for code in code_in(config) if not is_allowed(code, modules))
    named = {config.rollout.vllm.url for config in configs}
    urls = sorted(url for url in named if url not in (None, os.environ.get(SERVER_VARIABLE)))
    if codes or urls:
        raise ConfigError(listed([*map(_refusal, codes), *map(_refused_server, urls)]))


def allowed_modules() -> tuple[str, ...]:
    """Return the modules that this worker's owner has allowed."""
    names = os.environ.get(ALLOWED_VARIABLE, "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def module_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of modules, each once and in order.

    Raises:
        ConfigError: a name is not that of a module.
    """
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--allow-reward {shown(name)}: is not the name of a module, such as my_rewards or mine.rewards")
    return tuple(sorted(set(names)))


def _refusal(code: Code) -> str:
    given = f"{code.key}: {shown(code.value)}"
    if code.module is None:
        return f"{given} runs code, which a deployment may not; leave it out, {REMEDY}"
    how = f"`grpo up --allow-reward {code.module}` (or {ALLOWED_VARIABLE} of the worker)"
    return f"{given} is code of a module that is not allowed for deployments; its owner allows it with {how}, {REMEDY}"


def _refused_server(url: str | None) -> str:
    return (
        f"rollout.vllm.url: {shown(url)} is not the server that the worker's owner allows deployments, in {SERVER_VARIABLE}; "
        f"leave it out, {REMEDY}"
    )


def load_allowed(config: str, overrides: Mapping[str, Any]) -> RunConfig:
    """Return what `load_config` does, within the rails.

    Raises:
        ConfigError: as `load_config`; or it runs code that is not allowed.
    """
    with unquoted(config):
        resolved = load_config(config, overrides)
    refuse_code([resolved])
    return resolved


def load_allowed_sweep(file: str, overrides: Mapping[str, Any]) -> Plan:
    """Return what `load_sweep` does, within the rails.

    Raises:
        ConfigError: as `load_sweep`; or one of its arms runs code that is not allowed.
    """
    with unquoted(str(find_sweep(file)), load_sweep), unquoted(str(overrides.get("base", ""))):
        plan = load_sweep(file, overrides)
    refuse_code_of_sweep(plan)
    return plan


def refuse_code_of_sweep(plan: Plan) -> None:
    """Refuse a sweep of which any arm runs code that is not allowed.

    Raises:
        ConfigError: as `refuse_code`.
    """
    if is_deployed():
        refuse_code(plan.configs)


@contextmanager
def unquoted(file: str, load: Callable[[str], object] = load_config) -> Iterator[None]:
    """Keep the content of a file that is no configuration out of the errors of a deployed run: they are stored and shown.

    Files of the worker's folder and presets are quoted, hidden ones (`.grpo/`, `.env`) are not.

    Args:
        file: the file, or the name of a preset; empty = there is none.
        load: reads it by itself; raises ConfigError where it is not what it should be.

    Raises:
        ConfigError: the error from inside, or, for another file that is no configuration by itself, one without its content.
    """
    try:
        yield
    except ConfigError:
        if not file or not is_deployed() or _is_of_project(find_config(file)) or _loads(file, load):
            raise
        raise ConfigError(
            f"{file}: is not a valid configuration; messages of deployed runs do not quote files outside of the worker's "
            f"folder: `grpo check {file}` does, on the worker's machine"
        ) from None


def _is_of_project(path: Path) -> bool:
    try:
        resolved = path.expanduser().resolve()
    except (OSError, RuntimeError):  # too long for a file name; ~ of an unknown user
        return True
    for root in (Path.cwd(), *FOLDERS):
        if resolved.is_relative_to(root.resolve()):
            return not any(part.startswith(".") for part in resolved.relative_to(root.resolve()).parts)
    return False


def _loads(file: str, load: Callable[[str], object]) -> bool:
    try:
        load(file)
    except ConfigError:
        return False
    return True
