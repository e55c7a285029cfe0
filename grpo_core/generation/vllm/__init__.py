"""Rollouts from a vLLM server in an environment of its own; only this package knows vLLM's names and routes.

`client` speaks HTTP, `weights` moves the policy's weights, `proof` finds out whether they are used, `server` starts servers and
`sampler` puts these together. `plugin/` is installed into vLLM's environment.
"""
