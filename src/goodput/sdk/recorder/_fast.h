/* The clock and its phases (_fast.c), for the hooks (_hooks.c) and the module (_module.c). */
#ifndef GOODPUT_FAST_H
#define GOODPUT_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_LONGLONG T_LONGLONG
#define Py_T_BOOL T_BOOL
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_READONLY READONLY
#endif

#define OVERFLOW_BIN 31744
#define OVERFLOW_SECONDS 65520.0
#define BLOCK_BITS 10

typedef struct {
    long long current, began_ns, child_ns;
} Frame;

/* Fields that every hook reads come first and share few cache lines: between two hooks the model's work evicts them. */
typedef struct {
    PyObject_HEAD
    long long thread, last_ns, current, child_ns, began;
    long long step_start_ns;
    long long gap, length; /* Word that the next gap may be charged to, and the length of the last outermost phase. */
    uint64_t *words;
    Py_ssize_t words_count;
    long long word_last, word_phase, word_totals;
    Frame *stack;
    Py_ssize_t depth, room;
    PyObject *device; /* Called with the charged word at each boundary, or NULL. */
    unsigned char *backed; /* One bit for each 1 << BLOCK_BITS words whose memory is allocated. */
    long long hook_ns;
    /* State of automatic instrumentation: see automatic/step_detection.py. */
    char inside, evaluating, trained, fetched, counting, routine, preparing, unhooked_steps;
    char sampling; /* Whether only some batches of the iterator are measured. */
    char fetching; /* Whether a batch is being fetched; a fetch inside it is part of it. */
    char measuring, raised;
    char phases_off; /* Phases are entered and left, and all time is charged to the phase "none". */
    long long after, entries, batch_samples, optimizer_depth, reducers, micro_batches, optimizer_steps;
    PyObject *iterator, *anchor, *optimizer; /* Weak references; `optimizer` is the one whose step is running. */
    /* Batches of a sampled iterator: how many more to skip, the time of the skipped quick ones, and the words that count
     * all batches. */
    long long skips_left, skipped_ns, word_batches, word_inside, word_wait;
    long long steps, samples, step_end_ns, step_next, step_samples, phase_cost_ns, step_cost_ns;
    /* Positions of a step's words, in the order of step_clock.Clock.layout. */
    long long ring, ring_records, record_words, slots, word_outside, word_steps, word_samples, word_step_start,
        word_step_next, word_cost, histograms;
    long long columns; /* Phases in use, of the slots of a record. */
    /* The cost of measuring: see automatic/overhead_budget.py. */
    long long own_ns, reading_ns, extra_cost_ns;
    PyObject *words_object;
    Py_buffer view;
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

/* PyThread_get_thread_ident() is the thread pointer in Linux C libraries; where goodput_add_clock confirmed that, it is
 * read without a call. */
extern int goodput_ident_is_pointer;

static inline long long thread_pointer(void)
{
#if defined(__x86_64__) && defined(__linux__)
    long long pointer;
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
    return pointer;
#else
    return 0;
#endif
}

static inline long long this_thread(void)
{
    return goodput_ident_is_pointer ? thread_pointer() : (long long)PyThread_get_thread_ident();
}

extern PyTypeObject goodput_phase_type;

PyObject *goodput_enter(Phase *phase);
PyObject *goodput_exit(Phase *phase, int raised);
int goodput_next_step(Clock *clock, long long samples);
void goodput_count_own(Clock *clock, long long from);

/* Take the raised exception (NULL if none) and restore it. */
PyObject *goodput_take_error(void);
void goodput_restore_error(PyObject *exception);
void goodput_drop_error(void);

/* The parts of the module. */
PyObject *goodput_bin_of_ns(PyObject *module, PyObject *argument);
int goodput_add_clock(PyObject *module);
int goodput_add_hooks(PyObject *module);
PyObject *goodput_set_constants(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
