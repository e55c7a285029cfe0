"""Become a command whose variables hold secrets: `python entrypoint.py COMMAND ...`.

docker-compose.yml writes `$name` into values of variables; the file `name` of /run/secrets takes its place. Secrets are letters
that a URL takes as they are (refuse-examples.sh).
"""

import os
import sys
from pathlib import Path

for file in Path(os.environ.get("GRPO_SECRETS") or "/run/secrets").iterdir():
    if file.is_file():  # an engine may have folders of its own there
        os.environ[file.name] = file.read_text(encoding="utf-8").strip()
expanded = {name: os.path.expandvars(value) for name, value in os.environ.items()}
os.execvpe(sys.argv[1], sys.argv[1:], expanded)
