"""Passwords in a configuration: refused, since every key is stored in files, in MLflow and in Prefect's database."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from grpo_core.errors import ConfigError, name_of, shown
from grpo_core.redaction import has_credentials

WHERE_INSTEAD = (
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, carry it to a server; the address of a "
    "database goes with its password into MLFLOW_TRACKING_URI"
)
STORED = "holds a password or a token, and a configuration is stored"
IN_PREFECT = "where it was a parameter of a flow run, Prefect's database holds it now: change it"


def _no_credentials(instead: str) -> Callable[[str], str]:
    """Return a validator that refuses an address with a password or a token.

    Args:
        instead: where such a password belongs.
    """

    def check(value: str) -> str:
        if has_credentials(value):
            raise PydanticCustomError("credentials", f"{STORED}; {instead}; {IN_PREFECT}")
        return value

    return check


Source = Annotated[str, AfterValidator(_no_credentials("HF_TOKEN carries the token of the hub"))]
TrackingUri = Annotated[str, AfterValidator(_no_credentials(WHERE_INSTEAD))]
StudyUrl = Annotated[str, AfterValidator(_no_credentials("the whole address goes into GRPO_STUDY_URL"))]


def refuse_credentials(key: str, value: Any) -> None:
    """Refuse an address with a password or a token anywhere in a value, before it is handed to a flow.

    Raises:
        ConfigError: names the key and where the password belongs.
    """
    for item in _texts(value):
        if "://" in item.split(maxsplit=1)[0] and has_credentials(item):
            raise ConfigError(f"{name_of(key)}: {STORED}; {WHERE_INSTEAD}; got {shown(item)}")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in _texts(item)]
