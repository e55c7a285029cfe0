"""Containers that begin before Prefect answers, or before the pool is made."""

import functools
from collections.abc import Callable

import httpx
import pytest

from flows.stack import prefect_setup
from grpo_core.errors import StackError

Answer = Callable[[], httpx.Response]


def away() -> httpx.Response:
    raise httpx.ConnectError("nobody listens")


def client_of(answers: list[Answer], asked: list[str]) -> httpx.Client:
    """Return a client of a Prefect API that gives these answers, the last of them again and again."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return (answers.pop(0) if len(answers) > 1 else answers[0])()

    return httpx.Client(base_url="http://prefect/api", transport=httpx.MockTransport(answer))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_setup, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(prefect_setup, "REPORT_SECONDS", 0.0)


def test_it_waits_until_prefect_answers_and_the_setup_of_its_version_has_ended() -> None:
    asked: list[str] = []
    said: list[str] = []
    answers: list[Answer] = [away, *(functools.partial(httpx.Response, code) for code in (503, 404))]
    answers += [functools.partial(httpx.Response, 200, json={"description": mark}) for mark in (None, "of before", "of now")]
    prefect_setup.await_set_up(client_of(answers, asked), "of now", said.append)
    assert asked == ["/api/work_pools/grpo"] * 6
    ends = ("nobody listens", "answers 503", "answers 404", "the work pool says None", "the work pool says 'of before'")
    for line, end in zip(said, ends, strict=True):
        assert line.startswith("waiting for the end of the service `setup` (of now): ")
        assert line.endswith(end)


def test_a_setup_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_setup, "WAIT_SECONDS", 0.05)
    with pytest.raises(StackError, match=r"in vain for the end of the service `setup` \(mark\): Prefect answers 404"):
        prefect_setup.await_set_up(client_of([lambda: httpx.Response(404)], []), "mark", lambda _line: None)


def test_the_background_services_wait_until_the_server_has_its_tables() -> None:
    asked: list[str] = []
    prefect_setup.await_server(client_of([away, lambda: httpx.Response(200, json=True)], asked), lambda _line: None)
    assert asked == ["/api/health"] * 2
