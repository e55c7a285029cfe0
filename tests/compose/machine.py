"""What containers and builds on this machine need of its own settings: apt's mirror, and pip's configuration with its folders.

They are read when they are needed and never written down.
"""

import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path("/etc/apt")
CERTIFICATES = ("/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")


def apt_mirror() -> str:
    """Return the mirror that apt itself uses for Debian's main archive."""
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*.sources"))]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    found = re.findall(r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
    assert found, f"{SOURCES}: apt's sources name no archive of Debian"
    return str(found[0])


@cache
def build_mounts() -> tuple[str, ...]:
    """Return podman's options that give a build pip's settings of this machine, read-only."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-pip-"))
    settings, mounts = _pip_settings(), set()
    for value in settings.values():
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                mounts.add(str(path.parent if word.startswith("file://") or path.is_file() else path))
    (folder / "pip.conf").write_text("".join(["[global]\n", *(f"{key} = {value}\n" for key, value in settings.items())]))
    mounts |= {path for path in CERTIFICATES if Path(path).is_dir()}
    pairs = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in sorted(mounts))]
    return tuple(word for pair in pairs for word in ("--volume", pair))


def _pip_settings() -> dict[str, str]:
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE)
    return {key: value.replace("\\n", " ") for key, value in pairs}
