"""Prefect tasks: units of work of a flow, thin adapters over `grpo_core`.

"Task" is Prefect's word here; what a policy is trained and evaluated on lives in `grpo_core/data/`.
"""
