"""Sweeps: many runs that differ only in what is varied, and one report on them.

schema, arms      the keys of a sweep file; the values that the axes give each arm, and which of its runs is next
plan              the checked plan: every arm's configuration, the objective, what makes no sense in it
display           what knobs, levels, arms and the figures of a run are called, and how they are written
folder            the sweep's folder, and what its files hold
campaign          which run begins, what starts it, what to do when one has ended, which is not worth finishing
study             the search, as an Optuna study: the only module that imports Optuna
results, status   the runs and their steps as tables, of which `statistics` and `report` are made; where sweeps and runs are
"""
