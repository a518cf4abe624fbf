"""The doctor: what this machine offers, and by which method a Horovod environment can be had on it."""
