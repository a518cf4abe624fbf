"""Processes, files and namespaces: what is done to the operating system, and where the package lies on it."""
