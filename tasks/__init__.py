"""Prefect tasks: units of work of a flow, thin adapters over `grpo_core`. (Evaluation data sets live in `grpo_core/data/`.)"""
