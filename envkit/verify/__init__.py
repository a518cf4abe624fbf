"""Facts, checks and report: what an environment is, and whether Horovod works in it."""
