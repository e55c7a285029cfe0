"""Images that stand in for the official ones under the tags that docker-compose.yml and the Dockerfile name.

They are made from Debian's and PyPI's packages, for a machine that reaches no registry of images. A stand-in has what the file
relies on: the official image's entry point, variables and folders. What the official images contain beside that it cannot show.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.compose.machine import apt_mirror, build_mounts

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "stand_ins"
PYTHON = "docker.io/library/python:3.11-slim-bookworm"
RELEASE = "bookworm"
OTHERS = {
    "docker.io/library/postgres:17.6-bookworm": "postgres",
    "docker.io/library/redis:7.4.5-bookworm": "redis",
    "docker.io/versity/versitygw:v1.8.0": "versitygw",
}
"""Tag: the folder of its Containerfile. Each is built from the stand-in of Python's image."""
FROM_PYPI = ("versitygw",)


def make_all() -> None:
    if not exists(PYTHON):
        _make_python()
    for tag, name in OTHERS.items():
        if not exists(tag):
            settings = build_mounts() if name in FROM_PYPI else ()
            _run("podman", "build", "--network=host", *settings, "--tag", tag, str(FOLDER / name))


def exists(tag: str) -> bool:
    return subprocess.run(["podman", "image", "exists", tag], check=False).returncode == 0


def _make_python() -> None:
    """Make Debian with its own Python 3.11: the command is `python`, as in the official image."""
    with tempfile.TemporaryDirectory(prefix="grpo-debian-") as parent:
        root = Path(parent) / "root"
        packages = "python3,python3-dev,python3-venv,python3-pip,ca-certificates"
        _run("debootstrap", "--variant=minbase", f"--include={packages}", RELEASE, str(root), apt_mirror())
        (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["podman", "import", "-", PYTHON], stdin=tar.stdout, check=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "BUILDAH_FORMAT": "docker"})


if __name__ == "__main__":
    make_all()
