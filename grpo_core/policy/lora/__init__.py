"""LoRA: a frozen base, an adapter that is trained, and references that share the base (Hu et al., arXiv:2106.09685).

`delta` is the mathematics, `layers` what a model computes with, `adapted` the policy, `folder` PEFT's format.
"""
