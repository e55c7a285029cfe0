"""Whether the hub of models and data sets can be reached: one short question, asked before its client repeats its own."""

from grpo_core.errors import cause

ASK_SECONDS = 5.0
"""How long the hub may take to answer at all before it counts as away."""


def why_hub_is_away() -> str | None:
    """Return why the hub cannot be reached; None where it answers, whatever it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=ASK_SECONDS)  # the client's own: with its proxies and certificates
    except Exception as error:  # noqa: BLE001  (the HTTP library is the client's choice, and so are its errors)
        return f"{type(error).__name__}: {cause(error, 120)}"
    return None
