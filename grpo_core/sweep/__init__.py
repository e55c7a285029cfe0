"""Sweeps: many runs that differ only in what is varied, and one report on them.

schema, arms        the keys of a sweep file; the values that the axes give each arm, and which of its runs is next
plan, checks        the checked plan: every arm's configuration, the objective; what makes no sense in it
display             what knobs, levels and arms are called, and how figures are written
measures            the figures of a run, which results, tables and MLflow share
folder              the sweep's folder, and what its files hold
campaign, launcher  which run begins, what to do when one has ended, which is not worth finishing; what starts the runs
study               the search, as an Optuna study: the only module that imports Optuna
results, status     tables of all runs and their steps, of which `statistics` and `report` are made; where sweeps and runs are
"""
