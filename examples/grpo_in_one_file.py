"""GRPO in one file: Algorithm 1 of DeepSeekMath (arXiv:2402.03300), on `grpo_core.algorithm` alone.

    python examples/grpo_in_one_file.py

A GPT-2 of 18,000 random weights is shown a digit and has to write it three times and stop: `7` -> `7 7 7 <end>`. Every right
token is worth 1/4. There is no tokenizer (a token is a digit, or the end), no data file, no configuration and no class; a run
takes some seconds on one core. It computes in float64 on one thread, so it prints the same figures on every machine; a test
runs it and expects as the last line

    last 10 steps: mean reward 0.871094, mean KL 0.744349

Symbols as in the paper and in `grpo_core.algorithm`: P prompts with G completions each are B = P * G rows (prompt-major) of at
most T tokens; pi_theta is the policy, pi_old the policy that made the completions, pi_ref the reference.
"""

import copy

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.kl import k3
from grpo_core.algorithm.loss import Denominators, grpo_loss
from grpo_core.algorithm.masking import completion_mask

DIGITS, END = 10, 10  # tokens 0..9 are the digits, token 10 ends a completion (and pads it)
T = 6  # most tokens of a completion; 4 are enough
P, G = 8, 8  # prompts of a step, completions of a prompt
STEPS = 150  # explorations: batches of completions
MU = 2  # updates on the completions of one step: "GRPO iterations", mu in Algorithm 1
BETA = 0.02  # weight of the KL term
CLIP_EPS = 0.2  # epsilon of eq. 3
LEARNING_RATE = 2e-3
SYNC_STEPS, ALPHA = 50, 0.6  # every 50 steps the reference moves 60 % of the way to the policy (line 3; mixup as in TR-DPO)
LAST = 10  # the recorded figures are means over the last ten steps


def build_model() -> GPT2LMHeadModel:
    """Return a tiny random GPT-2 in float64, without dropout."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64, "n_positions": 1 + T}
    config = GPT2Config(**sizes, vocab_size=DIGITS + 1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = GPT2LMHeadModel(config).double()
    model.eval()
    return model


@torch.no_grad()
def sample(policy: GPT2LMHeadModel, prompts: Tensor) -> Tensor:
    """Return [B, T] completions of [B, 1] prompts, drawn token by token; what follows the first END is padding."""
    ids = prompts
    for _ in range(T):
        probabilities = policy(input_ids=ids).logits[:, -1].softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, num_samples=1)], dim=1)
    return ids[:, 1:]


def token_logps(model: GPT2LMHeadModel, prompts: Tensor, completions: Tensor) -> Tensor:
    """Return [B, T] log pi(o_t | q, o_<t): position t of the logits predicts token t + 1, so the last one is not needed."""
    logits = model(input_ids=torch.cat([prompts, completions], dim=1)).logits[:, :-1]
    return logits.log_softmax(dim=-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)


def reward(prompts: Tensor, completions: Tensor) -> Tensor:
    """Return [B] rewards: a quarter for each of the first four tokens that is right, up to the first wrong one."""
    wanted = torch.cat([prompts.expand(-1, 3), torch.full_like(prompts, END)], dim=1)
    right_so_far = (completions[:, :4] == wanted).long().cumprod(dim=1)
    return right_so_far.double().sum(dim=1) / 4


@torch.no_grad()
def sync_reference(reference: GPT2LMHeadModel, policy: GPT2LMHeadModel) -> None:
    """Move the reference towards the policy: theta_ref <- alpha theta + (1 - alpha) theta_ref."""
    for ref_parameter, parameter in zip(reference.parameters(), policy.parameters(), strict=True):
        ref_parameter.lerp_(parameter, ALPHA)


def main() -> tuple[float, float]:
    """Train, print a line every ten steps, and return (reward, KL) as means over the last steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = build_model()
    reference = copy.deepcopy(policy)  # Algorithm 1, line 3: pi_ref <- pi_theta
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rewards_seen, kls_seen = [], []

    for step in range(1, STEPS + 1):
        # Lines 5 to 7: a batch of prompts, G completions of each from pi_old, which is the policy as it is now.
        prompts = torch.randint(DIGITS, (P, 1)).repeat_interleave(G, dim=0)
        completions = sample(policy, prompts)
        mask = completion_mask(completions, [END])

        # Lines 8 and 9: rewards, and advantages within each group: A_i = (r_i - mean(r)) / std(r), section 4.1.2.
        rewards = reward(prompts, completions)
        advantages = group_relative_advantages(rewards, group_size=G)

        # What the loss compares with. pi_ref is measured before the update, and so is the KL that is printed (eq. 4, k3).
        with torch.no_grad():
            old_logps = token_logps(policy, prompts, completions)
            ref_logps = token_logps(reference, prompts, completions)
        rewards_seen.append(float(rewards.mean()))
        kls_seen.append(float(k3(ref_logps - old_logps)[mask].mean()))

        # Lines 10 and 11: mu updates on the same completions. Eq. 3: the clipped surrogate minus beta KL, averaged over the
        # tokens of each completion, then over completions. From the second update on, the ratio pi_theta / pi_old leaves 1.
        for _ in range(MU):
            terms = grpo_loss(
                per_token_logps=token_logps(policy, prompts, completions),
                old_per_token_logps=old_logps,
                ref_per_token_logps=ref_logps,
                advantages=advantages,
                loss_mask=mask,
                denominators=Denominators.of(mask, T),
                beta=BETA,
                clip_eps=CLIP_EPS,
            )
            optimizer.zero_grad()
            terms.total.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=1.0)
            optimizer.step()

        # Line 3 again. The paper copies the policy once an outer iteration; here the reference follows it by a share.
        if step % SYNC_STEPS == 0:
            sync_reference(reference, policy)
        if step % 10 == 0:
            print(f"step {step:3d}   reward {rewards_seen[-1]:.3f}   KL to the reference {kls_seen[-1]:.4f} nats a token")

    final = sum(rewards_seen[-LAST:]) / LAST, sum(kls_seen[-LAST:]) / LAST
    print(f"last {LAST} steps: mean reward {final[0]:.6f}, mean KL {final[1]:.6f}")
    return final


if __name__ == "__main__":
    main()
