"""The files of the worst tokens: which stay, and how the command shows what is in them."""

from typing import Any

from typer.testing import CliRunner, Result

from flows.cli.app import app
from grpo_core.run.black_box import read_tokens, write_tokens
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.journal import Journal

HOSTILE = "\x1b[2J\x07</script>\nalert: "


def token(**changes: Any) -> dict[str, Any]:
    texts = {"prompt": "1 + 1 =", "before": " ", "token": "2", "after": "<|end|>"}
    return {"kind": "ratio", "value": 2.0, "position": 1, "prompt_id": 3, "reward": 1.0, **texts, **changes}


def test_the_newest_forty_stay_and_those_before_the_first_alert_of_each_rule(tiny_run: Any) -> None:
    run = tiny_run()
    for step in range(1, 131):
        write_tokens(run, step, [token(value=float(step))])
        if step in (33, 60):
            add_alert(run, 31, "a rule fired", "kl_budget") if step == 33 else add_alert(run, 59, "again", "kl_budget")
    kept = read_tokens(run, 130)
    assert list(kept) == [*range(12, 32), *range(91, 131)]
    assert [kept[step][0]["value"] for step in (12, 130)] == [12.0, 130.0]
    assert list(read_tokens(run, 20)) == [*range(12, 21)]


def test_what_is_no_number_and_a_damaged_file(tiny_run: Any) -> None:
    run = tiny_run()
    write_tokens(run, 1, [token(value=float("nan"))])
    write_tokens(run, 2, [token()])
    (run.black_box / "step_000002.json").write_text("[{")
    assert {step: [one["value"] for one in found] for step, found in read_tokens(run, 2).items()} == {1: ["nan"]}


def collapsed(run: RunDir) -> Result:
    """Return what came of the command, of a run whose drift is beyond its alarm from step 2 on."""
    journal = Journal(run.journal_file)
    journal.append("start", 0, {})
    for step in range(1, 6):
        journal.append("step", step, {"metrics": {"kl/init/drift": 0.1 if step == 1 else 2.0, "reward/mean": 0.5}})
        write_tokens(run, step, [token(before=HOSTILE, token=HOSTILE, prompt=HOSTILE, value=float(step))])
    journal.close()
    add_alert(run, 2, "kl/init/drift is 2", "kl_budget")
    return CliRunner().invoke(app, ["why", str(run.path)])


def test_the_command_shows_hostile_text_as_text(tiny_run: Any) -> None:
    done = collapsed(tiny_run())
    assert done.exit_code == 0, done.exception
    lines = done.output.splitlines()
    assert lines[1:3] == [
        "it began at step 2: KL to the initial policy moved first",
        "  step 2: KL to the initial policy 2, above 1 (its alarm)",
    ]
    assert "  kl/init/drift is 2" in lines
    assert "worst tokens of step 2 (blackbox/ has those of 5 steps)" in lines
    shown = next(line for line in lines if line.startswith("  ratio 2 "))
    assert r"\x1b[2J\x07</script>\nalert: " in shown
    assert not any("\x1b" in line or line.startswith("alert: ") for line in lines)


def test_a_table_that_cannot_be_read_hides_nothing_else_and_more_alerts_than_fit_are_counted(tiny_run: Any) -> None:
    run = tiny_run()
    run.completions.mkdir()
    run.completions_file(1).write_text("torn")
    for _ in range(11):
        add_alert(run, 1, "noise", "kl_rate")
    lines = collapsed(run).output.splitlines()
    assert lines[1] == "it began at step 2: KL to the initial policy moved first"
    assert "alerts, the first 10 of 12" in lines
    assert any(line.startswith("worst tokens of step 2") for line in lines)


def test_the_batch_that_the_noise_suggests_is_a_ratio_of_means(tiny_run: Any) -> None:
    run = tiny_run()
    journal = Journal(run.journal_file)
    journal.append("start", 0, {})
    for step, (variance, signal) in enumerate([(6.0, 3.0), (2.0, -1.0)], start=1):  # 8 / 2, not a mean of ratios
        journal.append("step", step, {"metrics": {"optim/grad_variance": variance, "optim/grad_signal": signal}})
    journal.close()
    size = run.read_config().rollout.num_prompts_per_step
    lines = CliRunner().invoke(app, ["why", str(run.path)]).output.splitlines()
    assert f"gradient noise scale, mean of 2 step(s): 4 prompts; a step has {size} (docs/collapse.md)" in lines
