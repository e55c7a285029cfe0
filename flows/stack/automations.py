"""Automations of a stack's Prefect, as its API takes them: what the server does by itself when events come, or stay away."""

from typing import Any

from flows.stack.commands import HEARTBEAT_SECONDS

SILENCE_SECONDS = 10 * HEARTBEAT_SECONDS
"""A run without a heartbeat for so long has no process any more. A laptop that sleeps for longer counts as dead, too: the
server, which slept as well, may see the silence before it sees the next heartbeat."""
BUDGET_TAG = "stop-on-kl-budget"
"""Tag of flow runs that are cancelled when they cross their KL budget, though the rule in their configuration only warns."""
BUDGET_EVENT = "grpo.kl.budget"
_FINAL = ("Completed", "Failed", "Cancelled", "Crashed")

LOST_RUNS: dict[str, Any] = {
    # A worker that is killed leaves its runs `Running` for ever, and they hold their slots.
    "name": "runs without a heartbeat are crashed",
    "description": f"A run that has sent no heartbeat for {SILENCE_SECONDS} s has lost its process.",
    "trigger": {
        "type": "event",
        "posture": "Proactive",
        "after": ["prefect.flow-run.heartbeat"],
        "expect": ["prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in _FINAL)],
        "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": SILENCE_SECONDS,
    },
    "actions": [{"type": "change-flow-run-state", "state": "CRASHED", "message": f"no heartbeat for {SILENCE_SECONDS} s"}],
}
OVER_BUDGET: dict[str, Any] = {
    "name": f"runs tagged {BUDGET_TAG} are cancelled when they cross their KL budget",
    "description": "The run finishes its step and checkpoints; `grpo/resume` continues it.",
    "trigger": {
        "type": "event",
        "posture": "Reactive",
        "expect": [BUDGET_EVENT],
        "match_related": {"prefect.resource.id": f"prefect.tag.{BUDGET_TAG}", "prefect.resource.role": "tag"},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": 0,
    },
    "actions": [{"type": "cancel-flow-run"}],
}
AUTOMATIONS = (LOST_RUNS, OVER_BUDGET)
