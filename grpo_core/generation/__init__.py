"""Where completions come from: one protocol, and the embedded sampler."""
