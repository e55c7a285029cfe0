"""What the site has beside the pages of docs/: the repository's own pages, and references made from the code.

MkDocs calls the functions named `on_...`. Links that leave the site, to code or to tests, become the paths they lead to.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OF_THE_REPOSITORY = {
    "README.md": "index.md",
    **{name: name for name in ("METRICS.md", "CHANGELOG.md", "CONTRIBUTING.md", "DECISIONS.md", "EXPERIMENTS.md")},
}
"""Page beside docs/ -> its name on the site."""
LONGEST = 1000
"""Characters of a signature that is shown."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    made = {name: (ROOT / page).read_text() for page, name in OF_THE_REPOSITORY.items()}
    for name, text in {**made, "verbs.md": verbs(), "api.md": api()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, /, **values: Any) -> str:
    """Let the links of a page lead to pages of the site."""
    name = values["page"].file.src_uri
    home = ROOT / ("docs" if (ROOT / "docs" / name).exists() else ".")
    return LINK.sub(lambda found: _on_site(found, home, values["files"]), markdown)


def on_post_page(output: str, /, **_: Any) -> str:
    """Take the search's worker from the site itself: its files need no network."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "site/worker.js")


def on_post_template(output: str, /, **_: Any) -> str:
    """Do the same for the page of what is not found."""
    return on_post_page(output)


def _on_site(link: re.Match[str], home: Path, files: Files) -> str:
    image, text, target, place = link[1], link[2], link[3], link[4] or ""
    if not (home / target).exists():  # a dead link, or a page that is made here: for MkDocs to judge
        return link[0]
    path = (home / target).resolve().relative_to(ROOT).as_posix()
    page = OF_THE_REPOSITORY.get(path, path.removeprefix("docs/"))
    if files.get_file_from_path(page) is not None:
        return f"{image}[{text}]({page}{place})"
    return text if path == text else f"{text} (`{path}`)"


def verbs() -> str:
    """Return the page of all verbs of `grpo`, with their arguments and options as `--help` has them."""
    app: Any = typer.main.get_command(importlib.import_module("flows.cli.app").app)
    lines = ["# Verbs and options", "", "Made from `grpo --help`. [Commands](commands.md) has an example of each."]
    for name, verb in sorted(app.commands.items()):
        context = typer.Context(verb, info_name=f"grpo {name}")
        usage = " ".join([f"grpo {name}", *verb.collect_usage_pieces(context)])
        help_text = inspect.cleandoc(verb.help or "").replace("\b\n", "")
        lines += ["", f"## grpo {name}", "", "```text", usage, "```", "", help_text, ""]
        records = [record for option in verb.get_params(context) if (record := option.get_help_record(context))]
        lines += ["| | |", "|---|---|", *(f"| `{left}` | {_cell(right)} |" for left, right in records)] if records else []
    return "\n".join([*lines, ""])


def api() -> str:
    """Return the page of what `grpo_core` exports, with signatures and docstrings."""
    package = importlib.import_module("grpo_core")
    lines = ["# Python API", "", "`from grpo_core import ...`; [In Python](python.md) has examples."]
    for name in package.__all__:
        thing = getattr(package, name)
        lines += ["", f"## {name}", "", f"From `{thing.__module__}`.", "", "```python", _signature(name, thing), "```", ""]
        lines += ["```text", inspect.cleandoc(thing.__doc__ or ""), "```"]
        public = inspect.getmembers(thing, lambda member: callable(member) or isinstance(member, property))
        for method, member in public if inspect.isclass(thing) else []:
            if method in vars(thing) and not method.startswith("_") and member.__doc__:
                lines += ["", f"`{name}.{method}`: {_cell(inspect.cleandoc(member.__doc__).splitlines()[0])}"]
    return "\n".join([*lines, ""])


def _signature(name: str, thing: Any) -> str:
    shown = f"{name}{inspect.signature(thing)}"
    return shown if len(shown) < LONGEST else f"{name}(...)"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
