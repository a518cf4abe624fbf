"""Environments: the place of each, the way into it, and what is written down of it."""
