"""Write which commit a folder is of and what was changed since, for images: `python built_from.py FOLDER FILE`.

Files that .dockerignore keeps out of the build look deleted here and are left out of the difference.
"""

import json
import subprocess
import sys
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints, without the space around it; empty where the folder is no repository."""
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main(folder: Path, file: Path) -> None:
    """Write the file; without a repository it holds nothing, as provenance does outside of one."""
    commit = git(folder, "rev-parse", "HEAD")
    diff = git(folder, "diff", "--diff-filter=d", "HEAD")
    file.write_text(json.dumps({"git_commit": commit or None, "git_diff": diff}) + "\n")
    print(f"commit {commit or 'unknown'}, {len(diff.splitlines())} changed lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
