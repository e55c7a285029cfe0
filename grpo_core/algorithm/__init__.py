"""The algorithm as pure tensor functions; imports torch and nothing else.

Legend for every module here: `P` prompts, `G` completions of one prompt, `B = P * G` rows in prompt-major order
(row `p * G + g`), `T` completion tokens, `V` vocabulary, `N` loss tokens.

| module       | what it holds                                     | source                                  |
|--------------|---------------------------------------------------|-----------------------------------------|
| `masking`    | which sampled tokens count                        | TRL, verifiers                          |
| `logprobs`   | log-probabilities and entropy, in chunks          | -                                       |
| `advantages` | group-relative advantages                         | DeepSeekMath eq. in 4.1.2; RLOO; Dr.GRPO|
| `kl`         | estimators of KL(policy || reference)             | Schulman 2020; DeepSeekMath eq. 4       |
| `loss`       | clipped surrogate, aggregation, their sum         | DeepSeekMath eq. 3; DAPO; Dr.GRPO       |
"""
