"""LoRA: a frozen base, an adapter that is trained, and references that share the base (Hu et al., arXiv:2106.09685).

`facts` says which layers and reads PEFT's format, without torch; `delta` is the mathematics and the layers that compute with
it, `adapted` the policy.
"""
