/* The types of _fast.c, which _hooks.c uses too. */
#ifndef GOODPUT_FAST_H
#define GOODPUT_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

#define OVERFLOW_BIN 31744
#define OVERFLOW_SECONDS 65520.0
#define BLOCK_BITS 10

typedef struct {
    long long current, began_ns, child_ns;
} Frame;

typedef struct {
    PyObject_HEAD
    PyObject *words_object;
    Py_buffer view;
    uint64_t *words;
    Py_ssize_t words_count;
    unsigned char *backed; /* One bit for each 1 << BLOCK_BITS words whose memory is known to be there. */
    long long thread, last_ns, child_ns, entries, current;
    long long word_last, word_phase, word_totals;
    /* Where a step's words lie, in the order of clock.Clock.layout. */
    long long ring, ring_records, record_words, slots, word_outside, word_steps, word_samples, word_step_start,
        word_step_next, word_cost, histograms;
    long long columns; /* Phases that may have time, of the slots that a record has. */
    long long steps, samples, step_start_ns, step_end_ns, step_next, step_samples, phase_cost_ns, step_cost_ns;
    long long gap, length; /* What the next gap may be charged to, and how long the last outermost phase took. */
    /* What automatic instrumentation knows between its hooks: see automatic.Automatic. */
    long long began, after, batch_samples, optimizer_depth, micro_batches, optimizer_steps, reducers;
    char inside, evaluating, trained, fetched, counting, plain, preparing, sampled, unseen;
    /* The overhead budget: see budget.py. While `resting` steps are left nothing is measured. */
    long long own_ns, rest_ns, reading_ns, hook_ns, extra_cost_ns, resting, rested, skipped;
    char measuring;
    long long passes, passed; /* Quick batches that are not looked at: how many may come, how many came. */
    PyObject *passing;        /* Weak reference to the iterator that makes them. */
    PyObject *iterator, *anchor, *optimizer; /* Weak references; the last to the one that steps. */
    PyObject *device;      /* Called with the charged word at each boundary, or NULL. */
    char raised;
    Frame *stack;
    Py_ssize_t depth, room;
} Clock;

typedef struct {
    PyObject_HEAD
    Clock *recorder;
    PyObject *name;
    long long index, total, histogram;
} Phase;

/* CLOCK_MONOTONIC. */
static inline long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000LL + t.tv_nsec;
}

PyObject *goodput_enter(Phase *phase);
PyObject *goodput_exit(Phase *phase, int raised);
PyObject *goodput_turn_step(Clock *clock, long long samples);
void goodput_count_own(Clock *clock, long long from);
void goodput_forgive(void);
int goodput_add_hooks(PyObject *module, PyTypeObject *phase_type);

#endif
