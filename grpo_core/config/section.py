"""The base of every section, and which values it can hold: those that RUN_DIR's config.json gives back as they were.

An address with a password is none of them: every key is stored in files, in MLflow and in Prefect's database.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError

from grpo_core.errors import ConfigError, name_of, shown
from grpo_core.text import has_credentials

LARGEST_INT = 2**63 - 1
"""What JSON readers, torch and NumPy can all hold."""
PlainValues = dict[str, JsonValue]
"""Passed on as they are, to somebody else's function."""


WHERE_INSTEAD = (
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, carry it to a server; the address of a "
    "database goes with its password into MLFLOW_TRACKING_URI"
)
STORED = "holds a password or a token, and a configuration is stored"


def _no_credentials(instead: str) -> Callable[[str], str]:
    """Return a validator that refuses an address with a password or a token.

    Args:
        instead: where such a password belongs.
    """

    def check(value: str) -> str:
        if has_credentials(value):
            raise PydanticCustomError(
                "credentials",
                f"{STORED}; {instead}; where it was a parameter of a flow run, Prefect's database holds it now: change it",
            )
        return value

    return check


MOST_STEPS = 1_000_000
"""Of a run; every period in steps has the same bound."""
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
MOST_TOKENS = 2**24
"""Of a prompt or a completion; the longest contexts of models are of 10 million tokens."""
MOST_ROWS = 100_000_000
"""Of a data set, or of an evaluation."""
MOST_TEXT = 4096
"""Characters of a name, a path or an address."""


def _check_text(value: str) -> str:
    """Return a name, path or address that is not empty, has no blanks around it and no characters that are not seen."""
    if not value or value != value.strip() or not value.isprintable():
        raise PydanticCustomError("not_a_name", "input should be one line of text without blanks around it")
    return value


Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_check_text)]
MOST_TITLE = 500
Title = Annotated[str, Field(min_length=1, max_length=MOST_TITLE)]
"""What people name something; whatever it holds, it is shown as text."""
Column = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
"""Name of a column, as the data has it: blanks around it belong to it."""
Source = Annotated[Text, AfterValidator(_no_credentials("HF_TOKEN carries the token of the hub"))]


def _of_scheme(*schemes: str) -> Callable[[str], str]:
    """Return a validator that refuses an address (`scheme://...`, of a database also `scheme+driver://...`) of another kind."""

    def check(value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator and scheme.partition("+")[0].lower() not in schemes:
            raise PydanticCustomError(
                "unknown_scheme",
                "{fault}",
                {"fault": f"input should begin with {', '.join(f'{scheme}://' for scheme in schemes)} or be a path"},
            )
        return value

    return check


DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
TrackingUri = Annotated[
    Text, AfterValidator(_no_credentials(WHERE_INSTEAD)), AfterValidator(_of_scheme("http", "https", "file", *DATABASES))
]
"""Without `://` it is a path, or the name of a service that MLflow knows (`databricks`)."""
StudyUrl = Annotated[
    Text, AfterValidator(_no_credentials("the whole address goes into GRPO_STUDY_URL")), AfterValidator(_of_scheme(*DATABASES))
]


def refuse_credentials(key: str, value: Any) -> None:
    """Refuse an address with a password or a token anywhere in a value, before it is handed to a flow.

    Raises:
        ConfigError: names the key and where the password belongs.
    """
    if isinstance(value, str) and re.match(r"\s*\S*://", value) and has_credentials(value):
        raise ConfigError(f"{name_of(key)}: {STORED}; {WHERE_INSTEAD}; got {shown(value)}")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        refuse_credentials(key, item)


class Section(BaseModel):
    """Base of all sections: frozen, strict about keys and types, described by the text under each field."""

    # Inputs are hidden: pydantic cuts a long one and so shows a part of a password; `explain` shows it without.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _of_file(cls, value: Any) -> Any:
        """Return a list of a file as the tuple that a strict field takes."""
        return tuple(cls._of_file(item) for item in value) if isinstance(value, list) else value
