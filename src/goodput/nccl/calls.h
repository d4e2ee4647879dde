/* The calls that may still run. A handle is kind, direction, communicator and number, and no address. */

#ifndef GOODPUT_NCCL_CALLS_H
#define GOODPUT_NCCL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
