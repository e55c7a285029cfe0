"""Passwords and tokens: recognised, redacted, refused in a configuration, and carried by the environment alone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import load_config, parse_overrides
from grpo_core.errors import ConfigError, GrpoError, TrackingError, cause, shown
from grpo_core.text import has_credentials, kept_uri, redact_uri
from tasks.credentials import OWNER_VARIABLE, move_credentials
from tests.e2e.recorder import Recorder, recording
from tests.support.commands import grpo

SECRET = "s3cret-canary"
ADDRESSES = (
    f"http://me:{SECRET}@host:5000",
    f"HTTPS://me:{SECRET}@host/path?x=1#y",
    f"https://{SECRET}@github.com/a/b",
    f"postgresql+psycopg://me:{SECRET}@host:5432/db",
    f"postgresql://me:a@{SECRET}@host/db",
    f"postgresql://me:a/b?c#{SECRET}@host/db",
    f"postgresql://me:12/{SECRET}@host/db",
    f"http://me:a@b/c#{SECRET}@host:5000",
    f"postgresql://:{SECRET}@host/db",
    f"postgresql:///db?host=/tmp&user=me&password={SECRET}",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}",
    f"https://host/data.parquet?X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}",
    f"http://host/?page=1&api_key={SECRET}",
)
HARMLESS = (
    "http://host:5000/path@x",
    "http://[::1]:5000/a@b",
    "sqlite:////home/a:b/c@d/mlflow.db",
    "postgresql://me@host/db",
    "ssh://git@host/x",
    "databricks://profile",
    "file:rows.jsonl",
    "hub:openai/gsm8k",
    "http://***@host",
    "postgresql://***@host/db",
    "C:\\runs",
)


@pytest.fixture(autouse=True)
def no_address_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that ran in this process has left the address that the login is for."""
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_secret_is_found_and_leaves_no_trace(address: str) -> None:
    assert has_credentials(address)
    for text in (address, f"cannot reach {address}: refused (see {address})", json.dumps({"uri": address, "other": 1})):
        assert SECRET not in redact_uri(text)
        assert redact_uri(redact_uri(text)) == redact_uri(text)
    assert SECRET not in kept_uri(address)
    assert not has_credentials(kept_uri(address))
    assert kept_uri(kept_uri(address)) == kept_uri(address)


@pytest.mark.parametrize("address", HARMLESS)
def test_an_address_without_a_secret_stays_as_it_is(address: str) -> None:
    assert redact_uri(f"see {address} now") == f"see {address} now"
    assert not has_credentials(address)
    assert kept_uri(address) == address.replace("http://***@", "http://")


def test_secrets_of_the_environment_are_hidden_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_STUDY_URL", "postgresql://me:hunter%2Ftwo-22@db/x")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://postgres@db/x")
    assert redact_uri("postgres at postgresql://postgres@db") == "postgres at postgresql://postgres@db"
    text = "no login for 'me' with hunter/two-22 or hunter%2Ftwo-22, token hf_abcdefgh; hf_abcdefghi is another word"
    assert redact_uri(text) == "no login for 'me' with *** or ***, token ***; hf_abcdefghi is another word"


def test_a_secret_is_gone_before_a_message_is_cut() -> None:
    address = f"http://me:{SECRET * 40}@host"
    assert SECRET[:5] not in shown(address) + shown({"uri": address}) + cause(ValueError(address))
    assert str(GrpoError(f"cannot reach {ADDRESSES[0]}\x1b[2J")) == "cannot reach http://***@host:5000\\x1b[2J"


@pytest.mark.parametrize("key", ["tracking.uri", "data.source", "model.source"])
def test_a_configuration_with_a_secret_is_refused_by_name_without_it(key: str) -> None:
    for address in (ADDRESSES[0], ADDRESSES[3], f"http://me:{SECRET * 20}@host"):
        for read in (
            lambda key, value: load_config("quickstart", {key: value}),
            lambda key, value: parse_overrides([f"{key}={value}"]),
        ):
            with pytest.raises(ConfigError) as refused:
                read(key, address)
            assert str(refused.value).startswith(f"{key}: holds a password or a token")
            assert SECRET[:5] not in str(refused.value) + repr(refused.value.__cause__) + str(refused.value.__cause__)
    with pytest.raises(
        ConfigError, match=r"MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.*Prefect's database holds it now"
    ):
        load_config("quickstart", {"tracking.uri": ADDRESSES[0]})
    assert load_config("quickstart", {"tracking.uri": "postgresql://***@host/db"}).tracking.uri == "postgresql://***@host/db"


def test_the_command_refuses_before_a_flow_is_started(tmp_path: Path) -> None:
    commands = (
        ["train", "quickstart", f"tracking.uri={ADDRESSES[0]}"],
        ["evaluate", "runs/one", f"tracking.url={ADDRESSES[0]}"],
        ["evaluate", "runs/one", "--data", ADDRESSES[0], "--debug"],
        ["reproduce", "runs/one", f"tracking={{uri: '{ADDRESSES[0]}'}}"],
    )
    for command in commands:
        done = grpo(*command)
        assert done.returncode == 2
        assert "holds a password or a token" in done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "starting Prefect" not in done.stdout


@pytest.fixture
def server() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


def test_a_server_gets_the_password_and_the_run_keeps_the_bare_address(
    server: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_config: Callable[..., Any]
) -> None:
    import requests
    from mlflow.exceptions import MlflowException

    from tasks.tracking.store import make_client, tracking_uri

    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "GRPO_TRACKING_CREDENTIALS_OF"):
        monkeypatch.setenv(name, "another")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address.replace("://", f"://m%40e:p%2Fw%40{SECRET}@"))
    uri = tracking_uri(tiny_config(), tmp_path / "run")
    assert uri == server.address
    with pytest.raises(MlflowException):
        make_client(uri).get_run("0" * 32)
    assert server.logins == {requests.auth._basic_auth_str("m@e", f"p/w@{SECRET}")}


@pytest.mark.parametrize("own", ["http://127.0.0.1:9", "https://{server}", "http://localhost:9", "", None])
@pytest.mark.parametrize("login", ["password", "token", "file", "netrc"])
def test_no_login_of_any_kind_goes_to_another_server(
    server: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str | None, login: str
) -> None:
    from mlflow.exceptions import MlflowException

    from tasks.tracking.store import make_client

    give_login(monkeypatch, tmp_path, login)
    if own is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", own.format(server=server.address.removeprefix("http://")))
    for address in (server.address, server.address.replace("http", "HTTP") + "/"):
        with pytest.raises(MlflowException):
            make_client(address).get_run("0" * 32)
    assert server.logins == {""}


def give_login(monkeypatch: pytest.MonkeyPatch, home: Path, kind: str) -> None:
    """Let this process have a login in one of the places where MLflow and requests look for it."""
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setenv("GRPO_TRACKING_CREDENTIALS_OF", "to be put back")
    monkeypatch.delenv("GRPO_TRACKING_CREDENTIALS_OF")
    monkeypatch.setenv("HOME", str(home))
    if kind == "password":
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    if kind == "token":
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    if kind == "file":
        (home / ".mlflow").mkdir()
        text = f"[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = {SECRET}\n"
        (home / ".mlflow" / "credentials").write_text(text)
    if kind == "netrc":
        (home / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
        (home / ".netrc").chmod(0o600)


@pytest.mark.parametrize("password", ["a@b/c#w", "ab/cw", "a?bcw"])
def test_a_password_that_is_not_encoded_is_refused_without_any_part_of_it(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{password}@127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI http://127\.0\.0\.1:1: .*%2F") as caught:
        move_credentials()
    assert password[-3:] not in str(caught.value)


def test_the_address_of_a_database_is_kept_without_its_password_and_found_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_config: Callable[..., Any]
) -> None:
    from tasks.tracking.store import TrackedRun, make_client, tracking_uri

    whole = f"postgresql://me:{SECRET}@127.0.0.1:9/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", whole)
    kept = tracking_uri(tiny_config(), tmp_path / "run")
    assert kept == "postgresql://***@127.0.0.1:9/mlflow"
    assert tracking_uri(tiny_config({"tracking.uri": kept}), tmp_path / "run") == kept
    tracked = TrackedRun(uri=kept, experiment_id="1", run_id="2", name="n")
    assert tracked.ui_command == 'mlflow ui --backend-store-uri "$MLFLOW_TRACKING_URI"'
    for other in (None, f"postgresql://me:{SECRET}@127.0.0.1:9/other", "http://host"):
        monkeypatch.delenv("MLFLOW_TRACKING_URI") if other is None else monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
        with pytest.raises(TrackingError, match="its password is kept nowhere, and MLFLOW_TRACKING_URI is") as refused:
            make_client(kept)
        assert SECRET not in str(refused.value)
