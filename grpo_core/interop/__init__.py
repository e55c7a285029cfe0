"""Import a run's settings from TRL, open-r1, ROLL or VLM-R1: the equivalent configuration, and what became of every key.

`trl.py`, `trl_family.py` and `roll.py` are tables of rules with the functions for values that depend on several keys;
`no_counterpart.py` has the keys that are only listed. `shell.py` reads scripts, `files.py` other files; `conversion.py` applies
the rules, and `report.py` renders the result. To add a key: one rule, or one name beside a reason.
"""
