"""Rollouts from a vLLM server in an environment of its own; only this package knows vLLM's names and routes.

`client` speaks HTTP, `colocated` is a vLLM in the training process, `opening` starts servers from the lines in `launch`, and
`sampler` moves the policy's weights, finds out whether they are used, and samples. `plugin/` is installed beside vLLM.
"""
