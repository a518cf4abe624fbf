#include <mpi.h>
int main(int count, char **words) { return MPI_Init(&count, &words); }
