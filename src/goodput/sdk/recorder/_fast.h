/* The clock and its phases (_fast.c), for the hooks (_hooks.c) and the records of collectives (_collectives.c). */
#ifndef GOODPUT_FAST_H
#define GOODPUT_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_LONGLONG T_LONGLONG
#define Py_T_BOOL T_BOOL
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

typedef struct {
    long long current, began_ns, child_ns;
} Frame;

/* See plain.py. */
typedef struct {
    PyObject_HEAD
    long long claimed, batch_word;
    long long forward_ns, between_ns, backward_ns;
    char may_be_batch;
} Gaps;

/* See plain.py. */
typedef struct {
    PyObject_HEAD
    char measuring;
    long long hook_ns; /* Since when our own code runs, of a step whose cost is measured; 0 for no hook. */
    long long own_ns, reading_ns, phase_ns, step_ns, extra_ns;
} Costs;

/* Fields that every boundary reads come first and share few cache lines: between two the model's work evicts them. */
typedef struct {
    PyObject_HEAD
    long long thread, last_ns, current, child_ns;
    long long step_start_ns;
    long long length; /* Of the last outermost phase, in ns. */
    uint64_t *words;
    Py_ssize_t words_count;
    Frame *stack;
    Py_ssize_t depth, room;
    Gaps *gaps; /* Decides what the time before an outermost phase is charged to; NULL: to no phase. */
    PyObject *device; /* Called with the charged word at each boundary, or None. */
    unsigned char *backed; /* One bit for each block of words whose memory is allocated. */
    Costs *costs; /* Never NULL. */
    char raised;
    char phases_off; /* Phases are entered and left, and all time is charged to the phase "none". */
    long long entries;
    long long steps, step_end_ns, step_next, step_samples;
    long long columns; /* Phases in use, of those that a record has room for. */
    Py_buffer view;
} Clock;

typedef struct {
    PyObject_HEAD
    Clock *recorder;
    PyObject *name;
    long long index, total, histogram;
} Phase;

/* Made when the module is loaded, each by its goodput_init function. */
extern PyTypeObject *goodput_gaps_type, *goodput_clock_type, *goodput_phase_type;

/* CLOCK_MONOTONIC. */
static inline long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline long long this_thread(void)
{
    return (long long)PyThread_get_thread_ident();
}

/* The limited API has none of these: Py_XSETREF, PyObject_CallOneArg, and the end of tp_dealloc. */
static inline void set_reference(PyObject **field, PyObject *value)
{
    PyObject *old = *field;
    *field = value;
    Py_XDECREF(old);
}

static inline PyObject *call_with(PyObject *function, PyObject *argument)
{
    return PyObject_Vectorcall(function, &argument, 1, NULL);
}

static inline void free_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static inline int has_device(Clock *clock)
{
    return clock->device != NULL && clock->device != Py_None;
}

/* 0, or -1 with an exception set. */
int goodput_enter(Phase *phase);
int goodput_exit(Phase *phase, int raised);
int goodput_next_step(Clock *clock, long long samples);

/* How many open phases have their bit, by index, among these. */
Py_ssize_t goodput_count_open(Clock *clock, long long bits);

/* The total of the phase `forward`; 0 until the hooks know it. */
extern long long goodput_word_forward;

/* As the methods of Gaps, of which these are the bodies. */
int goodput_claim_batch(Gaps *gaps);
void goodput_claim(Gaps *gaps, long long word);
void goodput_set_may_be_batch(Gaps *gaps, int may_be_batch);
void goodput_pass_ended(Clock *clock, Gaps *gaps, int backward, int follows, int may_be_batch);

/* Exit after a call in the phase that returned `result`; the call's exception, if any, stays set. */
void goodput_exit_after(Phase *phase, PyObject *result, Py_ssize_t depth);

/* A hook's own code begins; and ends, where it had begun, else since `otherwise` if that is not 0. */
void goodput_start_own(Costs *costs);
void goodput_stop_own(Costs *costs, long long otherwise);

/* Take the raised exception (NULL if none), and raise it again. */
PyObject *goodput_take_error(void);
void goodput_restore_error(PyObject *exception);

/* Drop an exception of our own code. */
void goodput_drop_error(void);

/* Add the types to the module and read the constants of the rank page. */
int goodput_init_clock(PyObject *module);

/* Bind a function to an instance, as PyMethod_New does. */
PyObject *goodput_bind(PyObject *function, PyObject *instance);

/* Make a type and add it to the module; a borrowed reference, or NULL with an exception set. */
PyTypeObject *goodput_add_type(PyObject *module, PyType_Spec *spec);

PyObject *goodput_fail_by_status(PyObject *module, PyObject *args);
PyObject *goodput_wait_at_exit(PyObject *module, PyObject *args);

int goodput_init_collectives(PyObject *module);
PyObject *goodput_set_collective_constants(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
