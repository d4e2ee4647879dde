/* Compiled hooks of automatic instrumentation, for the calls that every step makes.
 *
 * A hook replaces a function. In the common case (the step thread, a step running, nothing unusual since the last one)
 * it does the same as the Python hook in automatic/frameworks/ and calls the function; otherwise it calls the Python hook,
 * which handles every case. The same tests run with and without compiled hooks.
 */
#include "_fast.h"

typedef enum { NEXT, BACKWARD, BEFORE_STEP, AFTER_STEP, FORWARD, ZERO_GRAD } Kind;
/* The names in goodput.sdk.automatic.hooks. */
static const char *const kind_names[] = {"next", "backward", "before step", "after step", "forward", "zero grad"};

/* Set once by goodput.sdk.automatic.hooks, from the constants of the Python hooks. */
static struct {
    long long check_steps; /* overhead_budget: the Python hook sees at least every so many steps */
    long long quick_ns;    /* loader_stats, and the words of its counters of batches */
    long long word_batches, word_inside, word_wait;
    long long samples_max;     /* recorder */
    long long batch_depth_max; /* hooks: nested containers in a batch */
} constants;

static PyObject *set_constants(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"check_steps", "quick_ns",    "word_batches",    "word_inside",
                            "word_wait",   "samples_max", "batch_depth_max", "word_forward", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLLLLLLL", names, &constants.check_steps, &constants.quick_ns,
                                     &constants.word_batches, &constants.word_inside, &constants.word_wait,
                                     &constants.samples_max, &constants.batch_depth_max, &goodput_word_forward))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *slot_name, *call_name, *shape_name; /* "_compiled_call_impl", "_call_impl", "shape" */

/* The object of a weak reference, borrowed: under the interpreter's lock it lives until code is called. NULL if it is gone or
   `reference` is no weak reference. PyWeakref_GetRef, which Python 3.13 has instead, is not in the limited API of 3.12. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static PyObject *referent_of(PyObject *reference)
{
    PyObject *object = reference != NULL && PyWeakref_Check(reference) ? PyWeakref_GetObject(reference) : NULL;
    return object == Py_None ? NULL : object;
}
#pragma GCC diagnostic pop

static int refers_to(PyObject *reference, PyObject *object)
{
    PyObject *referent = referent_of(reference);
    return referent != NULL && referent == object;
}

/* ------------------------------------------------------------------------------------------- the state of detection
 *
 * The same two types as in plain_training.py, which says what the fields are. */

enum { NOTHING, AFTER_FORWARD, AFTER_BACKWARD }; /* values of TrainingState.after, as there */

typedef struct {
    PyObject_HEAD
    char fetching, fetched, read_ahead, counting, sampling;
    long long samples, skips_left, skipped_ns;
    PyObject *iterator; /* A weak reference or None. */
} FetchState;

/* Fields that every hook reads come first: between two hooks the model's work evicts them from the caches. */
typedef struct {
    PyObject_HEAD
    Clock *clock;
    FetchState *fetches;
    Gaps *gaps;
    long long began, after, other_work;
    long long optimizer_depth, reducers, micro_batches, optimizer_steps;
    char inside, evaluating, trained, preparing, unhooked_steps, routine;
    PyObject *anchor, *optimizer; /* Weak references or None. */
} TrainingState;

/* Stands for a weak reference to an object that is gone, as in training_calls.py. */
static PyObject *call_dead(PyObject *module, PyObject *unused)
{
    Py_RETURN_NONE;
}

static PyMethodDef dead_method = {"dead_reference", call_dead, METH_NOARGS, "A reference to an object that is gone."};
static PyObject *dead_reference;
static PyTypeObject *fetch_state_type, *training_state_type; /* Made when the module is loaded. */

/* A method without arguments, whose body is these statements. */
#define ACTION(Type, name, statements)                           \
    static PyObject *Type##_##name(Type *self, PyObject *unused) \
    {                                                            \
        statements;                                              \
        Py_RETURN_NONE;                                          \
    }

/* A method that sets a flag. */
#define SET_FLAG(Type, name)                                       \
    static PyObject *Type##_set_##name(Type *self, PyObject *value) \
    {                                                              \
        int on = PyObject_IsTrue(value);                           \
        if (on < 0)                                                \
            return NULL;                                           \
        self->name = (char)on;                                     \
        Py_RETURN_NONE;                                            \
    }

static inline int counts_next(FetchState *self)
{
    return self->counting || self->samples == 0;
}

static inline int skips(FetchState *self, PyObject *iterator)
{
    return self->skips_left > 0 && refers_to(self->iterator, iterator);
}

static void skip_batch(FetchState *self, PyObject *iterator, long long ns, int is_quick)
{
    if (!skips(self, iterator))
        return;
    self->skips_left = is_quick ? self->skips_left - 1 : 0;
    self->skipped_ns += is_quick ? ns : 0;
}

static inline void batch_came(FetchState *self, long long samples)
{
    self->fetched = 1;
    self->samples += samples;
}

ACTION(FetchState, begin, self->fetching = 1)
ACTION(FetchState, end, self->fetching = 0)
ACTION(FetchState, step_ended, self->fetched = 0)
SET_FLAG(FetchState, read_ahead)

static PyObject *FetchState_batch_came(FetchState *self, PyObject *argument)
{
    long long samples = PyLong_AsLongLong(argument);
    if (samples == -1 && PyErr_Occurred())
        return NULL;
    batch_came(self, samples);
    Py_RETURN_NONE;
}

static PyObject *FetchState_add_samples(FetchState *self, PyObject *argument)
{
    long long samples = PyLong_AsLongLong(argument);
    if (samples == -1 && PyErr_Occurred())
        return NULL;
    self->samples += samples;
    Py_RETURN_NONE;
}

static PyObject *FetchState_take_samples(FetchState *self, PyObject *unused)
{
    long long samples = self->samples;
    self->samples = 0;
    return PyLong_FromLongLong(samples);
}

static PyObject *FetchState_set_iterator(FetchState *self, PyObject *args)
{
    PyObject *reference;
    int counting;
    if (!PyArg_ParseTuple(args, "Op", &reference, &counting))
        return NULL;
    set_reference(&self->iterator, Py_NewRef(reference));
    self->counting = (char)counting;
    Py_RETURN_NONE;
}

static PyObject *FetchState_set_sampling(FetchState *self, PyObject *args)
{
    int on, continues;
    if (!PyArg_ParseTuple(args, "pp", &on, &continues))
        return NULL;
    self->sampling = (char)on;
    if (!continues)
        self->skips_left = self->skipped_ns = 0;
    Py_RETURN_NONE;
}

static PyObject *FetchState_skips(FetchState *self, PyObject *iterator)
{
    return PyBool_FromLong(skips(self, iterator));
}

static PyObject *FetchState_skipped(FetchState *self, PyObject *args)
{
    PyObject *iterator;
    long long ns;
    int is_quick;
    if (!PyArg_ParseTuple(args, "OLp", &iterator, &ns, &is_quick))
        return NULL;
    skip_batch(self, iterator, ns, is_quick);
    Py_RETURN_NONE;
}

static PyObject *FetchState_measured(FetchState *self, PyObject *args)
{
    PyObject *iterator;
    long long next, skipped_ns = 0;
    if (!PyArg_ParseTuple(args, "OL", &iterator, &next))
        return NULL;
    if (self->sampling && refers_to(self->iterator, iterator)) {
        skipped_ns = self->skipped_ns;
        self->skipped_ns = 0;
        self->skips_left = next;
    }
    return PyLong_FromLongLong(skipped_ns);
}

ACTION(FetchState, forget_iterator, set_reference(&self->iterator, Py_NewRef(Py_None)); self->sampling = 0)
static void open_page_of_fetches(FetchState *self)
{
    self->skips_left = self->skipped_ns = self->samples = 0;
    self->fetching = 0;
}

ACTION(FetchState, page_opened, open_page_of_fetches(self))
ACTION(FetchState, thread_changed, self->fetching = self->fetched = 0)

static PyObject *FetchState_get_counts_next(FetchState *self, void *unused)
{
    return PyBool_FromLong(counts_next(self));
}

static PyObject *FetchState_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    FetchState *self = (FetchState *)PyType_GenericNew(type, NULL, NULL);
    if (self != NULL)
        self->iterator = Py_NewRef(Py_None);
    return (PyObject *)self;
}

static int FetchState_traverse(FetchState *self, visitproc visit, void *arg)
{
    Py_VISIT(self->iterator);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void FetchState_dealloc(FetchState *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->iterator);
    free_instance((PyObject *)self);
}

#define READ_FLAG(Type, field) {#field, Py_T_BOOL, offsetof(Type, field), Py_READONLY, NULL}
#define READ_NUMBER(Type, field) {#field, Py_T_LONGLONG, offsetof(Type, field), Py_READONLY, NULL}
#define READ_OBJECT(Type, field) {#field, Py_T_OBJECT_EX, offsetof(Type, field), Py_READONLY, NULL}
#define CALLS(Type, name, flags) {#name, (PyCFunction)Type##_##name, flags, NULL}

static PyMemberDef FetchState_members[] = {
    READ_FLAG(FetchState, fetching),    READ_FLAG(FetchState, fetched),      READ_FLAG(FetchState, read_ahead),
    READ_FLAG(FetchState, counting),    READ_FLAG(FetchState, sampling),     READ_NUMBER(FetchState, samples),
    READ_NUMBER(FetchState, skips_left), READ_NUMBER(FetchState, skipped_ns), READ_OBJECT(FetchState, iterator),
    {NULL},
};

static PyGetSetDef FetchState_getset[] = {
    {"counts_next", (getter)FetchState_get_counts_next, NULL, NULL, NULL},
    {NULL},
};

static PyMethodDef FetchState_methods[] = {
    CALLS(FetchState, begin, METH_NOARGS),
    CALLS(FetchState, end, METH_NOARGS),
    CALLS(FetchState, batch_came, METH_O),
    CALLS(FetchState, add_samples, METH_O),
    CALLS(FetchState, take_samples, METH_NOARGS),
    CALLS(FetchState, step_ended, METH_NOARGS),
    CALLS(FetchState, set_iterator, METH_VARARGS),
    CALLS(FetchState, set_read_ahead, METH_O),
    CALLS(FetchState, set_sampling, METH_VARARGS),
    CALLS(FetchState, skips, METH_O),
    CALLS(FetchState, skipped, METH_VARARGS),
    CALLS(FetchState, measured, METH_VARARGS),
    CALLS(FetchState, forget_iterator, METH_NOARGS),
    CALLS(FetchState, page_opened, METH_NOARGS),
    CALLS(FetchState, thread_changed, METH_NOARGS),
    {NULL},
};

static PyType_Slot FetchState_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain_training.FetchState."},
    {Py_tp_new, FetchState_new},
    {Py_tp_traverse, FetchState_traverse},
    {Py_tp_dealloc, FetchState_dealloc},
    {Py_tp_members, FetchState_members},
    {Py_tp_getset, FetchState_getset},
    {Py_tp_methods, FetchState_methods},
    {0, NULL},
};

static PyType_Spec FetchState_spec = {
    .name = "goodput.sdk.recorder._fast.FetchState",
    .basicsize = sizeof(FetchState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = FetchState_slots,
};

/* Whether a call of a module is part of other work than training: see TrainingState.in_other_work. */
static int in_other_work(TrainingState *self)
{
    return self->fetches->fetching || goodput_count_open(self->clock, self->other_work) > self->evaluating;
}

static inline void end_detected_step(TrainingState *self)
{
    self->trained = self->fetches->fetched = 0;
    self->after = NOTHING;
}

/* A forward or backward pass of the running step begins. */
static inline void begin_pass(TrainingState *self, int backward)
{
    self->trained = self->inside = 1;
    self->micro_batches += backward;
}

static void end_pass(TrainingState *self, int backward, int follows, int may_be_batch)
{
    self->inside = 0;
    self->after = backward ? AFTER_BACKWARD : AFTER_FORWARD;
    goodput_pass_ended(self->clock, self->gaps, backward, follows, may_be_batch);
}

static inline void end_optimizer(TrainingState *self)
{
    self->optimizer_depth = 0;
    set_reference(&self->optimizer, Py_NewRef(Py_None));
}

static void begin_optimizer(TrainingState *self, PyObject *optimizer)
{
    PyObject *reference = self->anchor;
    if (refers_to(reference, optimizer))
        Py_INCREF(reference);
    else if ((reference = PyWeakref_NewRef(optimizer, NULL)) == NULL) {
        goodput_drop_error();
        reference = Py_NewRef(Py_None);
    }
    self->optimizer_depth = self->trained = 1;
    set_reference(&self->optimizer, reference);
}

static void change_thread(TrainingState *self)
{
    self->began = self->optimizer_depth = self->after = 0;
    self->evaluating = self->inside = self->trained = self->routine = 0;
    self->fetches->fetching = self->fetches->fetched = 0;
}

static void end_training(TrainingState *self)
{
    self->evaluating = self->trained = self->routine = self->fetches->fetched = 0;
    self->began = 0;
    set_reference(&self->anchor, Py_NewRef(dead_reference));
}

static void remove_training(TrainingState *self)
{
    self->trained = self->routine = self->fetches->fetched = self->fetches->read_ahead = 0;
    self->began = self->after = 0;
    set_reference(&self->fetches->iterator, Py_NewRef(Py_None));
}

ACTION(TrainingState, step_dropped, self->began = 0)
ACTION(TrainingState, step_ended, end_detected_step(self))
ACTION(TrainingState, train, self->trained = 1)
ACTION(TrainingState, enter_call, self->inside = 1)
ACTION(TrainingState, leave_call, self->inside = 0)
ACTION(TrainingState, backward_began, begin_pass(self, 1))
ACTION(TrainingState, backward_ended, end_pass(self, 1, 0, 1))
ACTION(TrainingState, forget_last_call, self->after = NOTHING)
ACTION(TrainingState, reducer_created, self->reducers++)
ACTION(TrainingState, evaluation_began, self->after = NOTHING; self->evaluating = 1)
ACTION(TrainingState, evaluation_ended, self->evaluating = 0)
ACTION(TrainingState, nested_step_began, self->optimizer_depth++)
ACTION(TrainingState, nested_step_ended, self->optimizer_depth--)
ACTION(TrainingState, optimizer_ended, end_optimizer(self))
ACTION(TrainingState, optimizer_stepped, self->optimizer_steps++)
static PyObject *TrainingState_page_opened(TrainingState *self, PyObject *unused)
{
    self->micro_batches = 0;
    open_page_of_fetches(self->fetches);
    goodput_set_may_be_batch(self->gaps, 0);
    Py_RETURN_NONE;
}

ACTION(TrainingState, thread_changed, change_thread(self))
ACTION(TrainingState, installed, set_reference(&self->anchor, Py_NewRef(dead_reference)); self->optimizer_steps = 0)
ACTION(TrainingState, training_ended, end_training(self))
ACTION(TrainingState, removed, remove_training(self))
SET_FLAG(TrainingState, routine)
SET_FLAG(TrainingState, preparing)
SET_FLAG(TrainingState, unhooked_steps)

static PyObject *TrainingState_step_began(TrainingState *self, PyObject *argument)
{
    long long start_ns = PyLong_AsLongLong(argument);
    if (start_ns == -1 && PyErr_Occurred())
        return NULL;
    self->began = start_ns;
    Py_RETURN_NONE;
}

static PyObject *TrainingState_forward_ended(TrainingState *self, PyObject *args)
{
    int follows, may_be_batch;
    if (!PyArg_ParseTuple(args, "pp", &follows, &may_be_batch))
        return NULL;
    end_pass(self, 0, follows, may_be_batch);
    Py_RETURN_NONE;
}

static PyObject *TrainingState_set_other_work(TrainingState *self, PyObject *argument)
{
    long long bits = PyLong_AsLongLong(argument);
    if (bits == -1 && PyErr_Occurred())
        return NULL;
    self->other_work = bits;
    Py_RETURN_NONE;
}

static PyObject *TrainingState_set_anchor(TrainingState *self, PyObject *reference)
{
    set_reference(&self->anchor, Py_NewRef(reference));
    Py_RETURN_NONE;
}

static PyObject *TrainingState_optimizer_began(TrainingState *self, PyObject *optimizer)
{
    begin_optimizer(self, optimizer);
    Py_RETURN_NONE;
}

static PyObject *TrainingState_get_in_other_work(TrainingState *self, void *unused)
{
    return PyBool_FromLong(in_other_work(self));
}

static PyObject *TrainingState_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"clock", NULL};
    PyObject *clock;
    TrainingState *self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, goodput_clock_type, &clock))
        return NULL;
    self = (TrainingState *)PyType_GenericNew(type, NULL, NULL);
    if (self == NULL)
        return NULL;
    self->clock = (Clock *)Py_NewRef(clock);
    self->anchor = Py_NewRef(dead_reference);
    self->optimizer = Py_NewRef(Py_None);
    self->fetches = (FetchState *)FetchState_new(fetch_state_type, NULL, NULL);
    self->gaps = (Gaps *)PyObject_CallNoArgs((PyObject *)goodput_gaps_type);
    if (self->fetches == NULL || self->gaps == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* No tp_clear: hooks use `clock`, `fetches` and `gaps` without a check, and the recorder's own tp_clear breaks cycles. */
static int TrainingState_traverse(TrainingState *self, visitproc visit, void *arg)
{
    Py_VISIT(self->clock);
    Py_VISIT(self->fetches);
    Py_VISIT(self->anchor);
    Py_VISIT(self->optimizer);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void TrainingState_dealloc(TrainingState *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->clock);
    Py_XDECREF((PyObject *)self->fetches);
    Py_XDECREF((PyObject *)self->gaps);
    Py_XDECREF((PyObject *)self->anchor);
    Py_XDECREF((PyObject *)self->optimizer);
    free_instance((PyObject *)self);
}

static PyMemberDef TrainingState_members[] = {
    READ_OBJECT(TrainingState, clock),
    READ_OBJECT(TrainingState, fetches),
    READ_OBJECT(TrainingState, gaps),
    READ_NUMBER(TrainingState, began),
    READ_NUMBER(TrainingState, after),
    READ_NUMBER(TrainingState, other_work),
    READ_NUMBER(TrainingState, optimizer_depth),
    READ_NUMBER(TrainingState, reducers),
    READ_NUMBER(TrainingState, micro_batches),
    READ_NUMBER(TrainingState, optimizer_steps),
    READ_FLAG(TrainingState, inside),
    READ_FLAG(TrainingState, evaluating),
    READ_FLAG(TrainingState, trained),
    READ_FLAG(TrainingState, preparing),
    READ_FLAG(TrainingState, unhooked_steps),
    READ_FLAG(TrainingState, routine),
    READ_OBJECT(TrainingState, anchor),
    READ_OBJECT(TrainingState, optimizer),
    {NULL},
};

static PyGetSetDef TrainingState_getset[] = {
    {"in_other_work", (getter)TrainingState_get_in_other_work, NULL, NULL, NULL},
    {NULL},
};

static PyMethodDef TrainingState_methods[] = {
    CALLS(TrainingState, step_began, METH_O),
    CALLS(TrainingState, step_dropped, METH_NOARGS),
    CALLS(TrainingState, step_ended, METH_NOARGS),
    CALLS(TrainingState, set_routine, METH_O),
    CALLS(TrainingState, train, METH_NOARGS),
    CALLS(TrainingState, enter_call, METH_NOARGS),
    CALLS(TrainingState, leave_call, METH_NOARGS),
    CALLS(TrainingState, forward_ended, METH_VARARGS),
    CALLS(TrainingState, backward_began, METH_NOARGS),
    CALLS(TrainingState, backward_ended, METH_NOARGS),
    CALLS(TrainingState, forget_last_call, METH_NOARGS),
    CALLS(TrainingState, reducer_created, METH_NOARGS),
    CALLS(TrainingState, evaluation_began, METH_NOARGS),
    CALLS(TrainingState, evaluation_ended, METH_NOARGS),
    CALLS(TrainingState, set_anchor, METH_O),
    CALLS(TrainingState, optimizer_began, METH_O),
    CALLS(TrainingState, nested_step_began, METH_NOARGS),
    CALLS(TrainingState, nested_step_ended, METH_NOARGS),
    CALLS(TrainingState, optimizer_ended, METH_NOARGS),
    CALLS(TrainingState, optimizer_stepped, METH_NOARGS),
    CALLS(TrainingState, set_preparing, METH_O),
    CALLS(TrainingState, set_unhooked_steps, METH_O),
    CALLS(TrainingState, set_other_work, METH_O),
    CALLS(TrainingState, page_opened, METH_NOARGS),
    CALLS(TrainingState, thread_changed, METH_NOARGS),
    CALLS(TrainingState, installed, METH_NOARGS),
    CALLS(TrainingState, training_ended, METH_NOARGS),
    CALLS(TrainingState, removed, METH_NOARGS),
    {NULL},
};

static PyType_Slot TrainingState_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain_training.TrainingState."},
    {Py_tp_new, TrainingState_new},
    {Py_tp_traverse, TrainingState_traverse},
    {Py_tp_dealloc, TrainingState_dealloc},
    {Py_tp_members, TrainingState_members},
    {Py_tp_getset, TrainingState_getset},
    {Py_tp_methods, TrainingState_methods},
    {0, NULL},
};

static PyType_Spec TrainingState_spec = {
    .name = "goodput.sdk.recorder._fast.TrainingState",
    .basicsize = sizeof(TrainingState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = TrainingState_slots,
};

/* ------------------------------------------------------------------------------------------- Hook */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kind kind;
    Phase *phase;
    TrainingState *training;
    PyObject *function; /* The timed function, or a weak reference to the module. */
    PyObject *slow;     /* The Python hook. */
    PyObject *test;     /* NULL, or called without arguments; the case is common only if it returns true. */
    long long gap;      /* Word that the time before the phase may be charged to, or -1. */
    char returns_loss; /* Of a root module: what follows it is not the loss. */
    PyObject *dict, *weakrefs;
} Hook;

static int is_true(PyObject *function)
{
    PyObject *answer = PyObject_CallNoArgs(function);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (truth < 0)
        goodput_drop_error();
    return truth > 0;
}

static int is_common(Hook *self)
{
    TrainingState *training = self->training;
    FetchState *fetches = training->fetches;
    Clock *clock = training->clock;
    if (this_thread() != clock->thread || training->evaluating)
        return 0;
    if (self->kind != ZERO_GRAD && (training->inside || training->began == 0 || clock->step_start_ns != training->began))
        return 0;
    if (self->kind != NEXT && (clock->depth || fetches->fetching) && in_other_work(training))
        return 0;
    if (training->unhooked_steps && (self->kind == NEXT || self->kind == BACKWARD))
        return 0;
    if (fetches->read_ahead && (self->kind == FORWARD || self->kind == ZERO_GRAD))
        return 0;
    return self->test == NULL || is_true(self->test);
}

/* The module's own _compiled_call_impl, set by Module.compile, as a new reference or NULL. */
static PyObject *own_slot(PyObject *module)
{
    PyObject *dict = PyObject_GenericGetDict(module, NULL), *found;
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    found = PyDict_GetItemWithError(dict, slot_name);
    if (found == NULL)
        PyErr_Clear();
    found = found == NULL || found == Py_None ? NULL : Py_NewRef(found);
    Py_DECREF(dict);
    return found;
}

/* Whether the cost of the running step is measured. */
static int is_measured(Clock *clock)
{
    return clock->costs->measuring && this_thread() == clock->thread;
}

/* Call the user's or the framework's code; its time is not the hook's own cost. */
static PyObject *call_theirs(Clock *clock, PyObject *function, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *result;
    if (clock->costs->hook_ns == 0 || !is_measured(clock))
        return PyObject_Vectorcall(function, args, flags, names);
    goodput_stop_own(clock->costs, 0);
    result = PyObject_Vectorcall(function, args, flags, names);
    if (is_measured(clock))
        goodput_start_own(clock->costs);
    return result;
}

/* Call the timed function. That of a root module is looked up each time, since the module is held weakly. */
static PyObject *call_timed(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *module, *method, *result;
    if (self->kind != FORWARD || !PyWeakref_Check(self->function))
        return call_theirs(clock, self->function, args, flags, names);
    module = referent_of(self->function);
    if (module == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the module is gone");
        return NULL;
    }
    Py_INCREF(module);
    method = own_slot(module);
    if (method == NULL)
        method = PyObject_GetAttr(module, call_name);
    Py_DECREF(module);
    if (method == NULL)
        return NULL;
    result = call_theirs(clock, method, args, flags, names);
    Py_DECREF(method);
    return result;
}

/* Enter the phase, call, exit; the function's result or exception is passed on. */
static PyObject *timed(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *result;
    Py_ssize_t depth;
    int entered = goodput_enter(self->phase) == 0;
    if (!entered)
        goodput_drop_error();
    depth = self->phase->recorder->depth;
    result = call_timed(self, args, flags, names);
    if (entered)
        goodput_exit_after(self->phase, result, depth);
    return result;
}

/* The time before the next phase may belong to it. */
static void claim_gap(Hook *self)
{
    if (self->gap >= 0)
        goodput_claim(self->training->gaps, self->gap);
}

/* The first dimension of the first tensor in a batch, 0 if there is none, -1 on an error. */
static long long samples_of(PyObject *batch)
{
    PyObject *key, *shape, *first;
    long long count;
    Py_ssize_t at;
    for (long long depth = 0; depth < constants.batch_depth_max && batch != NULL; depth++) {
        if (PyTuple_Check(batch))
            batch = PyTuple_Size(batch) ? PyTuple_GetItem(batch, 0) : NULL;
        else if (PyList_Check(batch))
            batch = PyList_Size(batch) ? PyList_GetItem(batch, 0) : NULL;
        else if (PyDict_CheckExact(batch)) {
            at = 0;
            if (!PyDict_Next(batch, &at, &key, &batch))
                batch = NULL;
        } else
            break;
    }
    if (batch == NULL)
        return 0;
    Py_INCREF(batch); /* The attribute lookup may drop the last reference. */
    shape = PyObject_GetAttr(batch, shape_name);
    Py_DECREF(batch);
    if (shape == NULL) {
        goodput_drop_error();
        return -1;
    }
    if (PyTuple_Check(shape) && PyTuple_Size(shape) == 0) {
        Py_DECREF(shape);
        return 1;
    }
    first = PySequence_GetItem(shape, 0);
    Py_DECREF(shape);
    count = first == NULL ? -1 : PyLong_AsLongLong(first);
    Py_XDECREF(first);
    if (PyErr_Occurred())
        goodput_drop_error();
    return count;
}

static void count_in(Clock *clock, long long word, long long number)
{
    if (word > 0 && word < clock->words_count)
        clock->words[word] += (uint64_t)number;
}

/* The total of the phase so far, 0 without a page. */
static long long total_of(Phase *phase)
{
    Clock *clock = phase->recorder;
    return phase->total < clock->words_count ? (long long)clock->words[phase->total] : 0;
}

/* Count a skipped batch, or a fetch that raised. The page may have been replaced meanwhile. */
static void count_skipped(TrainingState *training, PyObject *iterator, long long ns, int came)
{
    Clock *clock = training->clock;
    if (came) {
        count_in(clock, constants.word_batches, 1);
        count_in(clock, constants.word_inside, 1);
    }
    if (ns < 0)
        return;
    count_in(clock, constants.word_wait, ns);
    skip_batch(training->fetches, iterator, ns, ns < constants.quick_ns);
}

static PyObject *next_batch(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    TrainingState *training = self->training;
    FetchState *fetches = training->fetches;
    PyObject *batch;
    long long before = total_of(self->phase), samples = 0;
    int sampling = fetches->sampling;
    training->after = NOTHING;
    fetches->fetching = 1;
    batch = timed(self, args, flags, names);
    fetches->fetching = 0;
    if (sampling && !training->clock->phases_off)
        count_skipped(training, args[0], total_of(self->phase) - before, batch != NULL);
    if (batch != NULL) {
        if (counts_next(fetches))
            samples = samples_of(batch);
        if (samples < 0 || samples >= constants.samples_max || fetches->samples >= constants.samples_max)
            samples = 0;
        batch_came(fetches, samples);
    }
    return batch;
}

/* A forward or backward pass. */
static PyObject *pass(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    TrainingState *training = self->training;
    PyObject *result;
    int backward = self->kind == BACKWARD, follows = training->after == AFTER_FORWARD;
    if (!((!backward || follows) && goodput_claim_batch(training->gaps)) && follows)
        claim_gap(self);
    begin_pass(training, backward);
    result = timed(self, args, flags, names);
    end_pass(training, backward, follows, result != NULL && (backward || self->returns_loss));
    return result;
}

static PyObject *before_step(Hook *self, PyObject *optimizer)
{
    TrainingState *training = self->training;
    begin_optimizer(training, optimizer);
    if (training->after == AFTER_BACKWARD || training->gaps->may_be_batch)
        claim_gap(self);
    if (goodput_enter(self->phase) < 0)
        goodput_drop_error();
    Py_RETURN_NONE;
}

static PyObject *after_step(Hook *self)
{
    TrainingState *training = self->training;
    Clock *clock = training->clock;
    long long samples = training->fetches->samples;
    training->optimizer_steps++;
    end_optimizer(training);
    if (goodput_exit(self->phase, 0) < 0)
        goodput_drop_error();
    end_detected_step(training);
    training->fetches->samples = 0;
    if (goodput_next_step(clock, samples) < 0)
        goodput_drop_error();
    training->began = clock->step_start_ns;
    goodput_set_may_be_batch(training->gaps, 1);
    Py_RETURN_NONE;
}

static PyObject *dispatch(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    TrainingState *training = self->training;
    FetchState *fetches = training->fetches;
    Clock *clock = training->clock;
    PyObject *first = PyVectorcall_NARGS(flags) > 0 ? args[0] : NULL;
    if (self->kind == NEXT && fetches->fetching && this_thread() == clock->thread)
        return call_timed(self, args, flags, names); /* A fetch inside a fetch. */
    if (is_common(self)) {
        switch (self->kind) {
        case NEXT:
            if (first != NULL && refers_to(fetches->iterator, first) && training->optimizer_depth == 0 &&
                (!fetches->sampling || (fetches->skips_left > 0 && clock->current != self->phase->total)))
                return next_batch(self, args, flags, names);
            break;
        case BACKWARD:
            if (training->reducers == 0 && training->after != NOTHING)
                return pass(self, args, flags, names);
            break;
        case BEFORE_STEP:
            if (first != NULL && training->optimizer_depth == 0 && clock->steps > 0 && !training->preparing)
                return before_step(self, first);
            break;
        case AFTER_STEP:
            if (first != NULL && training->routine && (clock->steps + 1) % constants.check_steps != 0 &&
                training->optimizer_depth == 1 && refers_to(training->anchor, first) && !has_device(clock))
                return after_step(self);
            break;
        case FORWARD:
            if (training->routine)
                return pass(self, args, flags, names);
            break;
        case ZERO_GRAD:
            if (training->after == AFTER_BACKWARD) {
                if (training->optimizer_steps == 0)
                    break;
                claim_gap(self);
            } else if (!goodput_claim_batch(training->gaps) && training->after == AFTER_FORWARD)
                goodput_claim(training->gaps, goodput_word_forward); /* The loss. */
            return timed(self, args, flags, names);
        }
    }
    return call_theirs(clock, self->slow, args, flags, names);
}

static PyObject *Hook_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Hook *self = (Hook *)callable;
    Clock *clock = self->phase->recorder;
    PyObject *result;
    if (!clock->costs->measuring || clock->costs->hook_ns || !is_measured(clock))
        return dispatch(self, args, flags, names);
    goodput_start_own(clock->costs);
    result = dispatch(self, args, flags, names);
    goodput_stop_own(clock->costs, 0);
    return result;
}

static int Hook_init(Hook *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "training", "phase", "function", "slow", "test", "gap", NULL};
    PyObject *training, *phase, *function, *slow, *test;
    const char *kind;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!O!OOOL", names, &kind, training_state_type, &training,
                                     goodput_phase_type, &phase, &function, &slow, &test, &self->gap))
        return -1;
    if (((Phase *)phase)->recorder != ((TrainingState *)training)->clock) {
        PyErr_SetString(PyExc_ValueError, "the phase and the training are of two recorders");
        return -1;
    }
    for (self->kind = NEXT; self->kind <= ZERO_GRAD && strcmp(kind, kind_names[self->kind]) != 0;)
        self->kind++;
    if (self->kind > ZERO_GRAD) {
        PyErr_Format(PyExc_ValueError, "unknown kind of hook: %s", kind);
        return -1;
    }
    set_reference((PyObject **)&self->phase, Py_NewRef(phase));
    set_reference((PyObject **)&self->training, Py_NewRef(training));
    set_reference(&self->function, Py_NewRef(function));
    set_reference(&self->slow, Py_NewRef(slow));
    if (test != Py_None)
        set_reference(&self->test, Py_NewRef(test));
    self->vectorcall = Hook_call;
    return 0;
}

static int Hook_traverse(Hook *self, visitproc visit, void *arg)
{
    Py_VISIT(self->phase);
    Py_VISIT(self->training);
    Py_VISIT(self->function);
    Py_VISIT(self->slow);
    Py_VISIT(self->test);
    Py_VISIT(self->dict);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int Hook_clear(Hook *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->slow);
    Py_CLEAR(self->test);
    Py_CLEAR(self->dict);
    return 0;
}

static void Hook_dealloc(Hook *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Hook_clear(self);
    Py_CLEAR(self->phase);
    Py_CLEAR(self->training);
    free_instance((PyObject *)self);
}

/* Bind to the instance, as a function does. */
static PyObject *Hook_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    if (instance == NULL || instance == Py_None)
        return Py_NewRef(self);
    return goodput_bind(self, instance);
}

/* Pickle and copy by name, as a function. */
static PyObject *Hook_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef Hook_methods[] = {
    {"__reduce__", Hook_reduce, METH_NOARGS, "Pickle by name."},
    {NULL},
};

static PyMemberDef Hook_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Hook, vectorcall), Py_READONLY, NULL},
    {"__dictoffset__", Py_T_PYSSIZET, offsetof(Hook, dict), Py_READONLY, NULL},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Hook, weakrefs), Py_READONLY, NULL},
    {"returns_loss", Py_T_BOOL, offsetof(Hook, returns_loss), 0, "whether the root module computes the loss itself"},
    {NULL},
};

static PyGetSetDef Hook_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyType_Slot Hook_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.automatic.hooks."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Hook_init},
    {Py_tp_dealloc, Hook_dealloc},
    {Py_tp_traverse, Hook_traverse},
    {Py_tp_clear, Hook_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, Hook_get},
    {Py_tp_members, Hook_members},
    {Py_tp_getset, Hook_getset},
    {Py_tp_methods, Hook_methods},
    {0, NULL},
};

static PyType_Spec Hook_spec = {
    .name = "goodput.sdk.recorder._fast.Hook",
    .basicsize = sizeof(Hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = Hook_slots,
};

/* ------------------------------------------------------------------------------------------- Slot */

/* The descriptor `_compiled_call_impl` on torch.nn.Module: see automatic/frameworks/torch/forward.py, which fills the list. */
typedef struct {
    PyObject_HEAD
    PyObject *roots; /* A list of tuples: a weak reference to a module, and its timed call. */
    PyObject *find; /* Called with a module that is no root, returns its timed call or None; None while roots are known. */
} Slot;

static PyObject *Slot_get(PyObject *object, PyObject *instance, PyObject *owner)
{
    Slot *self = (Slot *)object;
    PyObject *found;
    if (instance == NULL || instance == Py_None)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_Size(self->roots); i++) {
        PyObject *root = PyList_GetItem(self->roots, i);
        if (refers_to(PyTuple_GetItem(root, 0), instance))
            return Py_NewRef(PyTuple_GetItem(root, 1));
    }
    if (self->find != NULL && self->find != Py_None) {
        found = call_with(self->find, instance);
        if (found == NULL)
            goodput_drop_error();
        else if (found != Py_None)
            return found;
        else
            Py_DECREF(found);
    }
    found = own_slot(instance);
    return found != NULL ? found : Py_NewRef(Py_None);
}

static PyObject *Slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Slot *self = (Slot *)PyType_GenericNew(type, args, kwargs);
    if (self != NULL && (self->roots = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* No tp_clear: `roots` is used without a check, and its own tp_clear breaks cycles. */
static int Slot_traverse(Slot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->roots);
    Py_VISIT(self->find);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void Slot_dealloc(Slot *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->roots);
    Py_CLEAR(self->find);
    free_instance((PyObject *)self);
}

static PyMemberDef Slot_members[] = {
    {"roots", Py_T_OBJECT_EX, offsetof(Slot, roots), Py_READONLY, "tuples of a weak reference and a timed call"},
    {"find", Py_T_OBJECT_EX, offsetof(Slot, find), 0, "returns the timed call of a module that is no root, or None"},
    {NULL},
};

static PyType_Slot Slot_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain_training.Slot."},
    {Py_tp_new, Slot_new},
    {Py_tp_dealloc, Slot_dealloc},
    {Py_tp_traverse, Slot_traverse},
    {Py_tp_descr_get, Slot_get},
    {Py_tp_members, Slot_members},
    {0, NULL},
};

static PyType_Spec Slot_spec = {
    .name = "goodput.sdk.recorder._fast.Slot",
    .basicsize = sizeof(Slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Slot_slots,
};

/* ------------------------------------------------------------------------------------------- the module */

static PyMethodDef functions[] = {
    {"set_constants", (PyCFunction)(void (*)(void))set_constants, METH_VARARGS | METH_KEYWORDS,
     "Take the constants that the hooks share with their Python twins."},
    {"set_collective_constants", (PyCFunction)(void (*)(void))goodput_set_collective_constants,
     METH_VARARGS | METH_KEYWORDS, "Take the words of goodput.rank_page.collective_records."},
    {"fail_by_status", goodput_fail_by_status, METH_VARARGS,
     "Write an event and replace a word of a file if the process exits with another status than 0; False if not possible."},
    {"wait_at_exit", goodput_wait_at_exit, METH_VARARGS,
     "Then close the input of a child process and wait for it; False if no status is waited for."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "goodput.sdk.recorder._fast",
    .m_doc = "The hot path of the SDK, compiled; goodput.sdk.recorder.plain and plain_training are the same in Python.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast(void)
{
    PyObject *made = PyModule_Create(&module);
    slot_name = PyUnicode_InternFromString("_compiled_call_impl");
    call_name = PyUnicode_InternFromString("_call_impl");
    shape_name = PyUnicode_InternFromString("shape");
    dead_reference = PyCFunction_New(&dead_method, NULL);
    if (made == NULL || slot_name == NULL || call_name == NULL || shape_name == NULL || dead_reference == NULL ||
        goodput_init_clock(made) < 0 || goodput_init_collectives(made) < 0 ||
        (fetch_state_type = goodput_add_type(made, &FetchState_spec)) == NULL ||
        (training_state_type = goodput_add_type(made, &TrainingState_spec)) == NULL ||
        goodput_add_type(made, &Hook_spec) == NULL || goodput_add_type(made, &Slot_spec) == NULL)
        Py_CLEAR(made);
    return made;
}
