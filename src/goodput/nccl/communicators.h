/* Communicators as process groups of the page. The context that NCCL keeps of one is a number, so an event of one that was
 * destroyed, or of another process, has no effect. */

#ifndef GOODPUT_NCCL_COMMUNICATORS_H
#define GOODPUT_NCCL_COMMUNICATORS_H

#include <stdbool.h>

#include "layout.h"
#include "words.h"

enum { NO_COMMUNICATOR = 0xff };
struct communicator {
    word collectives, point_to_point; /* calls */
    word device_until;                /* the last end of a call, by the GPU's timer */
    _Atomic int64_t open;             /* calls that have not ended */
    _Atomic uint32_t size;
} __attribute__((aligned(128))); /* Threads of different communicators share no cache line. */
extern struct communicator communicators[GROUPS_MAX];
bool is_any_open(void);
void *add_communicator(uint64_t hash, const char *name, int size, int rank, int64_t world_size);
unsigned communicator_of(const void *context);

#endif
