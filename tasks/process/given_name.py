"""The name that somebody gave a flow run, told apart from the names that Prefect invents.

Prefect stores no mark of which it was: its server invents a name for a run that is created without one, and its page fills a
made-up one into the form. A name is taken for invented if it could come from there: an adjective and an animal of the package
that the server takes them from (`agile-otter`), or one of the page's adjectives and a short animal (`Rustic-Koala`).
"""

import re
from functools import cache
from typing import Any

import coolname.data
from prefect.runtime import flow_run

from grpo_core.redaction import redact_uri
from tasks.process.context import deployed_flow_run

REFUSED = "refused: "
"""How the name of a run begins whose parameters were refused: a retry is named anew."""
_PAGE = re.compile(
    "(?:Awesome|Rustic|Small|Gorgeous|Fantastic|Sleek|Intelligent|Unbranded|Refined|Licensed|Generic|Practical|Ergonomic|"
    "Handcrafted|Tasty|Handmade|Incredible)-[A-Z][a-zñ]{1,5}"
)
_given: dict[str, str] = {}
"""By flow run, what `given_name` has returned: later the flow run has the name that it was given here."""


def given_name() -> str:
    """Return the name that somebody gave this flow run of a deployment; empty where nobody did."""
    run_id = str(flow_run.id or "")
    if not run_id or deployed_flow_run() != run_id:  # a flow that a command calls has no name of its own
        return ""
    if run_id not in _given:
        name = str(flow_run.name or "")
        _given[run_id] = "" if is_invented(name) or name.startswith(REFUSED) else name
    return _given[run_id]


def given_override() -> dict[str, str]:
    """Return the override that keeps a given name in its run's configuration, where every reader of the run finds it."""
    name = redact_uri(given_name())
    return {"tracking.run_name": name} if name else {}


def is_invented(name: str) -> bool:
    """Return whether Prefect could have invented a name.

    >>> is_invented("agile-otter"), is_invented("Rustic-Koala"), is_invented("lower-beta"), is_invented("No-KL")
    (True, True, False, False)
    """
    first, _, second = name.partition("-")
    return bool(_PAGE.fullmatch(name)) or (first in _words("adj_any") and second in _words("subj"))


@cache
def _words(name: str) -> frozenset[str]:
    entry: dict[str, Any] = coolname.data.config[name]  # type: ignore[assignment]  # typed as object there
    return frozenset(entry.get("words", ())).union(*map(_words, entry.get("lists", ())))
