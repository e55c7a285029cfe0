"""One stack for all tests of this folder: a clone of the committed state, built on stand-in images, gone afterwards."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.stack import ComposeStack

FOLDER_VARIABLE = "GRPO_COMPOSE_FOLDER"
"""A clone whose stack is up already, under the project `grpo-test`: it is used, and stays."""
PROGRAMS = ("podman", "debootstrap", "runc", "catatonit", "netavark")


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "containers are made as root here"
    places = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/lib/podman", "/usr/libexec/podman", "/usr/sbin"]
    missing = [program for program in PROGRAMS if not any(Path(place, program).exists() for place in places)]
    return f"not installed: {', '.join(missing)}; tests/compose/README.md" if missing else None


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    if reason := why_not():
        pytest.skip(reason)
    if folder := os.environ.get(FOLDER_VARIABLE):
        yield ComposeStack(Path(folder))
        return
    from tests.compose.stand_ins import make_all

    make_all()
    stack = ComposeStack(tmp_path_factory.mktemp("compose") / "clone")
    stack.clone()
    try:
        stack.build()
        stack.seconds_to_healthy = stack.up()
        yield stack
    finally:
        stack.compose("down", "--volumes", check=False)
        shutil.rmtree(stack.folder)
