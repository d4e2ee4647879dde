/* Communicators as process groups of the page. A slot is given once: sums and records of it stay what they are. */

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "communicators.h"
#include "page_file.h"

#define BACKEND "nccl-profiler" /* account/collective_verdict.py: a call has ended when its exit is known */
#define CONTEXT_BASE 0x676f6f00u

struct communicator communicators[GROUPS_MAX];
static uint64_t hashes[GROUPS_MAX];
static _Atomic unsigned taken;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

/* Printable ASCII; the words are written whole, since a reader may be there. */
static void write_text(word *at, const char *text, size_t bytes) {
    uint64_t packed[TEXT_BYTES / 8] = {0};
    for (size_t i = 0; text && text[i] && i < bytes; i++)
        ((char *)packed)[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    for (size_t i = 0; i < bytes / 8; i++) store(at + i, packed[i]);
}

/* A process may drive several ranks of one communicator: such groups have names of their own, and are compared with no
 * other. */
static void name_of(unsigned slot, int rank, char *text, size_t bytes) {
    bool is_known = false;
    for (unsigned i = 0; i < slot; i++) is_known |= hashes[i] == hashes[slot];
    int length = snprintf(text, bytes, "%016llx", (unsigned long long)hashes[slot]);
    if (is_known) snprintf(text + length, bytes - (size_t)length, ".%d", rank);
}

void *add_communicator(uint64_t hash, const char *name, int size, int rank, int64_t world_size) {
    if (size < 1 || rank < 0 || rank >= size) return NULL;
    pthread_mutex_lock(&adding);
    unsigned slot = taken;
    if (slot < GROUPS_MAX) {
        char text[TEXT_BYTES];
        word *group = collectives + AT_GROUPS + slot * GROUP_WORDS;
        hashes[slot] = hash;
        name_of(slot, rank, text, sizeof text);
        write_text(group + G_NAME, text, TEXT_BYTES);
        write_text(group + G_DESCRIPTION, name, TEXT_BYTES);
        write_text(group + G_BACKEND, BACKEND, BACKEND_BYTES);
        store(group + G_SIZE, (uint64_t)size);
        store(group + G_RANK, (uint64_t)rank);
        if (size == world_size) { /* All ranks, as one run; of others NCCL does not give the ranks. */
            store(group + G_RANKS, 0);
            store(group + G_RANKS + 1, 1);
            store(group + G_RANKS + 2, (uint64_t)size);
            store(group + G_RUNS, 1);
        }
        atomic_store_explicit(&communicators[slot].size, (uint32_t)size, memory_order_relaxed);
        atomic_store_explicit(group + G_SEAL, slot + 1, memory_order_release);
        atomic_store_explicit(collectives + GROUPS, slot + 1, memory_order_release);
        taken++;
    }
    pthread_mutex_unlock(&adding);
    return (void *)(uintptr_t)(CONTEXT_BASE + slot + 1); /* GROUPS_MAX + 1: a communicator that is only counted */
}

unsigned communicator_of(const void *context) {
    uintptr_t slot = (uintptr_t)context - CONTEXT_BASE - 1;
    return slot < GROUPS_MAX ? (unsigned)slot : NO_COMMUNICATOR;
}

bool is_any_open(void) {
    unsigned count = taken;
    for (unsigned i = 0; i < count; i++)
        if (communicators[i].open > 0) return true;
    return false;
}
