/* NCCL's profiler interface, versions 4 to 6: the tables that a plugin exports and the events that NCCL passes to it.
 *
 * Written from the facts in NVIDIA/nccl: src/include/plugin/nccl_profiler.h and
 * src/include/plugin/profiler/profiler_v4.h, _v5.h, _v6.h. NCCL 2.27 looks for `ncclProfiler_v4`, 2.28 for v5 first,
 * 2.29 for v6 first; a later one that has v7 converts its events to v6. Only what the plugin reads is named here:
 * version 5 has more fields after those of version 4, and version 6 more kinds of events, so one set of structures
 * serves all three. */

#ifndef GOODPUT_NCCL_INTERFACE_H
#define GOODPUT_NCCL_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Kinds of events, bits of the mask that `init` sets. From API_COLLECTIVE on of version 5, COPY_COLLECTIVE of 6. */
enum {
    EVENT_COLLECTIVE = 1 << 1,
    EVENT_POINT_TO_POINT = 1 << 2,
    EVENT_PROXY_OPERATION = 1 << 3,
    EVENT_PROXY_STEP = 1 << 4,
    EVENT_KERNEL = 1 << 6,
    EVENT_API_COLLECTIVE = 1 << 9,
    EVENT_API_POINT_TO_POINT = 1 << 10,
    EVENT_COPY_COLLECTIVE = 1 << 12
};

/* States that an event reports. A proxy step waits for what its state names. */
enum {
    STATE_SEND_GPU_WAIT = 8,
    STATE_SEND_WAIT = 9,
    STATE_RECEIVE_WAIT = 10,
    STATE_RECEIVE_FLUSH_WAIT = 11,
    STATE_RECEIVE_GPU_WAIT = 12,
    STATE_SEND_PEER_WAIT = 20,
    STATE_KERNEL_STOP = 22
};

union details {
    struct {
        uint64_t sequence;
        const char *function;
        const void *send_buffer;
        void *receive_buffer;
        size_t count;
        int root;
        const char *datatype;
        uint8_t channels;
        uint8_t warps;
        const char *algorithm;
        const char *protocol;
    } collective;
    struct {
        const char *function;
        void *buffer;
        const char *datatype;
        size_t count;
        int peer;
        uint8_t channels;
    } point_to_point;
    struct {
        pid_t pid; /* of the process that issued the operation */
        uint8_t channel;
        int peer;
        int steps;
        int chunk_bytes;
        int is_send;
    } proxy_operation;
    struct {
        int step;
    } proxy_step;
    struct {
        uint8_t channel;
        uint64_t device_ns; /* the GPU's global timer */
    } kernel;
    struct {
        const char *function;
        size_t count;
        const char *datatype;
        int root;
        void *stream;
        bool is_captured;
    } api_collective;
    struct {
        const char *function;
        size_t count;
        const char *datatype;
        void *stream;
        bool is_captured;
    } api_point_to_point;
    struct {
        uint64_t sequence;
        const char *function;
        const void *send_buffer;
        void *receive_buffer;
        size_t count;
        int root;
        const char *datatype;
        const char *synchronization;
        bool is_synchronized_in_batch;
        uint32_t batch_size;
        uint32_t batches;
        uint32_t copy_sequence;
        void *stream;
    } copy_collective;
};

struct event_v4 {
    uint8_t kind;
    void *parent;
    int rank;
    union details details;
};

struct event_v5 { /* and version 6 */
    uint64_t kind;
    void *parent;
    int rank;
    union details details;
};

_Static_assert(offsetof(struct event_v4, details) == 24 && offsetof(struct event_v5, details) == 24,
               "events of all versions have their details at one place");

union state_arguments {
    struct {
        size_t bytes; /* of the transfer */
    } proxy_step;
    struct {
        uint64_t device_ns;
    } kernel;
};

typedef int result; /* ncclResult_t; 0 is ncclSuccess */
enum { SUCCESS = 0 };

enum { LOG_WARN = 2, LOG_INFO = 3, LOG_OF_INIT = 1 };
typedef void (*logger)(int level, unsigned long subsystem, const char *place, int line, const char *format, ...);

struct table_v4 {
    const char *name;
    result (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int size, int rank, logger);
    result (*start)(void *context, void **handle, struct event_v4 *);
    result (*stop)(void *handle);
    result (*record)(void *handle, int state, union state_arguments *);
    result (*finalize)(void *context);
};

struct table_v5 { /* and version 6 */
    const char *name;
    result (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int size, int rank, logger);
    result (*start)(void *context, void **handle, struct event_v5 *);
    result (*stop)(void *handle);
    result (*record)(void *handle, int state, union state_arguments *);
    result (*finalize)(void *context);
};

#endif
