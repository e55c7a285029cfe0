"""Print what pyproject.toml asks for: `python requirements.py EXTRA ...`; an empty name: its own dependencies.

An image installs these before the sources are copied, so that a change of the code does not install them again.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
groups = {"": project["dependencies"], **project["optional-dependencies"]}
print(*(requirement for name in sys.argv[1:] for requirement in groups[name]), sep="\n")
