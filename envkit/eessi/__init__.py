"""EESSI, the shared European software stack: the ways to its repository, sessions, and what is in it."""
