"""What compiled files say: ELF, what they load, build flags, the machine code for GPUs."""
