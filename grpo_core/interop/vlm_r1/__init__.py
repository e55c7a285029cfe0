"""VLM-R1: a fork of an older TRL for models with images, started by shell scripts."""
