"""TRL: what each of its keys becomes here, and what its engine is given."""
