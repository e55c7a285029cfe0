"""One Optuna study in PostgreSQL for several processes, with the packages that are pinned here."""

import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.proof

ASKER = """
import json, sys, time
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
name, address, offset = sys.argv[1], sys.argv[2], float(sys.argv[3])
study = optuna.create_study(storage=address, study_name="search", direction="maximize", load_if_exists=True)

def told(by):
    return [trial for trial in study.get_trials() if trial.user_attrs.get("by") == by and trial.value is not None]

def tell():
    trial = study.ask()
    beta = trial.suggest_float("loss.beta", 0.0, 1.0)
    trial.set_user_attr("by", name)
    study.tell(trial, beta + offset)

other = {"one": "two", "two": "one"}[name]
deadline = time.monotonic() + 60
for count in (1, 2, 3):
    tell()
    while len(told(other)) < count:  # each waits for the other one's: neither could go on alone
        assert time.monotonic() < deadline, "the other process was not seen"
        time.sleep(0.05)
print(json.dumps({trial.number: [trial.user_attrs["by"], trial.params["loss.beta"]] for trial in told("one") + told("two")}))
"""


@pytest.mark.timeout(180)
def test_two_processes_see_each_others_trials_of_one_study(postgres_url: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Made before the two begin: Optuna's tables are not created twice at the same moment.
    storage = optuna.storages.RDBStorage(postgres_url)
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, name, postgres_url, offset], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name, offset in (("one", "0"), ("two", "10"))
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], [errors for _, errors in outputs]
    seen = {int(number): facts for number, facts in json.loads(outputs[0][0]).items()}
    trials = study.get_trials()
    assert [trial.number for trial in trials] == list(range(6))
    assert sorted(trial.user_attrs["by"] for trial in trials) == ["one"] * 3 + ["two"] * 3
    for trial in trials:
        by, beta = trial.user_attrs["by"], trial.params["loss.beta"]
        assert trial.value == pytest.approx(beta + (10 if by == "two" else 0), abs=1e-12)
        assert seen.get(trial.number, [by, beta]) == [by, beta]
    assert study.best_trial.user_attrs["by"] == "two"
    storage.remove_session()
    storage.engine.dispose()


def test_the_server_takes_only_connections_of_this_machine(postgres_url: str) -> None:
    import psycopg

    parts = urlsplit(postgres_url)
    with psycopg.connect(host=parts.hostname, port=parts.port, user=parts.username, dbname="postgres") as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
