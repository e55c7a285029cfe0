"""The search, as an Optuna study: a trial is an arm, its value the mean objective over seeds.

Each suggestion is drawn with a generator of its own, seeded by (sweep seed, trial, key): it depends on the results so far and
on nothing that a process remembers. So a resumed sweep continues with the suggestions that it would have made, also if it was
killed between two keys of one trial.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from grpo_core.errors import SweepError, raised_as
from grpo_core.sweep.arms import Arm, Values, grid
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.plan import TPE_STARTUP
from grpo_core.sweep.schema import STUDY_VARIABLE, Range, SweepConfig
from grpo_core.text import kept_uri

CONSTRAINT = "over_bound"
"""Constraint of a trial: how far its mean drift is over `objective.kl_bound`."""


class ArmSampler(RandomSampler):
    """Suggests each key of each trial by itself, with a fresh generator."""

    def __init__(self, sweep: SweepConfig, chosen: Sequence[Values]) -> None:
        """Take the sampler of a sweep; of a grid, the arms that were chosen before its axes had more values come first."""
        super().__init__()
        self._sweep = sweep
        self._grid = [*chosen, *(one for one in grid(sweep) if one not in chosen)] if sweep.sampler == "grid" else []

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the value of one key of one trial."""
        if self._grid:
            return json.dumps(self._grid[trial.number][param_name])
        seed = derived_seed(self._sweep.sampler_seed, trial.number, param_name)
        tpe = TPESampler(seed=seed, multivariate=False, n_startup_trials=TPE_STARTUP)
        searcher = tpe if self._sweep.sampler == "tpe" else RandomSampler(seed=seed)
        return searcher.sample_independent(study, trial, param_name, param_distribution)


def derived_seed(*parts: object) -> int:
    """Return a seed of 32 bits that the parts decide, on any machine.

    >>> derived_seed(0, 7, "loss.beta") == derived_seed(0, 7, "loss.beta") != derived_seed(0, 8, "loss.beta")
    True
    """
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:4], "big")


class SweepStudy:
    """The trials of one sweep."""

    def __init__(self, stored: StoredSweep) -> None:
        """Open the study of a sweep, a new one where it has none.

        Raises:
            SweepError: its storage cannot be reached, or is not the one in which the study was created.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sweep = stored.plan.sweep
        self._axes, self._distributions = sweep.axes, {key: _distribution(axis) for key, axis in sweep.axes.items()}
        url = sweep.study or os.environ.get(STUDY_VARIABLE) or f"sqlite:///{stored.dir.study_file.resolve()}"
        remedy = f"correct `study` or {STUDY_VARIABLE} to where the sweep began, or start its server"
        with raised_as(SweepError, f"study: {kept_uri(url)} cannot be used ({{cause}}); {remedy}", Exception):
            # SQLAlchemy and its drivers raise unrelated types.
            self._storage = RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
            chosen, is_grid = stored.dir.read_arms(), sweep.sampler == "grid"
            # The values of an axis are fixed in a study, so a grid to which some were added has a new one.
            name = f"{stored.id}-{len(stored.extensions)}" if is_grid and stored.extensions else stored.id
            if is_grid or not stored.dir.arms_file.exists():
                optuna.create_study(storage=self._storage, study_name=name, direction="maximize", load_if_exists=True)
            self._study = optuna.load_study(
                storage=self._storage, study_name=name, sampler=ArmSampler(sweep, [arm.values for arm in chosen.values()])
            )
            while is_grid and len(self._study.trials) < len(chosen):
                self.ask()

    def close(self) -> None:
        """Close the connections to the storage."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def arms(self) -> dict[int, Arm]:
        """Return the arms that have been asked for, by number; one that was left half-suggested is completed."""
        return {trial.number: self._arm(trial) for trial in self._study.get_trials(deepcopy=False)}

    def ask(self) -> Arm:
        """Choose the next arm."""
        return self._arm(self._study.ask())

    def open_arms(self) -> set[int]:
        """Return the numbers of the arms without a value."""
        return {trial.number for trial in self._study.get_trials(deepcopy=False) if not trial.state.is_finished()}

    def tell(
        self, arm: int, value: float | None, over_bound: float | None = None, pruned_at: tuple[int, float] | None = None
    ) -> None:
        """Report what came of an arm.

        Args:
            arm: its number.
            value: mean objective over its seeds; None = it failed, or was pruned.
            over_bound: mean drift minus `objective.kl_bound`; positive = it is never the best.
            pruned_at: (step, reward there) of a pruned run.
        """
        trial = Trial(self._study, next(trial for trial in self._study.get_trials() if trial.number == arm)._trial_id)
        if over_bound is not None:
            trial.set_constraint(CONSTRAINT, over_bound)
        if pruned_at is not None:
            trial.report(pruned_at[1], pruned_at[0])
        without_value = TrialState.PRUNED if pruned_at is not None else TrialState.FAIL
        self._study.tell(trial, value, state=without_value if value is None else None)

    def _arm(self, trial: FrozenTrial | Trial) -> Arm:
        params: Mapping[str, Any] = trial.params
        if set(params) != set(self._distributions):
            live = trial if isinstance(trial, Trial) else Trial(self._study, trial._trial_id)
            params = {key: live._suggest(key, distribution) for key, distribution in self._distributions.items()}
        values = {key: params[key] if isinstance(axis, Range) else json.loads(params[key]) for key, axis in self._axes.items()}
        return Arm(number=trial.number, values=values)


def _distribution(axis: Any) -> BaseDistribution:
    """Return the values of an axis for Optuna, listed ones as JSON: it can hold neither lists nor mappings."""
    if not isinstance(axis, Range):
        return CategoricalDistribution([json.dumps(value) for value in axis])
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log, step=axis.step)
