"""Rails of runs that a deployment has started: code, servers and files that they may not name, and files that are not quoted.

They guard against mistakes, and against a client that may only start runs. Whoever holds the secret of Prefect's API can
register another deployment and run any code as the worker's user; docs/security.md says what that means.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import Resolved, RunConfig, find_config, load, load_config
from grpo_core.config.code import Code, code_in, is_allowed
from grpo_core.config.limits import SERVER_VARIABLE
from grpo_core.config.presets import FOLDERS, find_sweep
from grpo_core.errors import ConfigError, listed, shown
from grpo_core.machine.sqlite import sqlite_file
from grpo_core.run.flow_folder import ROOTS_VARIABLE, allowed_roots
from grpo_core.sweep.plan import Plan, load_sweep
from grpo_core.sweep.schema import STUDY_VARIABLE
from grpo_core.text import kept_uri
from tasks.credentials import ALLOWED_VARIABLE as ALLOWED_ADDRESSES_VARIABLE
from tasks.credentials import allowed_addresses, environment_uri, is_same_address
from tasks.process.context import is_deployed

ALLOWED_VARIABLE = "GRPO_ALLOWED_REWARDS"
"""Modules, separated by commas, whose functions deployments may name as rewards; set by whoever starts the worker."""
TRACKING_VARIABLE, SOURCES_VARIABLE = ALLOWED_ADDRESSES_VARIABLE, "GRPO_ALLOWED_SOURCES"
"""Addresses, separated by commas, at which deployments may track; folders, separated as in PATH, that they may read."""
REMEDY = "or start the run with `grpo` at a terminal of the worker's machine"


@dataclass(frozen=True, kw_only=True)
class Rail:
    """A key whose value a deployment may not choose freely."""

    key: str
    is_allowed: Callable[[str], bool]
    what: str
    """What is allowed, for the message."""

    def refusals(self, values: Iterable[Any]) -> list[str]:
        """Return why values are refused; none of the default is."""
        refused = sorted({value for value in values if value is not None and not self.is_allowed(value)})
        return [f"{self.key}: {shown(value)} is not {self.what}; leave it out, {REMEDY}" for value in refused]


def _may_track(uri: str) -> bool:
    """A sweep hands its runs the store beside it, which lies in a folder of runs or below one."""
    file = sqlite_file(uri)
    is_of_runs = file is not None and file.name == "mlflow.db" and _is_below(file, _run_roots())
    return is_of_runs or any(is_same_address(uri, own) for own in (environment_uri() or "", *allowed_addresses()))


def may_read(path: str) -> bool:
    """Return whether deployed flows may read a file or folder."""
    from grpo_core.policy.sources.cache import cache_folder

    more = [Path(part) for part in os.environ.get(SOURCES_VARIABLE, "").split(os.pathsep) if part]
    return _is_below(Path(path), (Path.cwd(), *FOLDERS, *_run_roots(), cache_folder(), *more))


def _may_be_source(source: str) -> bool:
    """Names of a hub have no rules here: what is no path of this machine is asked for there."""
    is_path = source.startswith(("/", "~", ".")) or os.path.lexists(source)
    return source.startswith(("bundled:", "scratch:")) or not is_path or may_read(source)


def _may_be_data(source: str) -> bool:
    kind, _, name = source.partition(":")
    return may_read(name) if kind == "file" else kind != "hub" or _may_be_source(name)


def _run_roots() -> tuple[Path, ...]:
    return allowed_roots(os.environ.get(ROOTS_VARIABLE))


_READABLE = (
    "in a folder that deployments read: the worker's, its runs, its cache (nothing hidden there), and those that its owner "
    f"allows in {SOURCES_VARIABLE}"
)
TRACKING = Rail(
    key="tracking.uri",
    is_allowed=_may_track,
    what=f"the worker's own address, nor one that its owner allows in {TRACKING_VARIABLE}",
)
SERVER = Rail(
    key="rollout.vllm.url",
    is_allowed=lambda url: url == os.environ.get(SERVER_VARIABLE),
    what=f"the server that the worker's owner allows deployments, in {SERVER_VARIABLE}",
)
MODEL = Rail(key="model.source", is_allowed=_may_be_source, what=_READABLE)
ADAPTER = Rail(key="model.lora.init_from", is_allowed=_may_be_source, what=_READABLE)
DATA = Rail(key="data.source", is_allowed=_may_be_data, what=_READABLE)
STUDY = Rail(
    key="study",
    is_allowed=lambda url: url == kept_uri(os.environ.get(STUDY_VARIABLE, "")),
    what=f"the database of the worker's {STUDY_VARIABLE}",
)
RAILS: Mapping[Rail, Callable[[RunConfig], str | None]] = {
    TRACKING: lambda config: config.tracking.uri,
    SERVER: lambda config: config.rollout.vllm.url,
    MODEL: lambda config: config.model.source,
    ADAPTER: lambda config: None if config.model.lora is None else config.model.lora.init_from,
    DATA: lambda config: config.data.source,
}
"""Every key of a run that names a server, or a file to read or write; `code_in` lists those that run code."""


def refuse_code(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations that run code, name a server, or read or write files, which the worker's owner has not allowed.

    At a terminal everything is allowed.

    Raises:
        ConfigError: names each key, its value and the remedy.
    """
    if not is_deployed():
        return
    modules, configs = allowed_modules(), list(configs)
    codes = dict.fromkeys(code for config in configs for code in code_in(config) if not is_allowed(code, modules))
    refused = [text for rail, value_in in RAILS.items() for text in rail.refusals(map(value_in, configs))]
    if codes or refused:
        raise ConfigError(listed([*map(_refusal, codes), *refused]))


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


def load_allowed(config: str, overrides: Mapping[str, Any]) -> Resolved:
    """Return what `load` does, within the rails.

    Raises:
        ConfigError: as `load`; or it runs code that is not allowed.
    """
    with unquoted(config):
        resolved = load(config, overrides)
    refuse_code([resolved.config])
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
    """Refuse a sweep of which any arm is refused, or whose study is kept where it may not be.

    Raises:
        ConfigError: as `refuse_code`.
    """
    if is_deployed():
        refuse_code(plan.configs)
        if refused := STUDY.refusals([plan.sweep.study]):
            raise ConfigError(listed(refused))


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
        if not file or not is_deployed() or _is_below(find_config(file), (Path.cwd(), *FOLDERS)) or _loads(file, load):
            raise
        raise ConfigError(
            f"{file}: is not a valid configuration; messages of deployed runs do not quote files outside of the worker's "
            f"folder: `grpo check {file}` does, on the worker's machine"
        ) from None


def _is_below(path: Path, roots: Iterable[Path]) -> bool:
    """Return whether a path lies below a folder with nothing hidden between them; also one that there cannot be."""
    try:
        resolved = path.expanduser().resolve()
    except (OSError, RuntimeError):  # too long for a file name; ~ of an unknown user
        return True
    below = [
        resolved.relative_to(root) for root in (each.expanduser().resolve() for each in roots) if resolved.is_relative_to(root)
    ]
    return any(not any(part.startswith(".") for part in rest.parts) for rest in below)


def _loads(file: str, load: Callable[[str], object]) -> bool:
    try:
        load(file)
    except ConfigError:
        return False
    return True
