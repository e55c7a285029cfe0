"""Where completions come from: one protocol, an embedded sampler, a scripted one for tests and dry runs."""
