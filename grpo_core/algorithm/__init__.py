"""The algorithm as pure tensor functions; imports torch, jaxtyping for the shapes, and nothing else.

Shapes are part of every signature: `Float[Tensor, "B T"]` is a floating-point tensor of B rows and T columns, and a letter has
one size within a call. The tests check them at run time. The letters, here and in `policy/` and `training/`:

| letter        | axis                                                                              |
|---------------|-----------------------------------------------------------------------------------|
| `P`, `G`      | prompts; completions of one prompt (the group)                                    |
| `B = P * G`   | rows: completions of a step, prompt-major (row `p * G + g`); `b` some of them     |
| `T`           | tokens of the longest completion, padded on the right; `t` of the longest of `b`  |
| `S`           | tokens of the longest prompt, padded on the left                                  |
| `N`           | tokens that a mask selects, row after row                                         |
| `H`, `V`      | hidden size; vocabulary                                                           |
| `*shape`      | any axes                                                                          |

| module       | what it holds                                     | source                                  |
|--------------|---------------------------------------------------|-----------------------------------------|
| `masking`    | which sampled tokens count                        | TRL, verifiers                          |
| `logprobs`   | log-probabilities and entropy, in chunks          | -                                       |
| `advantages` | group-relative advantages                         | DeepSeekMath eq. in 4.1.2; RLOO; Dr.GRPO|
| `kl`         | estimators of KL(policy || reference)             | Schulman 2020; DeepSeekMath eq. 4       |
| `loss`       | clipped surrogate, aggregation, their sum         | DeepSeekMath eq. 3; DAPO; Dr.GRPO       |
"""
