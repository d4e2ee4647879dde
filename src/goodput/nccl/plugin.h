/* What the files of the plugin share. Everything is in static memory of a fixed size; every counter is an atomic. */

#ifndef GOODPUT_NCCL_PLUGIN_H
#define GOODPUT_NCCL_PLUGIN_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "interface.h"
#include "layout.h"

typedef _Atomic uint64_t word;

/* Other processes may write to the page, so nothing here is decided by its content: words are only stored and added to,
 * and the number of the next record, which is read from it, may be any number. */
extern word *page;                /* NULL without one */
extern word *collectives;         /* page + W_COLLECTIVES */
extern _Atomic int is_recording;  /* 0 before there is a page, after a fork and at exit */

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

/* page_file.c: make the page of this process, as the rank and size of its first communicator where no launcher names
 * them. `world_size` is that of the job. False, with `reason` filled, if there can be none. */
bool open_page(int rank, int size, uint64_t hash, int64_t *world_size, char *reason, size_t reason_bytes);

/* identity.c: the folder of the pages, a page's file name without its suffix and attempt, and its identity as JSON. */
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

/* communicators.c: a communicator is a process group of the page; its context is a number, so an event of one that was
 * destroyed, or of another process, leads nowhere. */
enum { NO_COMMUNICATOR = 0xff };
struct communicator {
    word collectives, point_to_point; /* calls */
    _Atomic int64_t open;             /* calls that have not ended */
    _Atomic uint32_t size;
} __attribute__((aligned(128))); /* Threads of different communicators share no cache line. */
extern struct communicator communicators[GROUPS_MAX];
bool is_any_open(void);
void *add_communicator(uint64_t hash, const char *name, int size, int rank, int64_t world_size);
unsigned communicator_of(const void *context);

/* calls.c: the calls that may still run. A handle is kind, direction, communicator and number, and no address. */
enum handle_kind { HANDLE_NONE, HANDLE_CALL, HANDLE_API, HANDLE_KERNEL, HANDLE_PROXY, HANDLE_STEP };
static inline void *handle_of(enum handle_kind kind, unsigned is_send, unsigned communicator, uint64_t number) {
    return (void *)(uintptr_t)(kind | (uint64_t)is_send << 3 | (uint64_t)communicator << 4 | number << 12);
}
static inline enum handle_kind kind_of(const void *handle) { return (enum handle_kind)((uintptr_t)handle & 7); }
static inline unsigned direction_of(const void *handle) { return (unsigned)((uintptr_t)handle >> 3 & 1); }
static inline unsigned owner_of(const void *handle) { return (unsigned)((uintptr_t)handle >> 4 & 0xff); }
static inline uint64_t number_of(const void *handle) { return (uintptr_t)handle >> 12; }

struct description {
    unsigned communicator, operation, dtype;
    uint64_t bytes;
    int64_t peer; /* -1: none, or not known yet */
};
/* `operation` 0: no call that is recorded. */
struct description describe(unsigned communicator, const char *function, const char *datatype, size_t count, int64_t peer);
uint64_t begin_call(const struct description *);
bool attach_call(uint64_t number, int64_t peer, unsigned channels);
void return_from_call(uint64_t number);
void finish_call(uint64_t number);
void finish_if_unknown(uint64_t number);
void start_kernel(uint64_t number, uint64_t device_ns);
void note_kernel_end(uint64_t number, uint64_t device_ns);
void stop_kernel(uint64_t number);
void add_network(uint64_t number, uint64_t bytes, uint64_t wait_ns);
void write_network(uint64_t number);
void close_calls(unsigned communicator);

/* network.c: the transfers that the proxy thread makes. */
void *start_step(const void *operation);
void change_step(const void *handle, int state, const union state_arguments *);
void stop_step(const void *handle);

#endif
