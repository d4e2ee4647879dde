/* Words of the page, which threads and other processes share, and the clock. Everything is in static memory of a fixed
 * size; every counter is an atomic, without an order between them. */

#ifndef GOODPUT_NCCL_WORDS_H
#define GOODPUT_NCCL_WORDS_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef _Atomic uint64_t word;

static inline uint64_t load(word *at) { return atomic_load_explicit(at, memory_order_relaxed); }
static inline void store(word *at, uint64_t value) { atomic_store_explicit(at, value, memory_order_relaxed); }
static inline uint64_t add(word *at, uint64_t value) {
    return atomic_fetch_add_explicit(at, value, memory_order_relaxed);
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

#endif
