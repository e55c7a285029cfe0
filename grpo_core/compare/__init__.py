"""Several runs side by side: curves over each other, what differs, and since when; `grpo compare` and every sweep's report."""
