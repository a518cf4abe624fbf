/* Preloaded into a rank: flips one bit of what MPI gives, in the collectives that Horovod calls.
 *
 * FLIP="FUNCTION LEAST MOST PLACE BIT RANK TYPE", several with commas between them: in results of FUNCTION (Allreduce,
 * Allgatherv, Bcast, Alltoallv, Reduce_scatter) of LEAST to MOST bytes, bit BIT (0 is the lowest) of the element at
 * PLACE millionths of the result, in rank RANK or, with -1, in every rank; TYPE is MPI's name for the type of the
 * elements, "half" for Horovod's own one of 2 bytes, or "any". FLIP_SAYS names a file for a line on each flip.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void flip_once(const char *given, const char *function, void *data, long count, MPI_Datatype type,
                      MPI_Comm comm) {
    char wanted[32], kind[32], name[MPI_MAX_OBJECT_NAME] = "";
    long least, most, place;
    int bit, rank, own, width, length;
    const char *says = getenv("FLIP_SAYS");
    if (sscanf(given, "%31s %ld %ld %ld %d %d %31[^,]", wanted, &least, &most, &place, &bit, &rank, kind) != 7)
        return;
    PMPI_Type_size(type, &width);
    PMPI_Type_get_name(type, name, &length);
    PMPI_Comm_rank(comm, &own);
    long bytes = count * width;
    if (strcmp(function, wanted) || bytes < least || bytes > most || (rank >= 0 && rank != own)) return;
    if (strcmp(kind, "any") && strcmp(kind, width == 2 ? "half" : name)) return;
    long element = (long)((double)(count - 1) * place / 1e6);
    bit %= 8 * width;
    ((unsigned char *)data)[element * width + bit / 8] ^= 1u << (bit % 8);
    FILE *file = says ? fopen(says, "a") : NULL;
    if (file) {
        fprintf(file, "%s rank %d element %ld of %ld, width %d, bit %d\n", function, own, element, count, width, bit);
        fclose(file);
    }
}

static void flip(const char *function, void *data, long count, MPI_Datatype type, MPI_Comm comm) {
    const char *given = getenv("FLIP");
    while (given) {
        flip_once(given, function, data, count, type, comm);
        given = strchr(given, ',');
        if (given) given++;
    }
}

static long total(const int *counts, MPI_Comm comm) {
    int size;
    long sum = 0;
    PMPI_Comm_size(comm, &size);
    for (int rank = 0; rank < size; rank++) sum += counts[rank];
    return sum;
}

int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int status = PMPI_Allreduce(in, out, count, type, op, comm);
    flip("Allreduce", out, count, type, comm);
    return status;
}

int MPI_Allgatherv(const void *in, int sent, MPI_Datatype from, void *out, const int counts[], const int places[],
                   MPI_Datatype type, MPI_Comm comm) {
    int status = PMPI_Allgatherv(in, sent, from, out, counts, places, type, comm);
    flip("Allgatherv", out, total(counts, comm), type, comm);
    return status;
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    int status = PMPI_Bcast(data, count, type, root, comm);
    flip("Bcast", data, count, type, comm);
    return status;
}

int MPI_Alltoallv(const void *in, const int sent[], const int from[], MPI_Datatype type, void *out, const int counts[],
                  const int places[], MPI_Datatype received, MPI_Comm comm) {
    int status = PMPI_Alltoallv(in, sent, from, type, out, counts, places, received, comm);
    flip("Alltoallv", out, total(counts, comm), received, comm);
    return status;
}

int MPI_Reduce_scatter(const void *in, void *out, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int rank, status = PMPI_Reduce_scatter(in, out, counts, type, op, comm);
    PMPI_Comm_rank(comm, &rank);
    flip("Reduce_scatter", out, counts[rank], type, comm);
    return status;
}
