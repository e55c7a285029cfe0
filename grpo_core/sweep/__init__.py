"""Sweeps: what is varied (`schema`, `axes`), what each arm then is (`arms`, `plan`), where it lies (`folder`), what came of it."""
