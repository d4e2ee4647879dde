/* Calls of NCCL: a record in the page's ring, the sums of its group, and what is needed until it has ended.
 *
 * CALLS_MAX calls are followed at a time; an older one that has not ended is given up, and events that come for it are
 * counted in LOST. Any thread may be in any function; none waits. */

#include <string.h>

#include "calls.h"
#include "communicators.h"
#include "layout.h"
#include "page_file.h"

#define CALLS_MAX 4096 /* a power of two */
#define BYTES_MAX (1ull << 48)     /* of one call; more is taken as unknown */
#define DEVICE_NS_MAX (1ull << 50) /* two weeks */
#define BEAT_NS 1000000ull

enum { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, SEND = 10, RECEIVE };

struct call {
    word state;                   /* number << 1, and 1 when it has ended */
    _Atomic uint32_t about;       /* communicator << 8 | operation */
    _Atomic uint32_t is_attached; /* an event of its work has come after that of the API */
    _Atomic uint32_t expected, started, stopped; /* kernels, one for each channel */
    _Atomic uint32_t is_of_steps; /* entered after the SDK's first step has begun */
    word bytes, device_first, device_last, network_bytes, network_ns;
} __attribute__((aligned(128)));

static struct call calls[CALLS_MAX];
/* What was last stored in the page: the phase, and the time of the last beat, stored at most once in BEAT_NS. */
static struct {
    _Atomic int phase;
    word beat_ns;
} __attribute__((aligned(128))) page_state;

static struct call *find(uint64_t number) {
    struct call *call = &calls[number % CALLS_MAX];
    if (atomic_load_explicit(&call->state, memory_order_acquire) >> 1 == number && number) return call;
    add(collectives + LOST, 1);
    return NULL;
}

/* The words of a call's record, NULL where the ring has gone round. */
static word *record_of(uint64_t number) {
    return load(collectives + WRITTEN) - number < RING ? collectives + AT_RING + (number - 1) % RING * RECORD_WORDS : NULL;
}

/* Raise a word to at least this value; returns what it was. */
static uint64_t raise_to(word *at, uint64_t value) {
    uint64_t old = load(at);
    while (old < value && !atomic_compare_exchange_weak_explicit(at, &old, value, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
    return old;
}

/* Of a word that has one writer at a time, as the calls of one communicator must have. */
static void raise_alone(word *at, uint64_t value) {
    if (load(at) < value) store(at, value);
}

static void beat(uint64_t at_ns) {
    if (at_ns < load(&page_state.beat_ns) + BEAT_NS) return;
    store(&page_state.beat_ns, at_ns);
    store(page + W_LAST, at_ns);
}

static void set_phase(int phase) {
    page_state.phase = phase;
    store(page + W_PHASE, (uint64_t)phase);
}

/* A call of this communicator is open. */
static void note_open(struct communicator *by, uint64_t at_ns) {
    by->open++;
    if (page_state.phase != PHASE_COMMUNICATION) {
        set_phase(PHASE_COMMUNICATION);
        store(&page_state.beat_ns, 0); /* so that the beat is stored at the boundary */
    }
    beat(at_ns);
}

/* A call of it has ended. A thread that opens one meanwhile is either seen by the second check, or sees the phase that
 * the first one stored. */
static void note_end(struct communicator *by, uint64_t at_ns) {
    if (--by->open <= 0 && !is_any_open()) {
        set_phase(PHASE_NONE);
        if (is_any_open()) set_phase(PHASE_COMMUNICATION);
        store(&page_state.beat_ns, 0);
    }
    beat(at_ns);
}

/* -- NCCL's names of functions and types */

static unsigned operation_of(const char *function) {
    static const struct {
        const char *name;
        unsigned operation;
    } names[] = {{"AllReduce", ALL_REDUCE}, {"AllGather", ALL_GATHER}, {"ReduceScatter", REDUCE_SCATTER},
                 {"Send", SEND}, {"Recv", RECEIVE}, {"Broadcast", BROADCAST}, {"Reduce", REDUCE},
                 {"AlltoAll", ALL_TO_ALL}, {"Gather", GATHER}, {"Scatter", SCATTER}, {"SendRecv", SEND}};
    for (unsigned i = 0; function && i < sizeof names / sizeof *names; i++)
        if (function[0] == names[i].name[0] && !strcmp(function, names[i].name)) return names[i].operation;
    return 0;
}

/* Index in collective_records.DTYPES and bytes of an element. NCCL up to 2.29 has no name for its uint8. */
static unsigned dtype_of(const char *name, uint64_t *bytes) {
    static const struct {
        char name[12];
        unsigned char dtype, bytes;
    } names[] = {{"Float32", 1, 4}, {"Bfloat16", 4, 2}, {"Float16", 3, 2}, {"Int8", 5, 1}, {"Float64", 2, 8},
                 {"Uint8", 6, 1}, {"Int32", 8, 4}, {"Int64", 9, 8}, {"Uint32", 18, 4}, {"Uint64", 19, 8},
                 {"Float8e4m3", 13, 1}, {"Float8e5m2", 14, 1}};
    *bytes = 1;
    if (!name || strncmp(name, "nccl", 4)) return 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (name[4] == names[i].name[0] && !strcmp(name + 4, names[i].name)) {
            *bytes = names[i].bytes;
            return names[i].dtype;
        }
    return 0;
}

struct description describe(unsigned communicator, const char *function, const char *datatype, size_t count,
                            int64_t peer) {
    struct description found = {.communicator = communicator, .operation = operation_of(function), .peer = -1};
    uint64_t bytes, factor = 1;
    found.dtype = dtype_of(datatype, &bytes);
    switch (found.operation) {
    case ALL_TO_ALL:
        factor = atomic_load_explicit(&communicators[communicator].size, memory_order_relaxed);
        break;
    case BROADCAST: case REDUCE: case GATHER: case SCATTER: case SEND: case RECEIVE:
        found.peer = peer >= 0 ? peer : -1;
    }
    if (__builtin_mul_overflow((uint64_t)count, bytes * factor, &found.bytes) || found.bytes > BYTES_MAX)
        found.bytes = 0;
    return found;
}

/* -- a call's life */

static void write_record(uint64_t number, const struct description *one, uint64_t sequence, uint64_t at_ns) {
    word *record = collectives + AT_RING + (number - 1) % RING * RECORD_WORDS;
    store(record + R_SEAL, 0); /* A reader copies upwards: what agrees in number and seal is whole. */
    atomic_thread_fence(memory_order_release);
    store(record + R_KIND, one->operation | (uint64_t)one->dtype << 8 | (uint64_t)one->communicator << 32);
    store(record + R_SEQUENCE, sequence);
    store(record + R_PEER, (uint64_t)(one->peer + 1));
    store(record + R_BYTES, one->bytes);
    store(record + R_ENTER, at_ns);
    for (int i = R_RETURN; i <= R_EXPOSED; i++) store(record + i, 0);
    store(record + R_STEP, STEP_BIAS - 1);
    for (int i = R_PHASE; i <= R_NETWORK_NS; i++) store(record + i, 0);
    atomic_store_explicit(record + R_NUMBER, number, memory_order_release);
    atomic_store_explicit(record + R_SEAL, number, memory_order_release);
}

/* As of the SDK's records in sdk/recorder/collectives.py: from the first step on. Without the SDK no call counts. */
static bool have_steps_begun(void) {
    return sdk_page && (load(sdk_page + W_STEPS) || load(sdk_page + W_STEP_START));
}

uint64_t begin_call(const struct description *one) {
    struct communicator *by = &communicators[one->communicator];
    bool is_point_to_point = one->operation == SEND || one->operation == RECEIVE;
    uint64_t at_ns = now_ns(), number = add(collectives + WRITTEN, 1) + 1;
    uint64_t sequence = add(is_point_to_point ? &by->point_to_point : &by->collectives, 1) + 1;
    struct call *call = &calls[number % CALLS_MAX];
    uint64_t old = load(&call->state);
    /* A call that runs may end at this moment; the state of one that has ended does not change. */
    if (old && !(old & 1)) old = atomic_exchange_explicit(&call->state, 0, memory_order_acq_rel);
    else atomic_store_explicit(&call->state, 0, memory_order_release);
    if (old && !(old & 1))
        communicators[atomic_load_explicit(&call->about, memory_order_relaxed) >> 8].open--; /* It is given up. */
    atomic_store_explicit(&call->about, one->communicator << 8 | one->operation, memory_order_relaxed);
    atomic_store_explicit(&call->is_attached, 0, memory_order_relaxed);
    atomic_store_explicit(&call->expected, 0, memory_order_relaxed);
    atomic_store_explicit(&call->started, 0, memory_order_relaxed);
    atomic_store_explicit(&call->stopped, 0, memory_order_relaxed);
    atomic_store_explicit(&call->is_of_steps, have_steps_begun(), memory_order_relaxed);
    store(&call->bytes, one->bytes);
    store(&call->device_first, 0);
    store(&call->device_last, 0);
    store(&call->network_bytes, 0);
    store(&call->network_ns, 0);
    atomic_store_explicit(&call->state, number << 1, memory_order_release);

    write_record(number, one, sequence, at_ns);
    word *group = collectives + AT_GROUPS + one->communicator * GROUP_WORDS;
    word *sums = collectives + AT_SUMS + (one->communicator * OPERATION_SLOTS + one->operation) * SUM_WORDS;
    raise_alone(group + (is_point_to_point ? G_P2P : G_CALLS), sequence);
    raise_alone(group + G_LAST, number);
    add(sums, 1);
    add(sums + 1, one->bytes);
    note_open(by, at_ns);
    return number;
}

/* The work of a call that the API has announced has come; false if the call is over or has its work already, as
 * when a captured graph is launched again. */
bool attach_call(uint64_t number, int64_t peer, unsigned channels) {
    struct call *call = &calls[number % CALLS_MAX];
    if (atomic_load_explicit(&call->state, memory_order_acquire) != number << 1) return false;
    if (atomic_exchange_explicit(&call->is_attached, 1, memory_order_relaxed)) return false;
    atomic_store_explicit(&call->expected, channels, memory_order_relaxed);
    word *record = record_of(number);
    unsigned operation = atomic_load_explicit(&call->about, memory_order_relaxed) & 0xff;
    if (record && peer >= 0 && (operation == SEND || operation == RECEIVE)) store(record + R_PEER, (uint64_t)peer + 1);
    return true;
}

/* The entry of this communicator and operation in the table of device times, NULL where it is full. */
static word *entry_of(unsigned communicator, unsigned operation) {
    enum { NONE, ADDING = 0xff }; /* or the entry's number, from 1 */
    static _Atomic unsigned char places[GROUPS_MAX][OPERATION_SLOTS];
    static _Atomic unsigned count;
    _Atomic unsigned char *place = &places[communicator][operation];
    unsigned char number = *place;
    if (number == NONE && atomic_compare_exchange_strong(place, &number, ADDING)) {
        unsigned at = count < HIDDEN_MAX ? count++ : HIDDEN_MAX;
        if (at >= HIDDEN_MAX) return NULL; /* It stays as it is, so that nobody tries again. */
        store(collectives + AT_HIDDEN + at * HIDDEN_WORDS, communicator * OPERATION_SLOTS + operation + 1);
        *place = number = (unsigned char)(at + 1);
    }
    return number == ADDING ? NULL : collectives + AT_HIDDEN + (number - 1) * HIDDEN_WORDS;
}

/* Add a call to the device times of steps. Of calls of a communicator that run at the same time, as sends and receives
 * of a group do, each moment counts once. */
static void add_of_steps(struct call *call, unsigned communicator, unsigned operation, uint64_t first, uint64_t last) {
    uint64_t until = raise_to(&communicators[communicator].device_until, last);
    if (!atomic_load_explicit(&call->is_of_steps, memory_order_relaxed)) return;
    word *entry = entry_of(communicator, operation);
    if (!entry) return;
    add(entry + 1, 1);
    add(entry + 2, load(&call->bytes));
    if (until < last) add(entry + 3, last - (until > first ? until : first));
}

static void end(struct call *call, uint64_t number, uint64_t at_ns) {
    uint64_t running = number << 1;
    if (!atomic_compare_exchange_strong_explicit(&call->state, &running, running | 1, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return;
    uint64_t first = load(&call->device_first), last = load(&call->device_last);
    uint64_t device_ns = first && last > first && last - first < DEVICE_NS_MAX ? last - first : 0;
    uint32_t about = atomic_load_explicit(&call->about, memory_order_relaxed);
    word *record = record_of(number);
    if (record) {
        if (!load(record + R_RETURN)) store(record + R_RETURN, at_ns);
        store(record + R_EXIT, at_ns);
        store(record + R_DEVICE, device_ns);
    }
    if (device_ns) {
        add(collectives + AT_SUMS + ((about >> 8) * OPERATION_SLOTS + (about & 0xff)) * SUM_WORDS + 3, device_ns);
        add_of_steps(call, about >> 8, about & 0xff, first, last);
    }
    note_end(&communicators[about >> 8], at_ns);
}

void finish_call(uint64_t number) {
    struct call *call = find(number);
    if (call) end(call, number, now_ns());
}

/* End a call whose end no event reports, at the return of the API: one rank alone, no bytes, or one that NCCL makes
 * of sends and receives, which have records of their own. */
void return_from_call(uint64_t number) {
    struct call *call = find(number);
    if (!call) return;
    uint64_t at_ns = now_ns();
    word *record = record_of(number);
    if (record) store(record + R_RETURN, at_ns);
    uint32_t about = atomic_load_explicit(&call->about, memory_order_relaxed);
    unsigned operation = about & 0xff;
    bool is_alone = atomic_load_explicit(&communicators[about >> 8].size, memory_order_relaxed) == 1;
    bool is_empty = record && !load(record + R_BYTES);
    if (is_alone || is_empty || operation == GATHER || operation == SCATTER || operation == ALL_TO_ALL)
        end(call, number, at_ns);
}

/* Work that has no kernel to wait for has ended when it is enqueued, as far as is known. */
void finish_if_unknown(uint64_t number) {
    struct call *call = find(number);
    if (!call) return;
    uint64_t at_ns = now_ns();
    word *record = record_of(number);
    if (record && !load(record + R_RETURN)) store(record + R_RETURN, at_ns);
    if (!atomic_load_explicit(&call->expected, memory_order_relaxed)) end(call, number, at_ns);
}

void close_calls(unsigned communicator) {
    uint64_t at_ns = now_ns();
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        uint64_t state = atomic_load_explicit(&calls[i].state, memory_order_acquire);
        if (state && !(state & 1) &&
            atomic_load_explicit(&calls[i].about, memory_order_relaxed) >> 8 == communicator)
            end(&calls[i], state >> 1, at_ns);
    }
}

/* -- on the device */

void start_kernel(uint64_t number, uint64_t device_ns) {
    struct call *call = find(number);
    if (!call) return;
    atomic_fetch_add_explicit(&call->started, 1, memory_order_relaxed);
    uint64_t old = load(&call->device_first);
    while (device_ns && (!old || device_ns < old) &&
           !atomic_compare_exchange_weak_explicit(&call->device_first, &old, device_ns, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void note_kernel_end(uint64_t number, uint64_t device_ns) {
    struct call *call = find(number);
    if (call) raise_to(&call->device_last, device_ns);
}

void stop_kernel(uint64_t number) {
    struct call *call = find(number);
    if (!call) return;
    uint32_t stopped = atomic_fetch_add_explicit(&call->stopped, 1, memory_order_acq_rel) + 1;
    uint32_t expected = atomic_load_explicit(&call->expected, memory_order_relaxed);
    if (expected && stopped >= expected) end(call, number, now_ns());
}

/* -- on the network */

void add_network(uint64_t number, uint64_t bytes, uint64_t wait_ns) {
    struct call *call = number ? find(number) : NULL;
    if (!call) return;
    if (bytes) add(&call->network_bytes, bytes);
    if (wait_ns) add(&call->network_ns, wait_ns);
}

void write_network(uint64_t number) {
    struct call *call = number ? find(number) : NULL;
    word *record = call ? record_of(number) : NULL;
    if (!record) return;
    store(record + R_NETWORK_BYTES, load(&call->network_bytes));
    store(record + R_NETWORK_NS, load(&call->network_ns));
}
