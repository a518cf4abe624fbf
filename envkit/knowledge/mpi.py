"""The families of MPI, by what the command line calls them."""

FAMILIES = {
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "intelmpi": "Intel MPI",
    "mvapich": "MVAPICH",
    "cray": "Cray MPICH",
}
