"""Several runs side by side: figures, curves, what each wrote, what differs and since when; `grpo compare` and every sweep's report."""
