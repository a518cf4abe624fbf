#include <flatbuffers/flatbuffers.h>
static_assert(sizeof(of_the_framework), "");
