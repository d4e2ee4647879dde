/* Loads the profiler plugin and calls it as NCCL does, from several threads.
 *
 *     host PLUGIN VERSION orderly|wild|bench SEED ROUNDS
 *
 * `orderly`: each communicator has a thread that issues calls and one that makes their kernel and network events; all
 * of them end, in any order, and the program prints what it did. `wild`: events are nested wrongly, out of order, ended
 * twice or never, handles and contexts are stale or made up, communicators are destroyed while others work and more of
 * them are made than there is room for. `bench`: ns of each event, in turns with calls that do nothing, while SEED - 1
 * other threads call the plugin too. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

#include "interface.h"

enum { COMMUNICATORS = 4, CHANNELS = 3, STEPS = 2, STEP_BYTES = 1000, KERNEL_NS = 500, QUEUE = 64 };

static struct table_v4 *v4;
static struct table_v5 *v5; /* and 6 */
static int version, rounds;

static void log_line(int level, unsigned long subsystem, const char *place, int line, const char *format, ...) {
    (void)level, (void)subsystem, (void)place, (void)line, (void)format;
    fprintf(stderr, "plugin: %s\n", format);
}

static void *make(uint64_t hash, const char *name, int size, int rank, int *mask) {
    void *context = NULL;
    if (v4) v4->init(&context, mask, name, hash, 1, size, rank, log_line);
    else v5->init(&context, hash, mask, name, 1, size, rank, log_line);
    return context;
}

static void *start(void *context, uint64_t kind, void *parent, const union details *details) {
    void *handle = (void *)0xdead;
    struct event_v4 old = {.kind = (uint8_t)kind, .parent = parent, .details = *details};
    struct event_v5 new = {.kind = kind, .parent = parent, .details = *details};
    if (v4) v4->start(context, &handle, &old);
    else v5->start(context, &handle, &new);
    return handle;
}

static void stop(void *handle) { (v4 ? v4->stop : v5->stop)(handle); }
static void record(void *handle, int state, uint64_t value) {
    union state_arguments arguments = {.proxy_step.bytes = value};
    (v4 ? v4->record : v5->record)(handle, state, &arguments);
}
static void destroy(void *context) { (v4 ? v4->finalize : v5->finalize)(context); }

/* -- a call, from the thread that issues it */

static void *issue(void *context, unsigned i) {
    union details of = {0}, work = {0};
    void *api = NULL;
    bool is_send = i % 4 == 3;
    if (version >= 5) {
        if (is_send) of.api_point_to_point.function = "Send", of.api_point_to_point.count = 10,
                     of.api_point_to_point.datatype = "ncclBfloat16";
        else of.api_collective.function = "AllReduce", of.api_collective.count = 100,
             of.api_collective.datatype = "ncclFloat32";
        api = start(context, is_send ? EVENT_API_POINT_TO_POINT : EVENT_API_COLLECTIVE, NULL, &of);
        stop(api);
    }
    if (is_send) work.point_to_point.function = "Send", work.point_to_point.count = 10, work.point_to_point.peer = 1,
                 work.point_to_point.datatype = "ncclBfloat16", work.point_to_point.channels = CHANNELS;
    else work.collective.function = "AllReduce", work.collective.count = 100,
         work.collective.datatype = "ncclFloat32", work.collective.channels = CHANNELS;
    void *handle = start(context, is_send ? EVENT_POINT_TO_POINT : EVENT_COLLECTIVE, api, &work);
    stop(handle);
    return handle;
}

/* -- its work, from the proxy's thread */

static void transfer(void *context, void *operation, bool is_send) {
    static const int sends[] = {STATE_SEND_GPU_WAIT, STATE_SEND_PEER_WAIT, STATE_SEND_WAIT};
    static const int receives[] = {STATE_RECEIVE_WAIT, STATE_RECEIVE_FLUSH_WAIT, STATE_RECEIVE_GPU_WAIT};
    union details of = {0};
    void *step = start(context, EVENT_PROXY_STEP, operation, &of);
    for (int i = 0; i < 3; i++) record(step, (is_send ? sends : receives)[i], STEP_BYTES);
    stop(step);
}

static void work(void *context, void *call, unsigned i) {
    union details of = {0};
    void *kernels[CHANNELS];
    for (unsigned channel = 0; channel < CHANNELS; channel++) {
        of.kernel.channel = (uint8_t)channel;
        of.kernel.device_ns = 1000000 + i;
        kernels[channel] = start(context, EVENT_KERNEL, call, &of);
    }
    memset(&of, 0, sizeof of);
    of.proxy_operation.pid = getpid();
    of.proxy_operation.is_send = i % 2;
    void *operation = start(context, EVENT_PROXY_OPERATION, call, &of);
    for (int j = 0; j < STEPS; j++) transfer(context, operation, i % 2);
    stop(operation);
    for (unsigned channel = CHANNELS; channel-- > 0;) {
        record(kernels[channel], STATE_KERNEL_STOP, 1000000 + i + KERNEL_NS);
        stop(kernels[channel]);
    }
}

struct line {
    void *context, *calls[QUEUE];
    unsigned first, last;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static void *issuer(void *argument) {
    struct line *line = argument;
    for (unsigned i = 0; i < (unsigned)rounds; i++) {
        void *call = issue(line->context, i);
        pthread_mutex_lock(&line->lock);
        while (line->last - line->first == QUEUE) pthread_cond_wait(&line->changed, &line->lock);
        line->calls[line->last++ % QUEUE] = call;
        pthread_cond_signal(&line->changed);
        pthread_mutex_unlock(&line->lock);
    }
    return NULL;
}

static void *worker(void *argument) {
    struct line *line = argument;
    for (unsigned i = 0; i < (unsigned)rounds; i++) {
        pthread_mutex_lock(&line->lock);
        while (line->last == line->first) pthread_cond_wait(&line->changed, &line->lock);
        void *call = line->calls[line->first++ % QUEUE];
        pthread_cond_signal(&line->changed);
        pthread_mutex_unlock(&line->lock);
        work(line->context, call, i);
    }
    return NULL;
}

static void orderly(void) {
    static struct line lines[COMMUNICATORS];
    pthread_t threads[2 * COMMUNICATORS];
    int mask = 0;
    for (int i = 0; i < COMMUNICATORS; i++) {
        pthread_mutex_init(&lines[i].lock, NULL);
        pthread_cond_init(&lines[i].changed, NULL);
        lines[i].context = make(0x1000u + (unsigned)i, i ? "tp" : NULL, 2, 0, &mask);
    }
    for (int i = 0; i < COMMUNICATORS; i++) {
        pthread_create(&threads[2 * i], NULL, issuer, &lines[i]);
        pthread_create(&threads[2 * i + 1], NULL, worker, &lines[i]);
    }
    for (int i = 0; i < 2 * COMMUNICATORS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < COMMUNICATORS; i++) destroy(lines[i].context);
    printf("{\"mask\": %d}\n", mask);
}

/* -- whatever may come */

static void *contexts[COMMUNICATORS];
static void *shared[256]; /* handles that any thread may take, of any kind */

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return *seed;
}

static void one_wild_event(uint64_t *seed) {
    static const uint64_t kinds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 0, 1ull << 40};
    static const char *functions[] = {"AllReduce", "Send", "Recv", "AllGather", "AlltoAll", "", "Broadcast", NULL};
    static const char *datatypes[] = {"ncclFloat32", "nccl", "Unknown", NULL, "", "ncclInt8", "ncclFloat8e5m2", "x"};
    uint64_t dice = next(seed);
    void *handle = __atomic_load_n(&shared[dice >> 8 & 255], __ATOMIC_RELAXED);
    if ((dice & 63) == 0) handle = (void *)(uintptr_t)next(seed);
    void *context = __atomic_load_n(&contexts[dice >> 16 & (COMMUNICATORS - 1)], __ATOMIC_RELAXED);
    if ((dice & 63) == 1) context = (void *)(uintptr_t)next(seed);
    union details of;
    for (unsigned i = 0; i < sizeof of / 8; i++) ((uint64_t *)&of)[i] = next(seed) >> (next(seed) & 63);
    uint64_t kind = kinds[dice >> 24 & 15];
    if (dice >> 55 & 1) kind = kinds[1 + (dice >> 56 & 3)], kind = kind == 2 ? 64 : kind; /* mostly what nests */
    if (dice >> 60 == 0) kind = EVENT_COLLECTIVE;
    if (version == 4) kind &= 255;
    const char *function = functions[dice >> 32 & 7], *datatype = datatypes[dice >> 36 & 7];
    if (kind == EVENT_COLLECTIVE) of.collective.function = function, of.collective.datatype = datatype;
    if (kind == EVENT_POINT_TO_POINT) of.point_to_point.function = function, of.point_to_point.datatype = datatype;
    if (kind == EVENT_API_COLLECTIVE)
        memset(&of.api_collective.is_captured, (int)(dice >> 40 & 1), 1),
            of.api_collective.function = function, of.api_collective.datatype = datatype;
    if (kind == EVENT_API_POINT_TO_POINT)
        memset(&of.api_point_to_point.is_captured, (int)(dice >> 40 & 1), 1),
            of.api_point_to_point.function = function, of.api_point_to_point.datatype = datatype;
    if (kind == EVENT_COPY_COLLECTIVE) of.copy_collective.function = function, of.copy_collective.datatype = datatype;
    if (kind == EVENT_PROXY_OPERATION && dice >> 41 & 1) of.proxy_operation.pid = getpid();
    switch (dice >> 44 & 7) {
    case 0: case 1: case 2:
        handle = start(context, kind, handle, &of);
        __atomic_store_n(&shared[dice >> 48 & 255], handle, __ATOMIC_RELAXED);
        break;
    case 3: case 4: stop(handle); break;
    case 5: if ((dice & 0xff00) == 0x100) (v4 ? v4->record : v5->record)(handle, (int)(dice >> 50 & 31), NULL); break;
    default: record(handle, (int)(dice >> 50 & 31), next(seed) >> (next(seed) & 63));
    }
}

static void *wild_thread(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < rounds; i++) {
        one_wild_event(&seed);
        if (next(&seed) % 997 == 0) { /* destroyed, and others still use it */
            unsigned at = (unsigned)next(&seed) & (COMMUNICATORS - 1);
            int mask;
            destroy(__atomic_load_n(&contexts[at], __ATOMIC_RELAXED));
            __atomic_store_n(&contexts[at], make(next(&seed), "a\"b\\\n\xff", 2 + (int)at, (int)at, &mask), __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void wild(uint64_t seed) {
    pthread_t threads[4];
    int mask = 0;
    for (unsigned i = 0; i < COMMUNICATORS; i++) contexts[i] = make(i, "wild", 2, 1, &mask);
    make(9, "", 0, 0, &mask), make(9, "", 2, 2, &mask), make(9, "", -1, -5, &mask);
    if (v4) v4->start(contexts[0], NULL, NULL), v4->init(NULL, NULL, NULL, 0, 0, 0, 0, NULL);
    else v5->start(contexts[0], NULL, NULL), v5->init(NULL, 0, NULL, NULL, 0, 0, 0, NULL);
    stop(NULL), record(NULL, 22, 0), destroy(NULL);
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, wild_thread, (void *)(4 * seed + i + 1));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("{\"mask\": %d}\n", mask);
}

/* -- cost */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static result bare_start(void *context, void **handle, struct event_v5 *event) {
    __asm__ volatile("" : : "r"(context), "r"(event) : "memory");
    *handle = NULL;
    return SUCCESS;
}
static result bare_stop(void *handle) {
    __asm__ volatile("" : : "r"(handle) : "memory");
    return SUCCESS;
}
static result bare_record(void *handle, int state, union state_arguments *arguments) {
    __asm__ volatile("" : : "r"(handle), "r"(state), "r"(arguments) : "memory");
    return SUCCESS;
}
static struct table_v5 bare = {"bare", NULL, bare_start, bare_stop, bare_record, NULL};

enum { LOOPS = 1000, EVENTS = 8 };

/* ns of one event of each kind: start of a call, its stop, kernel start, state, stop; step start, state, stop. */
static void cost(struct table_v5 *table, void *context, double *ns) {
    static _Thread_local void *calls[LOOPS], *kernels[LOOPS], *operations[LOOPS], *steps[LOOPS];
    struct event_v5 call = {.kind = EVENT_COLLECTIVE}, kernel = {.kind = EVENT_KERNEL},
                    operation = {.kind = EVENT_PROXY_OPERATION}, step = {.kind = EVENT_PROXY_STEP};
    union state_arguments end = {.kernel.device_ns = 2000}, bytes = {.proxy_step.bytes = 1 << 19};
    call.details.collective.function = "ReduceScatter", call.details.collective.datatype = "ncclBfloat16";
    call.details.collective.count = 1 << 20, call.details.collective.channels = 1;
    kernel.details.kernel.device_ns = 1000;
    operation.details.proxy_operation.pid = getpid(), operation.details.proxy_operation.is_send = 1;
    uint64_t at[EVENTS + 1];
    at[0] = now_ns();
    for (int i = 0; i < LOOPS; i++) table->start(context, &calls[i], &call);
    at[1] = now_ns();
    for (int i = 0; i < LOOPS; i++) table->stop(calls[i]);
    at[2] = now_ns();
    for (int i = 0; i < LOOPS; i++) kernel.parent = calls[i], table->start(context, &kernels[i], &kernel);
    at[3] = now_ns();
    for (int i = 0; i < LOOPS; i++) table->record(kernels[i], STATE_KERNEL_STOP, &end);
    at[4] = now_ns();
    for (int i = 0; i < LOOPS; i++) table->stop(kernels[i]);
    at[5] = now_ns();
    for (int i = 0; i < LOOPS; i++) operation.parent = calls[i], table->start(context, &operations[i], &operation);
    uint64_t before = now_ns();
    for (int i = 0; i < LOOPS; i++) step.parent = operations[i], table->start(context, &steps[i], &step);
    at[6] = at[5] + (now_ns() - before);
    before = now_ns();
    for (int i = 0; i < LOOPS; i++) table->record(steps[i], STATE_SEND_WAIT, &bytes);
    at[7] = at[6] + (now_ns() - before);
    before = now_ns();
    for (int i = 0; i < LOOPS; i++) table->stop(steps[i]);
    at[8] = at[7] + (now_ns() - before);
    for (int i = 0; i < LOOPS; i++) table->stop(operations[i]);
    for (int i = 0; i < EVENTS; i++) ns[i] = (double)(at[i + 1] - at[i]) / LOOPS;
}

static int is_over;

static void *beside(void *context) {
    double ns[EVENTS];
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) cost(v5, context, ns);
    return NULL;
}

/* With `threads` - 1 others that call the plugin all the time, each for a communicator of its own. */
static void bench(uint64_t threads) {
    pthread_t others[16];
    static const char *names[] = {"call start", "call stop", "kernel start", "kernel state", "kernel stop",
                                  "step start", "step state", "step stop"};
    int mask;
    void *context = make(1, "bench", 2, 0, &mask);
    double ours[EVENTS], nothing[EVENTS];
    threads = threads > 16 ? 16 : threads;
    for (uint64_t i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, beside, make(1 + i, "beside", 2, 0, &mask));
    for (int round = 0; round < rounds; round++) {
        cost(&bare, context, nothing);
        cost(v5, context, ours);
        printf("{");
        for (int i = 0; i < EVENTS; i++)
            printf("%s\"%s\": [%.2f, %.2f]", i ? ", " : "", names[i], nothing[i], ours[i]);
        printf("}\n");
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (uint64_t i = 1; i < threads; i++) pthread_join(others[i], NULL);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    char symbol[32];
    version = atoi(argv[2]);
    rounds = atoi(argv[5]);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *table = dlsym(library, symbol);
    if (!table) return 1;
    if (version == 4) v4 = table;
    else v5 = table;
    if (!strcmp(argv[3], "orderly")) orderly();
    else if (!strcmp(argv[3], "wild")) wild(strtoull(argv[4], NULL, 10));
    else bench(strtoull(argv[4], NULL, 10));
    if (argv[3][0] != 'b') dlclose(library); /* as NCCL does with the last communicator */
    return 0;
}
