"""Held-out evaluation by one verifier alone: greedy accuracy, pass@k, paired comparison."""
