"""Get Horovod to run on HPC systems, and prove that it does."""

__version__ = "0.1.0"
