"""Flows: the order of things, one screen each."""
