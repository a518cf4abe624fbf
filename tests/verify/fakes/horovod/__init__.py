"""A stand-in for Horovod: its ranks talk through files. What it is to do wrong is told in FAKE_* variables."""

__version__ = '0.28.1'  # noqa: Q000
