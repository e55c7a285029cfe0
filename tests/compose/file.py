"""docker-compose.yml as an engine reads it: what a service runs, and with which variables."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SECRET = "a-long-word-of-this-test-"
ENTRYPOINT = ["sh", str(ROOT / "docker" / "refuse-examples.sh"), sys.executable, str(ROOT / "docker" / "entrypoint.py")]
"""As the images have it."""


def read_compose(**dotenv: str) -> dict[str, Any]:
    """Return the file, with the variables of a `.env` in their places; secrets are still `$name`."""

    def interpolated(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else dotenv.get(found[1], found[2])

    text = (ROOT / "docker-compose.yml").read_text()
    return dict(yaml.safe_load(re.sub(r"\$\$|\$\{(\w+):-([^}]*)\}", interpolated, text)))


def write_secrets(folder: Path, service: str) -> None:
    """Write the secrets that a service is given, each another one, as they lie in its container."""
    compose = read_compose()
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(compose["secrets"]):
        if name in compose["services"][service]["secrets"]:
            (folder / name).write_text(f"{SECRET}{number}\n")


def variables(service: str, secrets: Path, **dotenv: str) -> dict[str, str]:
    """Return the variables of the file that a service's program finds, after the images' entry point."""
    given = read_compose(**dotenv)["services"][service].get("environment", {})
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [*ENTRYPOINT, sys.executable, "-c", show]
    environment = {
        "PATH": os.environ["PATH"],
        "GRPO_SECRETS": str(secrets),
        **{name: str(value) for name, value in given.items()},
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {name: found[name] for name in given}


def program(service: str, **dotenv: str) -> list[str]:
    command = read_compose(**dotenv)["services"][service]["command"]
    words = shlex.split(command) if isinstance(command, str) else command
    return shlex.split(words[2].rpartition("exec ")[2]) if words[:2] == ["sh", "-c"] else list(words)


def options(command: list[str]) -> dict[str, str]:
    return {word: command[index + 1] for index, word in enumerate(command[:-1]) if word.startswith("--")}
