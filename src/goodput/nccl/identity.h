/* The identity of this process: the folder of the pages, a page's file name without its suffix and attempt, and the
 * identity as JSON. */

#ifndef GOODPUT_NCCL_IDENTITY_H
#define GOODPUT_NCCL_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

struct identity {
    char directory[1024];
    char stem[400];
    int64_t attempt, world_size;
    char text[IDENTITY_BYTES_MAX];
    size_t length;
    uint64_t start_ns;
};
void resolve_identity(struct identity *, int rank, int size, uint64_t hash);
void write_identity(struct identity *);

#endif
