"""The harness holds no tests of its own; tests/integration/test_torture.py runs it."""

collect_ignore_glob = ["*"]
