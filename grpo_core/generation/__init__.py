"""Where completions come from: one protocol, an embedded sampler and vLLM."""
