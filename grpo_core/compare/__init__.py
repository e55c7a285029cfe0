"""Several runs side by side: figures, curves, what each wrote, what differs; `grpo compare` and every sweep's report."""
