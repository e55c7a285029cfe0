"""The page of a sweep while it runs, made from the journals so far."""

from contextlib import closing
from pathlib import Path
from statistics import fmean

from grpo_core.config import apply_overrides, validate_config
from grpo_core.sweep.campaign import Campaign, Ended, Job
from grpo_core.sweep.study import SweepStudy
from tests.support.pages import Page
from tests.support.sweeps import stored_sweep, write_run

STEPS = 4


class Launcher:
    """Its first run has finished at the first poll; of the second one two of four steps are written, and it does not end."""

    outlives_the_sweep = False

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self) -> list[Ended]:
        return [Ended(job=self.jobs[0])] if len(self.jobs) == 1 else []

    def interrupt(self) -> None:
        """Nothing runs."""


def test_the_page_shows_each_run_with_its_state_and_reward_and_stops_loading_once_the_sweep_does(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, overrides={"training.steps": STEPS}, runs={"concurrency": 1})
    study, launcher = SweepStudy(stored), Launcher()
    campaign = Campaign(stored, study, {}, launcher, tracking={}, report_line=print, report_percent=lambda _: None)
    with closing(study):
        assert campaign.proceed()
        page = Page(stored.dir.page.read_text())
        assert "0 of 4 runs have ended" in page.text
        assert [one["class"] for one in page.all("span")] == ["chip running", "chip waiting", "chip waiting", "chip waiting"]
        _write(stored.plan.base, launcher.jobs[0], STEPS)
        assert campaign.proceed()
        _write(stored.plan.base, launcher.jobs[1], 2)
        campaign.write_page()
    page = Page(stored.dir.page.read_text())
    assert "1 of 4 runs have ended" in page.text
    rewards = {last: fmean(_reward(arm, step) for step in range(1, last + 1)) for arm, last in ((0, STEPS), (1, 2))}
    assert f"{rewards[STEPS]:.3f} finished" in page.text
    assert f"{rewards[2]:.3f} running" in page.text
    assert "step 2 of 4" in page.text
    assert f"Best so far: β 1 · s0: reward {rewards[2]:.3f}" in page.text
    assert {"http-equiv": "refresh", "content": "10"} in page.all("meta")
    campaign.write_page(is_running=False)
    page = Page(stored.dir.page.read_text())
    assert "the sweep is not running" in page.text
    assert "refresh" not in {one.get("http-equiv") for one in page.all("meta")}


def _reward(arm: int, step: int) -> float:
    return 0.1 * step + 0.5 * arm


def _write(base: object, job: Job, last: int) -> None:
    keys = {key: value for key, value in job.overrides.items() if not key.startswith("tracking.")}
    config = validate_config(apply_overrides(base, keys))
    end = "finished" if last == STEPS else None
    write_run(job.run_dir, config, lambda step: {"reward/mean": _reward(job.arm, step)}, last, end)
