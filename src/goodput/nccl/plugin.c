/* A profiler plugin of NCCL that records its calls in memory outside of the process: the tables of versions 4, 5 and 6.
 *
 * NCCL loads it by NCCL_PROFILER_PLUGIN and calls it from the threads that issue, launch and progress its work. Nothing
 * here waits, allocates or fails: without a page no events are requested, and an event of an unknown call is counted.
 * The first communicator of a process makes the page, under a lock, as does each communicator its group. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "communicators.h"
#include "interface.h"
#include "network.h"
#include "page_file.h"

#define EXPORTED __attribute__((visibility("default")))
#define NAME "goodput"

enum {
    MASK_CALLS = EVENT_COLLECTIVE | EVENT_POINT_TO_POINT | EVENT_KERNEL,
    MASK_NETWORK = EVENT_PROXY_OPERATION | EVENT_PROXY_STEP,
    MASK_API = EVENT_API_COLLECTIVE | EVENT_API_POINT_TO_POINT
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool was_opened;
static int64_t world_size;
static pid_t own_pid;

static bool is_off(void) {
    const char *ours = getenv("GOODPUT_NCCL"), *all = getenv("GOODPUT_DISABLE");
    return (ours && !strcmp(ours, "0")) || (all && *all && strcmp(all, "0"));
}

static bool wants_network(void) {
    const char *ours = getenv("GOODPUT_NCCL");
    return !ours || strcmp(ours, "calls");
}

static void after_fork(void) { atomic_store_explicit(&is_recording, 0, memory_order_relaxed); }

/* Once in a process, by its first communicator. */
static void open_once(int rank, int size, uint64_t hash, logger log) {
    char reason[200] = "switched off by GOODPUT_NCCL or GOODPUT_DISABLE";
    pthread_mutex_lock(&opening);
    if (!was_opened) {
        was_opened = true;
        own_pid = getpid();
        bool is_right = !is_off() && size > 0 && rank >= 0 && rank < size;
        if (is_right && open_page(rank, size, hash, &world_size, reason, sizeof reason)) {
            pthread_atfork(NULL, NULL, after_fork);
            atomic_store_explicit(&is_recording, 1, memory_order_release);
        } else if (log) {
            log(is_off() ? LOG_INFO : LOG_WARN, LOG_OF_INIT, __func__, __LINE__, "goodput: not recorded: %s", reason);
        }
    }
    pthread_mutex_unlock(&opening);
}

static result initialize(void **context, int *mask, int version, const char *name, uint64_t hash, int size, int rank,
                         logger log) {
    if (!context || !mask) return SUCCESS;
    *context = NULL;
    open_once(rank, size, hash, log);
    int wanted = 0;
    if (atomic_load_explicit(&is_recording, memory_order_acquire)) {
        *context = add_communicator(hash, name, size, rank, world_size);
        wanted = MASK_CALLS | (wants_network() ? MASK_NETWORK : 0) | (version >= 5 ? MASK_API : 0) |
                 (version >= 6 ? EVENT_COPY_COLLECTIVE : 0);
    }
    __atomic_store_n(mask, wanted, __ATOMIC_RELAXED); /* NCCL's own variable, which other threads read. */
    return SUCCESS;
}

static result initialize_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int size, int rank,
                            logger log) {
    (void)nodes;
    return initialize(context, mask, 4, name, hash, size, rank, log);
}

static result initialize_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int size, int rank,
                            logger log) {
    (void)nodes;
    return initialize(context, mask, 5, name, hash, size, rank, log);
}

static result initialize_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes, int size, int rank,
                            logger log) {
    (void)nodes;
    return initialize(context, mask, 6, name, hash, size, rank, log);
}

/* -- events */

static void *begin(enum handle_kind kind, const struct description *one) {
    return one->operation ? handle_of(kind, 0, one->communicator, begin_call(one)) : NULL;
}

/* The work of a call: that of the API's event if there is one, else a call of its own. */
static void *start_work(unsigned communicator, const void *parent, const char *function, const char *datatype,
                        size_t count, int64_t peer, unsigned channels) {
    if (communicator == NO_COMMUNICATOR) {
        add(collectives + DROPPED, 1);
        return NULL;
    }
    if (kind_of(parent) == HANDLE_API && owner_of(parent) == communicator &&
        attach_call(number_of(parent), peer, channels))
        return handle_of(HANDLE_CALL, 0, communicator, number_of(parent));
    struct description one = describe(communicator, function, datatype, count, peer);
    void *handle = begin(HANDLE_CALL, &one);
    if (handle) attach_call(number_of(handle), peer, channels);
    return handle;
}

static void *start_api(unsigned communicator, const char *function, const char *datatype, size_t count, int64_t root,
                       bool is_captured) {
    /* Of a captured graph each launch is a call, and capturing is none. */
    if (is_captured || communicator == NO_COMMUNICATOR) return NULL;
    struct description one = describe(communicator, function, datatype, count, root);
    return begin(HANDLE_API, &one);
}

static void *start_kernel_event(const void *parent, const union details *of) {
    if (kind_of(parent) != HANDLE_CALL) return NULL;
    start_kernel(number_of(parent), of->kernel.device_ns);
    return handle_of(HANDLE_KERNEL, 0, owner_of(parent), number_of(parent));
}

/* An operation that this process's proxy makes for another process (PXN) names a parent that lives there. */
static void *start_proxy_event(const void *parent, const union details *of) {
    if (of->proxy_operation.pid != own_pid || kind_of(parent) != HANDLE_CALL) return NULL;
    return handle_of(HANDLE_PROXY, of->proxy_operation.is_send != 0, owner_of(parent), number_of(parent));
}

static void *start(const void *context, uint64_t kind, const void *parent, const union details *of) {
    unsigned communicator = communicator_of(context);
    switch (kind) {
    case EVENT_COLLECTIVE:
        return start_work(communicator, parent, of->collective.function, of->collective.datatype,
                          of->collective.count, of->collective.root, of->collective.channels);
    case EVENT_POINT_TO_POINT:
        return start_work(communicator, parent, of->point_to_point.function, of->point_to_point.datatype,
                          of->point_to_point.count, of->point_to_point.peer, of->point_to_point.channels);
    case EVENT_KERNEL: return start_kernel_event(parent, of);
    case EVENT_PROXY_OPERATION: return start_proxy_event(parent, of);
    case EVENT_PROXY_STEP: return kind_of(parent) == HANDLE_PROXY ? start_step(parent) : NULL;
    case EVENT_API_COLLECTIVE:
        return start_api(communicator, of->api_collective.function, of->api_collective.datatype,
                         of->api_collective.count, of->api_collective.root, of->api_collective.is_captured);
    case EVENT_API_POINT_TO_POINT:
        return start_api(communicator, of->api_point_to_point.function, of->api_point_to_point.datatype,
                         of->api_point_to_point.count, -1, of->api_point_to_point.is_captured);
    case EVENT_COPY_COLLECTIVE:
        return start_work(communicator, parent, of->copy_collective.function, of->copy_collective.datatype,
                          of->copy_collective.count, of->copy_collective.root, 0);
    default: return NULL;
    }
}

static bool is_on(void) { return atomic_load_explicit(&is_recording, memory_order_relaxed); }

static result start_v4(void *context, void **handle, struct event_v4 *event) {
    if (handle) *handle = event && is_on() ? start(context, event->kind, event->parent, &event->details) : NULL;
    return SUCCESS;
}

static result start_v5(void *context, void **handle, struct event_v5 *event) {
    if (handle) *handle = event && is_on() ? start(context, event->kind, event->parent, &event->details) : NULL;
    return SUCCESS;
}

static result stop(void *handle) {
    if (!is_on()) return SUCCESS;
    switch (kind_of(handle)) {
    case HANDLE_CALL: finish_if_unknown(number_of(handle)); break;
    case HANDLE_API: return_from_call(number_of(handle)); break;
    case HANDLE_KERNEL: stop_kernel(number_of(handle)); break;
    case HANDLE_PROXY: write_network(number_of(handle)); break;
    case HANDLE_STEP: stop_step(handle); break;
    default: break;
    }
    return SUCCESS;
}

static result record(void *handle, int state, union state_arguments *arguments) {
    if (!is_on()) return SUCCESS;
    if (kind_of(handle) == HANDLE_STEP) change_step(handle, state, arguments);
    else if (kind_of(handle) == HANDLE_KERNEL && state == STATE_KERNEL_STOP && arguments)
        note_kernel_end(number_of(handle), arguments->kernel.device_ns);
    return SUCCESS;
}

static result finalize(void *context) {
    unsigned communicator = communicator_of(context);
    if (is_on() && communicator != NO_COMMUNICATOR) close_calls(communicator);
    return SUCCESS;
}

EXPORTED struct table_v4 ncclProfiler_v4 = {NAME, initialize_v4, start_v4, stop, record, finalize};
EXPORTED struct table_v5 ncclProfiler_v5 = {NAME, initialize_v5, start_v5, stop, record, finalize};
EXPORTED struct table_v5 ncclProfiler_v6 = {NAME, initialize_v6, start_v5, stop, record, finalize};
