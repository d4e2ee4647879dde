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
    long long nothing, after_forward, after_backward; /* values of Clock.after: step_detection */
    long long check_steps; /* overhead_budget: the Python hook sees at least every so many steps */
    long long quick_ns;    /* loader_stats, and the words of its counters of batches */
    long long word_batches, word_inside, word_wait;
    long long samples_max;     /* recorder */
    long long batch_depth_max; /* hooks: nested containers in a batch */
} constants;

static PyObject *set_constants(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nothing", "after_forward", "after_backward", "check_steps", "quick_ns", "word_batches",
                            "word_inside", "word_wait", "samples_max", "batch_depth_max", "word_forward", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLLLLLLLLLL", names, &constants.nothing, &constants.after_forward,
                                     &constants.after_backward, &constants.check_steps, &constants.quick_ns,
                                     &constants.word_batches, &constants.word_inside, &constants.word_wait,
                                     &constants.samples_max, &constants.batch_depth_max,
                                     &goodput_word_forward))
        return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kind kind;
    Phase *phase;
    PyObject *function; /* The timed function, or a weak reference to the module. */
    PyObject *slow;     /* The Python hook. */
    PyObject *test;     /* NULL, or called without arguments; the case is common only if it returns true. */
    long long gap;      /* Word that the time before the phase may be charged to, or -1. */
    char returns_loss; /* Of a root module: what follows it is not the loss. */
    PyObject *dict, *weakrefs;
} Hook;

static PyObject *slot_name, *call_name, *shape_name; /* "_compiled_call_impl", "_call_impl", "shape" */

/* A new reference to the object of a weak reference; NULL if it is gone or `reference` is no weak reference. */
static PyObject *referent_of(PyObject *reference)
{
    PyObject *object = NULL;
    if (reference == NULL || !PyWeakref_Check(reference))
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(reference, &object) < 0)
        PyErr_Clear();
#else
    object = PyWeakref_GetObject(reference);
    object = object == Py_None ? NULL : Py_NewRef(object);
#endif
    return object;
}

static int refers_to(PyObject *reference, PyObject *object)
{
    PyObject *referent = referent_of(reference);
    Py_XDECREF(referent);
    return referent != NULL && referent == object;
}

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
    Clock *clock = self->phase->recorder;
    if (clock == NULL || this_thread() != clock->thread || clock->evaluating)
        return 0;
    if (self->kind != ZERO_GRAD && (clock->inside || clock->began == 0 || clock->step_start_ns != clock->began))
        return 0;
    if (self->kind != NEXT && (clock->depth || clock->fetching) && goodput_in_other_work(clock))
        return 0;
    if (clock->unhooked_steps && (self->kind == NEXT || self->kind == BACKWARD))
        return 0;
    if (clock->read_ahead && (self->kind == FORWARD || self->kind == ZERO_GRAD))
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
    return clock->measuring && this_thread() == clock->thread;
}

/* Call the user's or the framework's code; its time is not the hook's own cost. */
static PyObject *call_theirs(Clock *clock, PyObject *function, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *result;
    if (clock->hook_ns == 0 || !is_measured(clock))
        return PyObject_Vectorcall(function, args, flags, names);
    goodput_stop_own(clock, 0);
    result = PyObject_Vectorcall(function, args, flags, names);
    if (is_measured(clock))
        goodput_start_own(clock);
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
        self->phase->recorder->gap = self->gap;
}

/* The time before the next phase is the making of a batch, if nothing contradicts it; returns whether it is. */
static int claim_batch(Clock *clock)
{
    if (!clock->batch_gap || clock->batch_word == 0)
        return 0;
    clock->gap = clock->batch_word;
    return 1;
}

/* The first dimension of the first tensor in a batch, 0 if there is none, -1 on an error. */
static long long samples_of(PyObject *batch)
{
    PyObject *key, *shape, *first;
    long long count;
    Py_ssize_t at;
    for (long long depth = 0; depth < constants.batch_depth_max && batch != NULL; depth++) {
        if (PyTuple_Check(batch))
            batch = PyTuple_GET_SIZE(batch) ? PyTuple_GET_ITEM(batch, 0) : NULL;
        else if (PyList_Check(batch))
            batch = PyList_GET_SIZE(batch) ? PyList_GET_ITEM(batch, 0) : NULL;
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
    if (PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) == 0) {
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
static void count_skipped(Clock *clock, PyObject *iterator, long long ns, int came)
{
    if (came) {
        count_in(clock, constants.word_batches, 1);
        count_in(clock, constants.word_inside, 1);
    }
    if (ns < 0)
        return;
    count_in(clock, constants.word_wait, ns);
    if (clock->skips_left > 0 && refers_to(clock->iterator, iterator)) {
        clock->skips_left--;
        if (ns < constants.quick_ns)
            clock->skipped_ns += ns;
        else
            clock->skips_left = 0; /* A slow batch of unknown cause: measure the next one. */
    }
}

static PyObject *next_batch(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *batch;
    long long before = total_of(self->phase);
    int sampling = clock->sampling;
    clock->after = constants.nothing;
    clock->fetching = 1;
    batch = timed(self, args, flags, names);
    clock->fetching = 0;
    if (sampling && !clock->phases_off)
        count_skipped(clock, args[0], total_of(self->phase) - before, batch != NULL);
    if (batch != NULL) {
        clock->fetched = 1;
        /* With several loaders in a step, the samples of the first count. */
        if (clock->counting || clock->batch_samples == 0) {
            long long samples = samples_of(batch);
            if (samples > 0 && clock->batch_samples < constants.samples_max)
                clock->batch_samples += samples < constants.samples_max ? samples : 0;
        }
    }
    return batch;
}

/* A forward or backward pass. */
static PyObject *pass(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *result;
    int backward = self->kind == BACKWARD, follows = clock->after == constants.after_forward;
    if (!((!backward || follows) && claim_batch(clock)) && follows)
        claim_gap(self);
    clock->trained = clock->inside = 1;
    clock->micro_batches += backward;
    result = timed(self, args, flags, names);
    clock->inside = 0;
    if (backward || !follows)
        clock->forward_ns = clock->gaps_ns = 0;
    if (clock->depth == 0) { /* Else `length` is of another phase. */
        if (backward)
            clock->backward_length = clock->length;
        else
            clock->forward_ns += clock->length;
    }
    clock->batch_gap = result != NULL && (backward || self->returns_loss);
    clock->after = backward ? constants.after_backward : constants.after_forward;
    return result;
}

static PyObject *before_step(Hook *self, PyObject *optimizer)
{
    Clock *clock = self->phase->recorder;
    PyObject *reference = clock->anchor;
    if (refers_to(reference, optimizer))
        Py_INCREF(reference);
    else if ((reference = PyWeakref_NewRef(optimizer, NULL)) == NULL) {
        goodput_drop_error();
        reference = Py_NewRef(Py_None);
    }
    clock->optimizer_depth = 1;
    Py_XSETREF(clock->optimizer, reference);
    if (clock->after == constants.after_backward || clock->batch_gap)
        claim_gap(self);
    clock->trained = 1;
    if (goodput_enter(self->phase) < 0)
        goodput_drop_error();
    Py_RETURN_NONE;
}

static PyObject *after_step(Hook *self)
{
    Clock *clock = self->phase->recorder;
    long long samples = clock->batch_samples;
    clock->optimizer_steps++;
    clock->optimizer_depth = 0;
    Py_XSETREF(clock->optimizer, Py_NewRef(Py_None));
    if (goodput_exit(self->phase, 0) < 0)
        goodput_drop_error();
    clock->trained = clock->fetched = 0;
    clock->after = constants.nothing;
    clock->batch_samples = 0;
    if (goodput_next_step(clock, samples) < 0)
        goodput_drop_error();
    clock->began = clock->step_start_ns;
    clock->batch_gap = 1;
    Py_RETURN_NONE;
}

static PyObject *dispatch(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *first = PyVectorcall_NARGS(flags) > 0 ? args[0] : NULL;
    if (self->kind == NEXT && clock->fetching && this_thread() == clock->thread)
        return call_timed(self, args, flags, names); /* A fetch inside a fetch. */
    if (is_common(self)) {
        switch (self->kind) {
        case NEXT:
            if (first != NULL && refers_to(clock->iterator, first) && clock->optimizer_depth == 0 &&
                (!clock->sampling || (clock->skips_left > 0 && clock->current != self->phase->total)))
                return next_batch(self, args, flags, names);
            break;
        case BACKWARD:
            if (clock->reducers == 0 && clock->after != constants.nothing)
                return pass(self, args, flags, names);
            break;
        case BEFORE_STEP:
            if (first != NULL && clock->optimizer_depth == 0 && clock->steps > 0 && !clock->preparing)
                return before_step(self, first);
            break;
        case AFTER_STEP:
            if (first != NULL && clock->routine && (clock->steps + 1) % constants.check_steps != 0 &&
                clock->optimizer_depth == 1 && refers_to(clock->anchor, first) && !has_device(clock))
                return after_step(self);
            break;
        case FORWARD:
            if (clock->routine)
                return pass(self, args, flags, names);
            break;
        case ZERO_GRAD:
            if (clock->after == constants.after_backward) {
                if (clock->optimizer_steps == 0)
                    break;
                claim_gap(self);
            } else if (!claim_batch(clock) && clock->after == constants.after_forward)
                clock->gap = goodput_word_forward; /* The loss. */
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
    if (!clock->measuring || clock->hook_ns || !is_measured(clock))
        return dispatch(self, args, flags, names);
    goodput_start_own(clock);
    result = dispatch(self, args, flags, names);
    goodput_stop_own(clock, 0);
    return result;
}

static int Hook_init(Hook *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "phase", "function", "slow", "test", "gap", NULL};
    PyObject *phase, *function, *slow, *test;
    const char *kind;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!OOOL", names, &kind, &goodput_phase_type, &phase, &function,
                                     &slow, &test, &self->gap))
        return -1;
    for (self->kind = NEXT; self->kind <= ZERO_GRAD && strcmp(kind, kind_names[self->kind]) != 0;)
        self->kind++;
    if (self->kind > ZERO_GRAD) {
        PyErr_Format(PyExc_ValueError, "unknown kind of hook: %s", kind);
        return -1;
    }
    Py_INCREF(phase);
    Py_INCREF(function);
    Py_INCREF(slow);
    Py_XSETREF(self->phase, (Phase *)phase);
    Py_XSETREF(self->function, function);
    Py_XSETREF(self->slow, slow);
    if (test != Py_None) {
        Py_INCREF(test);
        Py_XSETREF(self->test, test);
    }
    self->vectorcall = Hook_call;
    return 0;
}

static int Hook_traverse(Hook *self, visitproc visit, void *arg)
{
    Py_VISIT(self->phase);
    Py_VISIT(self->function);
    Py_VISIT(self->slow);
    Py_VISIT(self->test);
    Py_VISIT(self->dict);
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
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Hook_clear(self);
    Py_CLEAR(self->phase);
    type->tp_free((PyObject *)self);
}

/* Bind to the instance, as a function does. */
static PyObject *Hook_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, instance);
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
    {"returns_loss", Py_T_BOOL, offsetof(Hook, returns_loss), 0, "whether the root module computes the loss itself"},
    {NULL},
};

static PyGetSetDef Hook_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "goodput.sdk.recorder._fast.Hook",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = "See goodput.sdk.automatic.hooks.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Hook_init,
    .tp_dealloc = (destructor)Hook_dealloc,
    .tp_traverse = (traverseproc)Hook_traverse,
    .tp_clear = (inquiry)Hook_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Hook, vectorcall),
    .tp_descr_get = Hook_get,
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_weaklistoffset = offsetof(Hook, weakrefs),
    .tp_getset = Hook_getset,
    .tp_members = Hook_members,
    .tp_methods = Hook_methods,
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
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->roots); i++) {
        PyObject *root = PyList_GET_ITEM(self->roots, i);
        if (refers_to(PyTuple_GET_ITEM(root, 0), instance))
            return Py_NewRef(PyTuple_GET_ITEM(root, 1));
    }
    if (self->find != NULL && self->find != Py_None) {
        found = PyObject_CallOneArg(self->find, instance);
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
    Slot *self = (Slot *)type->tp_alloc(type, 0);
    if (self != NULL && (self->roots = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* No tp_clear: `roots` is used without a check, and its own tp_clear breaks cycles. */
static int Slot_traverse(Slot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->roots);
    Py_VISIT(self->find);
    return 0;
}

static void Slot_dealloc(Slot *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->roots);
    Py_CLEAR(self->find);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef Slot_members[] = {
    {"roots", Py_T_OBJECT_EX, offsetof(Slot, roots), Py_READONLY, "tuples of a weak reference and a timed call"},
    {"find", Py_T_OBJECT_EX, offsetof(Slot, find), 0, "returns the timed call of a module that is no root, or None"},
    {NULL},
};

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "goodput.sdk.recorder._fast.Slot",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "See goodput.sdk.automatic.frameworks.torch.forward.PythonSlot.",
    .tp_new = Slot_new,
    .tp_traverse = (traverseproc)Slot_traverse,
    .tp_dealloc = (destructor)Slot_dealloc,
    .tp_descr_get = Slot_get,
    .tp_members = Slot_members,
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
    .m_doc = "The hot path of the SDK, compiled; goodput.sdk.recorder.step_clock is the same in Python.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast(void)
{
    PyTypeObject *types[] = {&goodput_clock_type, &goodput_phase_type,  &HookType,
                             &SlotType,           &goodput_records_type, &goodput_call_type};
    PyObject *made = NULL;
    slot_name = PyUnicode_InternFromString("_compiled_call_impl");
    call_name = PyUnicode_InternFromString("_call_impl");
    shape_name = PyUnicode_InternFromString("shape");
    if (slot_name != NULL && call_name != NULL && shape_name != NULL && goodput_init_clock() == 0 &&
        goodput_init_collectives() == 0)
        made = PyModule_Create(&module);
    for (size_t i = 0; made != NULL && i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(made, types[i]) < 0)
            Py_CLEAR(made);
    return made;
}
