"""Import a run's settings from TRL or ROLL: the equivalent configuration, and what became of every key.

`trl/` and `roll/` are tables of rules, `conversion.py` applies them, `report.py` renders the result; `tables.py` renders
the tables themselves for the documentation. TRL's table also works the other way round: `trl_arguments` makes of a
configuration what TRL's trainer is given. To add a key: one rule, or one name in a group of `ignored.py`.
"""
