/* Transfers of NCCL's proxy threads: bytes, and how long each waited for the GPU, its peer and the network.
 *
 * STEPS_MAX transfers are followed at a time; an older one that has not ended is given up. */

#include "calls.h"
#include "layout.h"
#include "network.h"
#include "page_file.h"

#define STEPS_MAX 8192 /* a power of two */

/* Columns of a group, from AT_NETWORK on: those of Network in rank_page/collective_records.py. */
enum { SEND_BYTES, SEND_GPU, SEND_PEER, SEND_NETWORK, RECEIVE_BYTES, RECEIVE_NETWORK, RECEIVE_GPU, NO_COLUMN };

struct step {
    word number, operation, since_ns, bytes;
    _Atomic uint32_t column;
} __attribute__((aligned(64)));

static struct step steps[STEPS_MAX];
static word begun;

static unsigned column_of(int state) {
    switch (state) {
    case STATE_SEND_GPU_WAIT: return SEND_GPU;
    case STATE_SEND_PEER_WAIT: return SEND_PEER;
    case STATE_SEND_WAIT: return SEND_NETWORK;
    case STATE_RECEIVE_WAIT: return RECEIVE_NETWORK;
    case STATE_RECEIVE_FLUSH_WAIT:
    case STATE_RECEIVE_GPU_WAIT: return RECEIVE_GPU;
    default: return NO_COLUMN;
    }
}

static struct step *find(uint64_t number) {
    struct step *step = &steps[number % STEPS_MAX];
    if (number && atomic_load_explicit(&step->number, memory_order_acquire) == number) return step;
    add(collectives + LOST, 1);
    return NULL;
}

static word *totals_of(const void *operation) {
    return collectives + AT_NETWORK + owner_of(operation) * NETWORK_WORDS;
}

/* Charge the time since the last change to the state that ends now. */
static void charge(struct step *step, uint64_t at_ns) {
    unsigned column = atomic_load_explicit(&step->column, memory_order_relaxed);
    if (column >= NO_COLUMN) return;
    const void *operation = (const void *)(uintptr_t)load(&step->operation);
    uint64_t since_ns = load(&step->since_ns), spent_ns = at_ns > since_ns ? at_ns - since_ns : 0;
    add(totals_of(operation) + column, spent_ns);
    if (column == SEND_PEER || column == SEND_NETWORK || column == RECEIVE_NETWORK)
        add_network(number_of(operation), 0, spent_ns);
}

void *start_step(const void *operation) {
    if (owner_of(operation) >= GROUPS_MAX) return NULL;
    uint64_t number = add(&begun, 1) + 1;
    struct step *step = &steps[number % STEPS_MAX];
    store(&step->number, 0);
    store(&step->operation, (uint64_t)(uintptr_t)operation);
    store(&step->since_ns, 0);
    store(&step->bytes, 0);
    atomic_store_explicit(&step->column, NO_COLUMN, memory_order_relaxed);
    atomic_store_explicit(&step->number, number, memory_order_release);
    return handle_of(HANDLE_STEP, direction_of(operation), owner_of(operation), number);
}

/* The size of a transfer is known when it is handed to the network, or has come from there. */
static void count_bytes(struct step *step, int state, uint64_t bytes) {
    uint64_t known = load(&step->bytes);
    if ((state != STATE_SEND_WAIT && state != STATE_RECEIVE_FLUSH_WAIT) || bytes <= known || bytes >> 48) return;
    store(&step->bytes, bytes);
    const void *operation = (const void *)(uintptr_t)load(&step->operation);
    add(totals_of(operation) + (state == STATE_SEND_WAIT ? SEND_BYTES : RECEIVE_BYTES), bytes - known);
    add_network(number_of(operation), bytes - known, 0);
}

void change_step(const void *handle, int state, const union state_arguments *arguments) {
    unsigned column = column_of(state);
    struct step *step = column == NO_COLUMN ? NULL : find(number_of(handle));
    if (!step) return;
    if (column != atomic_load_explicit(&step->column, memory_order_relaxed)) {
        uint64_t at_ns = now_ns();
        charge(step, at_ns);
        store(&step->since_ns, at_ns);
        atomic_store_explicit(&step->column, column, memory_order_relaxed);
    }
    if (arguments) count_bytes(step, state, arguments->proxy_step.bytes);
}

void stop_step(const void *handle) {
    struct step *step = find(number_of(handle));
    if (!step) return;
    charge(step, now_ns());
    store(&step->number, 0);
}
