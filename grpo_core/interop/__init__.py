"""Import a run's settings from TRL, open-r1, ROLL or VLM-R1: the equivalent configuration, and what became of every key.

`trl/`, `open_r1/`, `roll/` and `vlm_r1/` are tables of rules, and `shell/` reads scripts. `conversion.py` applies the rules,
`report.py` renders the result, `tables.py` the tables themselves for the documentation. TRL's table also works the other way
round: `trl_arguments` makes of a configuration what TRL's trainer is given. To add a key: one rule, or one name in a group.
"""
