"""The harness holds no tests of its own; tests/unit/test_mutants.py checks its table."""

collect_ignore_glob = ["*"]
