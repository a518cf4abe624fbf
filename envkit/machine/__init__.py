"""Finds what this machine has: compilers, Python, MPI, the modules tool, container runtimes, the site."""
