"""A policy for others: a folder of a checkpoint that transformers, PEFT, vLLM and TRL load, with a model card."""
