"""open-r1: TRL with a registry of reward functions, and data whose prompts are one column."""
