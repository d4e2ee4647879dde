/* The page of this process.
 *
 * Other processes may write to it, so nothing is decided by its content: words are only stored and added to, and the
 * number of the next record, which is read from it, may be any number. Of the SDK's page two words are read, which decide
 * only whether a call counts as one of a step. */

#ifndef GOODPUT_NCCL_PAGE_FILE_H
#define GOODPUT_NCCL_PAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "words.h"

extern word *page;                /* NULL without one */
extern word *collectives;         /* page + W_COLLECTIVES */
extern word *sdk_page;            /* the head of the SDK's page in this process, to be read alone; NULL without one */
extern _Atomic int is_recording;  /* 0 before there is a page, after a fork and at exit */

/* Make the page of this process, as the rank and size of its first communicator where no launcher names
 * them. `world_size` is that of the job. False, with `reason` filled, if there can be none. */
bool open_page(int rank, int size, uint64_t hash, int64_t *world_size, char *reason, size_t reason_bytes);

#endif
