"""Sweeps: many runs that differ only in what is varied, and one report on them.

schema, axes        the keys of a sweep file, and the values that each axis takes
plan                the checked plan: every arm's configuration, and what the arms contradict together (plan_measured)
arms, display       one arm; what knobs, levels and arms are called, and how figures are written
measures, measured  the figures of a run, which results, tables and MLflow share; what was measured at its end
folder, file_models the sweep's folder, and what its files hold
campaign, schedule  which run is next, and what to do when one has ended; launcher, gpus: what starts the runs
pruning, settling   which runs are not worth finishing; the value of an arm
study               the search, as an Optuna study: the only module that imports Optuna
results             tables of all runs and their steps; `statistics` and `report` make the findings and the page of them
"""
