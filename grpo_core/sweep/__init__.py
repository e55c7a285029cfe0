"""Sweeps: what is varied (`schema`, `axes`), what each arm then is (`arms`, `plan`), `schedule`, `pruning`, `results`."""
