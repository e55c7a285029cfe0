"""The policy's weights: where they come from, how they are run, what is kept beside them."""
