"""How long MLflow's client tries: short inside, as before outside, whichever thread comes and goes."""

import os
import threading

import pytest

from tasks.tracking import short_retries

RETRIES, TIMEOUT = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has set one of the two."""
    monkeypatch.setenv(RETRIES, "7")
    monkeypatch.delenv(TIMEOUT, raising=False)


def settings() -> tuple[str | None, str | None]:
    return os.environ.get(RETRIES), os.environ.get(TIMEOUT)


def fail_with(value: object) -> None:
    raise ValueError(value)


def test_what_was_set_comes_back_also_after_an_error() -> None:
    with pytest.raises(ValueError, match=r"\('1', '10'\)"), short_retries():
        fail_with(settings())
    assert settings() == ("7", None)


@pytest.mark.parametrize("first_to_leave", ["first", "second"])
def test_two_threads_at_once_are_both_short_and_leave_nothing_behind(first_to_leave: str) -> None:
    inside = {name: threading.Event() for name in ("first", "second")}
    leave = {name: threading.Event() for name in inside}
    left_with: dict[str, tuple[str | None, str | None]] = {}

    def work(name: str) -> None:
        with short_retries():
            inside[name].set()
            assert leave[name].wait(30)
            left_with[name] = settings()

    threads = {name: threading.Thread(target=work, args=(name,)) for name in inside}
    for name in ("first", "second"):
        threads[name].start()
        assert inside[name].wait(30)
    order = sorted(threads, key=lambda name: name != first_to_leave)
    for name in order:
        leave[name].set()
        threads[name].join(30)
        assert settings() == (("1", "10") if name == order[0] else ("7", None))
    assert left_with == {"first": ("1", "10"), "second": ("1", "10")}


def test_many_threads_leave_the_environment_as_it_was() -> None:
    wrong: list[tuple[str | None, str | None]] = []

    def work() -> None:
        for _ in range(200):
            with short_retries():
                wrong.extend([] if settings() == ("1", "10") else [settings()])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert settings() == ("7", None)
