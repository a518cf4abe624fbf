"""Reads compiled files: ELF, what they load, build flags, the machine code for GPUs."""
