"""Limits of runs that a deployment has started: code, servers and files that they may not name, and files that are not quoted.

They guard against mistakes, and against a client that may only start runs. Whoever holds the secret of Prefect's API can
register another deployment and run any code as the worker's user; docs/security.md says what that means.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_core.config import Resolved, RunConfig, find_config, load, load_config
from grpo_core.config.derived import code_in, is_allowed
from grpo_core.config.limits import SERVER_VARIABLE
from grpo_core.config.origin import FOLDERS, find_sweep
from grpo_core.errors import ConfigError, listed, shown
from grpo_core.machine.disk import sqlite_file
from grpo_core.policy.sources.cache import cache_folder
from grpo_core.run.flow_folder import ROOTS_VARIABLE, allowed_roots, refuse_foreign_root
from grpo_core.sweep.plan import Plan, load_sweep
from grpo_core.sweep.schema import STUDY_VARIABLE
from grpo_core.text import kept_uri
from tasks import credentials
from tasks.process.context import is_deployed

ALLOWED_VARIABLE = "GRPO_ALLOWED_REWARDS"
"""Modules, separated by commas, whose functions deployments may name as rewards; set by whoever starts the worker."""
SOURCES_VARIABLE = "GRPO_ALLOWED_SOURCES"
"""Folders, separated as in PATH, that deployments may read."""
REMEDY = "or start the run with `grpo` at a terminal of the worker's machine"
_READABLE = (
    "in a folder that deployments read: the worker's, its runs, its cache (nothing hidden there), and those that its owner "
    f"allows in {SOURCES_VARIABLE}"
)


def check_root(path: Path | None, parameter: str) -> Path | None:
    """Return a folder that a flow was given; one of a deployed flow must lie below the roots that its worker allows.

    Raises:
        FolderError: it lies elsewhere.
    """
    if path is not None and is_deployed():
        refuse_foreign_root(path, _run_roots(), parameter)
    return path


def refuse_code(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations that run code, name a server, or read or write files, which the worker's owner has not allowed.

    At a terminal everything is allowed.

    Raises:
        ConfigError: names each key, its value and the remedy.
    """
    if is_deployed() and (refused := dict.fromkeys(fault for config in configs for fault in _refusals(config))):
        raise ConfigError(listed([*refused]))


def _refusals(config: RunConfig) -> Iterator[str]:
    modules = [name.strip() for name in os.environ.get(ALLOWED_VARIABLE, "").split(",") if name.strip()]
    for code in code_in(config):
        given = f"{code.key}: {shown(code.value)}"
        if code.module is None:
            yield f"{given} runs code, which a deployment may not; leave it out, {REMEDY}"
        elif not is_allowed(code, modules):
            what = f"{given} is code of a module that is not allowed for deployments; its owner allows it with"
            yield f"{what} `grpo up --allow-reward {code.module}` (or {ALLOWED_VARIABLE} of the worker), {REMEDY}"
    lora, tracking = config.model.lora, credentials.ALLOWED_VARIABLE
    own = f"the worker's own address, nor one that its owner allows in {tracking}"
    named = (  # every key that names a server, or a file to read or write
        ("tracking.uri", config.tracking.uri, _may_track, own),
        ("rollout.vllm.url", config.rollout.vllm.url, _is_server, f"the server that its owner allows, in {SERVER_VARIABLE}"),
        ("model.source", config.model.source, _may_be_source, _READABLE),
        ("model.lora.init_from", None if lora is None else lora.init_from, _may_be_source, _READABLE),
        ("data.source", config.data.source, _may_be_data, _READABLE),
        *(
            ("tracking.also", name, credentials.is_tracker_allowed, f"a tracker that its owner allows in {tracking}")
            for name in config.tracking.also
        ),
    )
    for key, value, may_be, what in named:
        if value is not None and not may_be(value):
            yield _refusal(key, value, what)


def _refusal(key: str, value: str, what: str) -> str:
    return f"{key}: {shown(value)} is not {what}; leave it out, {REMEDY}"


def _may_track(uri: str) -> bool:
    """A sweep hands its runs the store beside it, which lies in a folder of runs or below one."""
    file = sqlite_file(uri)
    is_of_runs = file is not None and file.name == "mlflow.db" and _is_below(file, _run_roots())
    own = (credentials.environment_uri() or "", *credentials.allowed_addresses())
    return is_of_runs or any(credentials.is_same_address(uri, one) for one in own)


def _is_server(url: str) -> bool:
    return url == os.environ.get(SERVER_VARIABLE)


def _may_be_source(source: str) -> bool:
    """Names of a hub have no rules here: what is no path of this machine is asked for there."""
    is_path = source.startswith(("/", "~", ".")) or os.path.lexists(source)
    return source.startswith(("bundled:", "scratch:")) or not is_path or _may_read(source)


def _may_be_data(source: str) -> bool:
    kind, _, name = source.partition(":")
    return _may_read(name) if kind == "file" else kind != "hub" or _may_be_source(name)


def _may_read(path: str) -> bool:
    more = [Path(part) for part in os.environ.get(SOURCES_VARIABLE, "").split(os.pathsep) if part]
    return _is_below(Path(path), (Path.cwd(), *FOLDERS, *_run_roots(), cache_folder(), *more))


def _run_roots() -> tuple[Path, ...]:
    return allowed_roots(os.environ.get(ROOTS_VARIABLE))


def _is_below(path: Path, roots: Iterable[Path]) -> bool:
    """Return whether a path lies below a folder with nothing hidden between them."""
    try:
        resolved = path.expanduser().resolve()
    except (OSError, RuntimeError):  # ~ of an unknown user, a name that is too long
        return False
    below = [root for each in roots if resolved.is_relative_to(root := each.expanduser().resolve())]
    return any(not any(part.startswith(".") for part in resolved.relative_to(root).parts) for root in below)


def module_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of modules, each once and in order.

    Raises:
        ConfigError: a name is not that of a module.
    """
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--allow-reward {shown(name)}: is not the name of a module, such as my_rewards or mine.rewards")
    return tuple(sorted(set(names)))


def load_allowed(config: str, overrides: Mapping[str, Any]) -> Resolved:
    """Return what `load` does, within the limits.

    Raises:
        ConfigError: as `load`; or it runs code that is not allowed.
    """
    with hide_contents(config):
        resolved = load(config, overrides)
    refuse_code([resolved.config])
    return resolved


def load_allowed_sweep(file: str, overrides: Mapping[str, Any]) -> Plan:
    """Return what `load_sweep` does, within the limits.

    Raises:
        ConfigError: as `load_sweep`; or one of its arms runs code that is not allowed.
    """
    with hide_contents(str(find_sweep(file)), load_sweep), hide_contents(str(overrides.get("base", ""))):
        plan = load_sweep(file, overrides)
    refuse_code_of_sweep(plan)
    return plan


def refuse_code_of_sweep(plan: Plan) -> None:
    """Refuse a sweep of which any arm is refused, or whose study is kept where it may not be.

    Raises:
        ConfigError: as `refuse_code`.
    """
    refuse_code(plan.configs)
    study = plan.sweep.study
    if is_deployed() and study is not None and study != kept_uri(os.environ.get(STUDY_VARIABLE, "")):
        raise ConfigError(_refusal("study", study, f"the database of the worker's {STUDY_VARIABLE}"))


@contextmanager
def hide_contents(file: str, load: Callable[[str], object] = load_config) -> Iterator[None]:
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
        if file and is_deployed() and not _is_below(find_config(file), (Path.cwd(), *FOLDERS)):
            try:
                load(file)
            except ConfigError:
                raise ConfigError(
                    f"{file}: is not a valid configuration; messages of deployed runs do not quote files outside of the "
                    f"worker's folder: `grpo check {file}` does, on the worker's machine"
                ) from None
        raise
