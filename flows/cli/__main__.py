"""python -m flows.cli: the `grpo` command where it is not installed."""

from flows.cli.app import main

main()
