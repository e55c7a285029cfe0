"""ROLL: what each of its keys becomes here."""
