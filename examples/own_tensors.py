"""Use the advantages, the loss and the KL estimators on tensors of your own, in a training loop of your own.

    python examples/own_tensors.py

P = 2 prompts with G = 2 completions each are B = 4 rows, prompt-major, of at most T = 2 tokens. Nothing here reads a
configuration or a file; `grpo_in_one_file.py` is a whole training made of these functions.
"""

import torch

from grpo_core import Denominators, group_relative_advantages, grpo_loss, per_token_kl

G, T = 2, 2
rewards = torch.tensor([1.0, 0.0, 0.5, 0.5])  # of the second group all are equal: it teaches nothing
advantages = group_relative_advantages(rewards, group_size=G, scale="none")
print("advantages", advantages.tolist())

# Log-probabilities of the completions' tokens, of the policy (with gradient) and of the reference.
logps = torch.full((4, T), 0.5).log().requires_grad_()
ref_logps = torch.tensor([[0.25, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]).log()
# The tokens that count: a completion ends with its first end-of-sequence token. The last row has one token.
mask = torch.tensor([[True, True], [True, True], [True, True], [True, False]])

k3 = per_token_kl(ref_logps - logps.detach(), "k3")
print(f"k3 of the first token {k3[0, 0]:.6f}")  # r = 1/2: r - 1 - log r

terms = grpo_loss(
    per_token_logps=logps,
    old_per_token_logps=logps.detach(),  # nothing was updated since the completions were sampled: the ratio is 1
    ref_per_token_logps=ref_logps,
    advantages=advantages,
    loss_mask=mask,
    denominators=Denominators.of(mask, T),  # of the whole optimizer step; micro-batches share them
    beta=0.1,
    aggregation="token-mean",
)
terms.total.backward()
print(f"policy {terms.policy:.6f}, KL {terms.kl:.6f}, total {terms.total:.6f}")
print(f"gradient of the first row {[round(value, 6) for value in logps.grad[0].tolist()]}")
