"""The verbs of the `grpo` command before a run: write an experiment, take over another system's, check a configuration."""

import importlib.util
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.terminal import AsJson, echo, echo_json, echo_text, echo_warnings
from grpo_core.config import RunConfig, check_consistency, load, parse_overrides
from grpo_core.config.derived import advantage_rms_factor, repeatability, weight_of_kl
from grpo_core.config.loading import dump_yaml, known_keys
from grpo_core.config.origin import SWEEPS, preset_names
from grpo_core.errors import ConfigError, listed, name_of, raised_as
from grpo_core.machine.disk import write_whole
from grpo_core.run.flow_folder import named_folder
from grpo_core.run.resuming import path_argument

if TYPE_CHECKING:
    from grpo_core.run.preflight import Preflight

STARTER = Path(__file__).parents[1] / "starter"
ROWS = "rows.jsonl"
NOT_KNOWN = "not known: the model is not here, or has other layers than the formulas"


def complete_config(incomplete: str) -> list[str]:
    """Return the presets that begin with what is typed."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_sweep(incomplete: str) -> list[str]:
    """Return the sweep files that begin with what is typed."""
    return [name for name in preset_names(SWEEPS) if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    """Return the keys that begin with what is typed, each with the `=` that its value follows."""
    keys = known_keys()
    leaves = (key for key in keys if not any(other.startswith(f"{key}.") for other in keys))
    return [f"{key.replace('*', '0')}=" for key in sorted(leaves) if key.startswith(incomplete)]


def run_path(name: str | Path) -> Path:
    """Return the folder of a run or sweep, as it is named on the command line."""
    return Path(named_folder(str(name)))


ConfigName = Annotated[
    str,
    typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG", autocompletion=complete_config),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...", autocompletion=complete_override),
]
DeviceMemory = Annotated[
    float | None,
    typer.Option(
        "--device-memory", min=1, max=1_000_000, help="GB of a GPU that is not here; left out: this machine's device."
    ),
]


def init(
    name: Annotated[Path, typer.Argument(help="Folder to write, below the working folder; it must not exist yet.")],
    model: Annotated[str | None, typer.Option(help="A folder, a hub id or `bundled:<name>`; left out, a tiny one.")] = None,
    data: Annotated[str | None, typer.Option(help="Your rows: a file, or hub:<data set>; left out, sums.")] = None,
) -> None:
    """Write an experiment that runs as it is: a commented configuration, reward functions and, without --data, rows.

    Columns, chat template and the limit of prompts are those of the data and the model that are given.
    """
    module, command_path, own = _module_of(name), path_argument(name / "config.yaml"), bool(data or model)
    source, model = data or f"file:{name / ROWS}", model or ("bundled:smollm2-135m" if data else "scratch:sums")
    if not source.startswith(("file:", "hub:", "reasoning_gym:", "shapes:")):
        source = f"file:{source}"
    import jinja2

    from grpo_core.data.guess import guess

    found, longest = guess(source, model) if data else (None, None)
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(STARTER), keep_trailing_newline=True, autoescape=False)
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # JSON text is YAML text
    facts = {"command_path": command_path, "module": module, "data": found, "longest": longest, "own": own}
    places = {"rows": _seen_from(name, source), "model": _seen_from(name, model)}
    with raised_as(ConfigError, f"{name_of(str(name), 300)}: cannot be written ({{cause}})", OSError):
        name.mkdir(parents=True)
    for file in ("config.yaml", *(() if data else (ROWS,))):
        (name / file).write_text(templates.get_template(f"{file}.j2").render(facts, **places), encoding="utf-8")
    shutil.copyfile(STARTER / "rewards.py", name / "rewards.py")
    echo(f"{name / 'config.yaml'}  the settings that matter, each with its meaning")
    echo(f"{name / 'rewards.py'}  the reward functions")
    if found is None:
        echo(f"{name / ROWS}  prompts with their answers")
    else:
        size = "" if longest is None else f"; the longest: {longest} tokens"
        echo(f"prompts are the column {found.prompt_column!r}, answers {found.answer_column!r}{size}")
    echo(f"start with: grpo train {command_path}")


def _seen_from(folder: Path, source: str) -> str:
    kind, colon, path = source.rpartition(":")
    is_here = (kind in ("", "file") and Path(path).exists()) or (kind == "file" and Path(path).parent == folder)
    return f"{kind}{colon}{os.path.relpath(path, folder)}" if is_here and not Path(path).is_absolute() else source


def _module_of(folder: Path) -> str:
    """Return the name under which Python imports the reward functions of a folder below the working folder.

    Raises:
        ConfigError: it cannot, or would import something else of that name.
    """
    is_path = folder.is_absolute() or not folder.parts
    if is_path or not all(part.replace("_", "a").replace("-", "a").isalnum() for part in folder.parts):
        raise ConfigError(
            f"{name_of(str(folder), 300)}: give a name, or a path below the working folder, of letters, digits, - and _: "
            "Python imports the reward functions from there"
        )
    found = importlib.util.find_spec(folder.parts[0])
    if found is not None and found.origin is not None:
        raise ConfigError(f"{folder}: Python has a module of that name, which would be imported instead; give another name")
    return ".".join((*folder.parts, "rewards"))


def import_settings(
    file: Annotated[
        Path,
        typer.Argument(help="Settings of TRL, open-r1, ROLL or VLM-R1: YAML, JSON, or the shell script that starts the run."),
    ],
    *,
    source: Annotated[
        str | None, typer.Option("--format", help="trl, open-r1, roll or vlm-r1; left out, the keys tell.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Training processes of that run, if no file tells.")] = None,
    command: Annotated[int | None, typer.Option(min=1, help="Which training of a script that starts several.")] = None,
    trl_version: Annotated[
        str | None, typer.Option(help="Release of TRL whose defaults are taken, such as 0.18; left out, 1.16.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="New .jsonl file for the rows of VLM-R1's data files, above the folders of their images."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file for the configuration; left out, it is printed.")
    ] = None,
) -> None:
    """Print or write the configuration equivalent to another system's, with what became of each of its keys as comments."""
    from grpo_core.interop.conversion import import_config
    from grpo_core.interop.report import render, summary

    if output is not None and output.exists():
        raise ConfigError(f"output {output}: is there already, and nothing was changed; give a new name")
    imported = import_config(file, source, processes, command, trl_version, rows=data)
    if data is not None and imported.rows is not None:
        echo(f"{data}: {imported.rows.write(data)} rows", err=True)
    if output is None:
        typer.echo(render(imported).rstrip())  # as it is: it may be on its way into a file
    else:
        with raised_as(ConfigError, f"output {output}: cannot be written ({{cause}})", OSError):
            write_whole(output, render(imported))
    echo(summary(imported), err=True)


def check(config: ConfigName, overrides: Overrides = None, as_json: AsJson = False, device_memory: DeviceMemory = None) -> None:
    """Print the resolved configuration, the memory that a step needs, and all that is wrong, without loading a model.

    Data, model, reward functions and disk are those of this machine, and are not looked at with --device-memory.
    """
    from grpo_core.rewards.base import reward_notes
    from grpo_core.run.child import import_folders
    from grpo_core.run.fit import slow_dtype_warnings
    from grpo_core.run.preflight import check_elsewhere, check_start

    origin = load(config, parse_overrides(overrides or []))
    resolved, whether = origin.config, ""
    warnings = (*check_consistency(resolved), *origin.warnings)
    if device_memory is None:
        found = check_start(resolved, import_folders(resolved, config))
        warnings = (*warnings, *slow_dtype_warnings(resolved))
        whether = f", {'but the run cannot' if found.faults else 'and the run can'} start here"
    else:
        found = check_elsewhere(resolved, int(device_memory * 1e9))
    warnings, notes = (*warnings, *found.warnings), (*reward_notes(resolved), *found.notes)
    if as_json:
        echo_json({**_derived(resolved, found), "notes": notes, "warnings": warnings, "faults": found.faults})
        raise typer.Exit(ConfigError.exit_code if found.faults else 0)
    echo_text(dump_yaml(resolved.model_dump(mode="json")).rstrip())
    _show_derived(resolved, found)
    for note in notes:
        echo(f"note: {note}")
    echo_warnings(warnings, err=False)
    echo(f"{len(warnings)} warning(s); the configuration is valid{whether}")
    if found.faults:
        raise ConfigError(listed(found.faults))


def _derived(config: RunConfig, found: "Preflight") -> dict[str, object]:
    return {
        "config": config.model_dump(mode="json"),
        "advantage_rms_factor": advantage_rms_factor(config),
        "effective_beta": weight_of_kl(config),
        "repeats": repeatability(config).what,
        "adapter": None if found.adapter is None else asdict(found.adapter),
        "memory": None if found.fit is None else found.fit.as_json(),
    }


def _show_derived(config: RunConfig, found: "Preflight") -> None:
    factor = advantage_rms_factor(config)
    meaning = f"{factor:.4f}  (root mean square of a group's advantages)" if factor else "not that of a group alone"
    echo()
    echo(f"advantage_rms_factor: {meaning}")
    echo(f"effective beta: {weight_of_kl(config)}")
    echo(f"repeats: {repeatability(config).what}")
    if config.model.lora is not None:
        echo(f"adapter: {found.adapter or NOT_KNOWN}")
    echo(f"memory of tensors: {found.fit or NOT_KNOWN}")
    if found.fit is not None:
        echo(f"  states = {found.fit.states_formula}; docs/memory.md has the other formulas")
        if found.fit.snapshot:
            echo(f"  {found.fit.saving}")
