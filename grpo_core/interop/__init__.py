"""Import a run's settings from TRL, open-r1, ROLL or VLM-R1: the equivalent configuration, and what became of every key.

`trl.py`, `trl_family.py`, `vlm_r1.py` and `roll.py` are tables of rules with the functions for values that depend on several
keys; `no_counterpart.py` has the keys that are only listed. `shell.py` reads scripts, `files.py` other files; `conversion.py`
applies the rules, `report.py` renders the result, and `vlm_r1_rows.py` writes VLM-R1's data as rows of ours. To add a key: one
rule, or one name beside a reason.
"""
