"""Import a run's settings from TRL, open-r1, ROLL or VLM-R1: the equivalent configuration, and what became of every key.

`trl.py`, `open_r1.py`, `roll.py` and `vlm_r1.py` are tables of rules; `trl_values.py` and `roll_values.py` convert the values
that depend on several keys. `shell.py` and `launch.py` read scripts, `files.py` other files; `conversion.py` applies the rules,
and `report.py` renders the result. To add a key: one rule, or one name beside a reason.
"""
