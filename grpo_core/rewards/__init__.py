"""Reward functions in TRL's signature, so that TRL's run here unchanged and ours run there."""
