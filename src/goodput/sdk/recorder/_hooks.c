/* The hooks of automatic instrumentation that run in every step, for the common case of each.
 *
 * A hook stands where a function stood. In the common case (the step thread, a step running, nothing unusual since
 * the last one) it does what the Python hook of automatic/frameworks/ would, and calls the function; in every other case it calls
 * that Python hook with the same arguments, which holds the rules. The same tests run with and without it.
 */
#include "_fast.h"

typedef enum { NEXT, BACKWARD, BEFORE_STEP, AFTER_STEP, PLAIN, FORWARD, ZERO_GRAD, KINDS } Kind;
/* The names that goodput.sdk.automatic.hooks gives them. */
static const char *const kind_names[KINDS] = {"next", "backward", "before step", "after step", "plain", "forward", "zero grad"};

/* Set once by goodput.sdk.automatic.hooks from the Python twins' own constants. */
static struct {
    long long nothing, after_forward, after_backward; /* values of Clock.after: step_detection */
    long long check_steps; /* overhead_budget: the Python hook sees at least every so many steps */
    long long quick_ns;    /* loader_stats */
    long long samples_max; /* recorder */
} constants;

PyObject *goodput_set_constants(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nothing", "after_forward", "after_backward", "check_steps", "quick_ns", "samples_max", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLLLLL", names, &constants.nothing, &constants.after_forward,
                                     &constants.after_backward, &constants.check_steps, &constants.quick_ns,
                                     &constants.samples_max))
        return NULL;
    Py_RETURN_NONE;
}

#define DEPTH_MAX 4

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kind kind;
    Phase *phase;
    PyObject *function; /* What is timed. */
    PyObject *slow;     /* The Python hook. */
    PyObject *test;     /* Called without arguments: the case is common only if the answer is true. Or NULL. */
    long long gap;      /* Word that the time before the phase may go to, or -1. */
    PyObject *dict, *weakrefs;
} Hook;

static PyObject *slot_name, *call_name, *shape_name; /* "_compiled_call_impl", "_call_impl", "shape" */

/* What a weak reference refers to, as a new reference; NULL if it is gone or `reference` is none. */
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
    if (self->kind != PLAIN && self->kind != ZERO_GRAD && (clock->inside || clock->began == 0 || clock->step_start_ns != clock->began))
        return 0;
    if (clock->unseen && (self->kind == NEXT || self->kind == BACKWARD))
        return 0;
    return self->test == NULL || is_true(self->test);
}

/* What a module was compiled to in place, a new reference or NULL: torch keeps it among the instance's attributes. */
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

/* The hook's own time is interrupted by a call of what is not ours. */
static PyObject *call_theirs(Clock *clock, PyObject *function, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *result;
    if (clock->hook_ns == 0 || !is_measured(clock))
        return PyObject_Vectorcall(function, args, flags, names);
    goodput_count_own(clock, clock->hook_ns);
    clock->hook_ns = 0;
    result = PyObject_Vectorcall(function, args, flags, names);
    if (is_measured(clock))
        clock->hook_ns = now_ns();
    return result;
}

/* Call what is timed. A root's call is found anew each time: the module is held weakly. */
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

/* Enter, call, exit: the function's result and its exception are its own. */
static PyObject *timed(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *raised, *result, *left;
    PyObject *entered = goodput_enter(self->phase);
    if (entered == NULL) {
        goodput_drop_error();
        return call_timed(self, args, flags, names);
    }
    Py_DECREF(entered);
    result = call_timed(self, args, flags, names);
    raised = goodput_take_error();
    left = goodput_exit(self->phase, result == NULL);
    if (left == NULL)
        goodput_drop_error();
    Py_XDECREF(left);
    goodput_restore_error(raised);
    return result;
}

/* The first dimension of the first tensor in a batch, 0 where there is none. */
static long long samples_of(PyObject *batch)
{
    PyObject *key, *shape, *first;
    long long count;
    Py_ssize_t at;
    for (int depth = 0; depth < DEPTH_MAX && batch != NULL; depth++) {
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
    Py_INCREF(batch); /* What it is asked may let go of it. */
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

/* What the phase has taken so far, 0 where that cannot be said. */
static long long total_of(Phase *phase)
{
    Clock *clock = phase->recorder;
    return phase->total < clock->words_count ? (long long)clock->words[phase->total] : 0;
}

/* A batch that is not looked at came, or its making raised. The words of the page may have been exchanged meanwhile. */
static void pass(Clock *clock, PyObject *iterator, long long ns, int came)
{
    if (came) {
        count_in(clock, clock->word_batches, 1);
        count_in(clock, clock->word_inside, 1);
    }
    if (ns < 0)
        return;
    count_in(clock, clock->word_wait, ns);
    if (clock->passes > 0 && refers_to(clock->iterator, iterator)) {
        clock->passes--;
        if (ns < constants.quick_ns)
            clock->passed_ns += ns;
        else
            clock->passes = 0; /* Why it was slow is not known. The next one is looked at. */
    }
}

static PyObject *next_batch(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *batch;
    long long before = total_of(self->phase);
    int looking = clock->looking;
    clock->after = constants.nothing;
    clock->fetching = 1;
    batch = timed(self, args, flags, names);
    clock->fetching = 0;
    if (looking && !clock->phases_off)
        pass(clock, args[0], total_of(self->phase) - before, batch != NULL);
    if (batch != NULL) {
        clock->fetched = 1;
        /* Of several loaders in a step the first one's samples count. */
        if (clock->counting || clock->batch_samples == 0) {
            long long samples = samples_of(batch);
            if (samples > 0 && clock->batch_samples < constants.samples_max)
                clock->batch_samples += samples < constants.samples_max ? samples : 0;
        }
    }
    return batch;
}

static PyObject *backward(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *result;
    if (clock->after == constants.after_forward && self->gap >= 0)
        clock->gap = self->gap;
    clock->trained = clock->inside = 1;
    clock->micro_batches++;
    result = timed(self, args, flags, names);
    clock->inside = 0;
    clock->after = constants.after_backward;
    return result;
}

static PyObject *forward(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *result;
    if (clock->after == constants.after_forward && self->gap >= 0)
        clock->gap = self->gap;
    clock->trained = clock->inside = 1;
    result = timed(self, args, flags, names);
    clock->inside = 0;
    clock->after = constants.after_forward;
    return result;
}

static PyObject *before_step(Hook *self, PyObject *optimizer)
{
    Clock *clock = self->phase->recorder;
    PyObject *entered, *reference = clock->anchor;
    if (refers_to(reference, optimizer))
        Py_INCREF(reference);
    else if ((reference = PyWeakref_NewRef(optimizer, NULL)) == NULL) {
        goodput_drop_error();
        reference = Py_NewRef(Py_None);
    }
    clock->optimizer_depth = 1;
    Py_XSETREF(clock->optimizer, reference);
    if (clock->after == constants.after_backward && self->gap >= 0)
        clock->gap = self->gap;
    clock->trained = 1;
    entered = goodput_enter(self->phase);
    if (entered == NULL)
        goodput_drop_error();
    Py_XDECREF(entered);
    Py_RETURN_NONE;
}

static PyObject *after_step(Hook *self)
{
    Clock *clock = self->phase->recorder;
    PyObject *done;
    long long samples = clock->batch_samples;
    clock->optimizer_steps++;
    clock->optimizer_depth = 0;
    Py_XSETREF(clock->optimizer, Py_NewRef(Py_None));
    done = goodput_exit(self->phase, 0);
    if (done == NULL)
        goodput_drop_error();
    Py_XDECREF(done);
    clock->trained = clock->fetched = 0;
    clock->after = constants.nothing;
    clock->batch_samples = 0;
    if (goodput_turn_step(clock, samples) < 0)
        goodput_drop_error();
    clock->began = clock->step_start_ns;
    Py_RETURN_NONE;
}

static PyObject *answer(Hook *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Clock *clock = self->phase->recorder;
    PyObject *first = PyVectorcall_NARGS(flags) > 0 ? args[0] : NULL;
    if (self->kind == NEXT && clock->fetching && this_thread() == clock->thread)
        return call_timed(self, args, flags, names); /* To make another: it is part of that one. */
    if (is_common(self)) {
        switch (self->kind) {
        case NEXT:
            if (first != NULL && refers_to(clock->iterator, first) && clock->optimizer_depth == 0 &&
                (!clock->looking || (clock->passes > 0 && clock->current != self->phase->total)))
                return next_batch(self, args, flags, names);
            break;
        case BACKWARD:
            if (clock->reducers == 0 && clock->after != constants.nothing)
                return backward(self, args, flags, names);
            break;
        case BEFORE_STEP:
            if (first != NULL && clock->optimizer_depth == 0 && clock->steps > 0 && !clock->preparing)
                return before_step(self, first);
            break;
        case AFTER_STEP:
            if (first != NULL && clock->plain && (clock->steps + 1) % constants.check_steps != 0 &&
                clock->optimizer_depth == 1 && refers_to(clock->anchor, first) &&
                (clock->device == NULL || clock->device == Py_None))
                return after_step(self);
            break;
        case FORWARD:
            if (clock->plain)
                return forward(self, args, flags, names);
            break;
        case PLAIN:
            return timed(self, args, flags, names);
        case ZERO_GRAD:
            if (clock->after != constants.after_backward)
                return timed(self, args, flags, names);
            if (clock->optimizer_steps == 0)
                break;
            clock->gap = self->gap;
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
        return answer(self, args, flags, names);
    clock->hook_ns = now_ns();
    result = answer(self, args, flags, names);
    if (clock->hook_ns)
        goodput_count_own(clock, clock->hook_ns);
    clock->hook_ns = 0;
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
    for (self->kind = 0; self->kind < KINDS && strcmp(kind, kind_names[self->kind]) != 0;)
        self->kind++;
    if (self->kind == KINDS) {
        PyErr_Format(PyExc_ValueError, "no such kind of hook: %s", kind);
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

/* As a function: an attribute of a class, taken from an instance, is bound to it. */
static PyObject *Hook_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, instance);
}

/* Pickled and copied as the function is: by its name. */
static PyObject *Hook_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef Hook_methods[] = {
    {"__reduce__", Hook_reduce, METH_NOARGS, "By its name."},
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
    .tp_doc = "A function timed in the common case, see goodput.sdk.automatic.hooks.",
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
    .tp_methods = Hook_methods,
};

/* ------------------------------------------------------------------------------------------- Slot */

#define ROOTS_MAX 64

/* Stands on torch.nn.Module as `_compiled_call_impl`, which is looked for at each call of a module: it answers with
 * the timed call for a root, by identity, and for any other module with what would be there without it. */
typedef struct {
    PyObject_HEAD
    PyObject *references[ROOTS_MAX]; /* Weak, to the roots. */
    PyObject *calls[ROOTS_MAX];
    Py_ssize_t count;
    PyObject *look; /* Called with a module that is no root, while roots are looked for; answers with its call or None. */
} Slot;

static PyObject *Slot_get(PyObject *object, PyObject *instance, PyObject *owner)
{
    Slot *self = (Slot *)object;
    PyObject *found;
    if (instance == NULL || instance == Py_None)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (refers_to(self->references[i], instance)) {
            Py_INCREF(self->calls[i]);
            return self->calls[i];
        }
    }
    if (self->look != NULL && self->look != Py_None) {
        found = PyObject_CallOneArg(self->look, instance);
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

static int Slot_set(PyObject *self, PyObject *instance, PyObject *value)
{
    PyObject *dict = PyObject_GenericGetDict(instance, NULL);
    int failed;
    if (dict == NULL)
        return -1;
    failed = value != NULL ? PyDict_SetItem(dict, slot_name, value) : PyDict_DelItem(dict, slot_name);
    if (failed && value == NULL && PyErr_ExceptionMatches(PyExc_KeyError))
        PyErr_SetObject(PyExc_AttributeError, slot_name);
    Py_DECREF(dict);
    return failed;
}

static PyObject *Slot_add(Slot *self, PyObject *args)
{
    PyObject *module, *call, *reference;
    Py_ssize_t at = 0;
    if (!PyArg_ParseTuple(args, "OO", &module, &call))
        return NULL;
    /* The place of one that is gone, else a new one. */
    while (at < self->count) {
        PyObject *root = referent_of(self->references[at]);
        Py_XDECREF(root);
        if (root == NULL)
            break;
        at++;
    }
    if (at == ROOTS_MAX)
        Py_RETURN_FALSE;
    reference = PyWeakref_NewRef(module, NULL);
    if (reference == NULL)
        return NULL;
    Py_XSETREF(self->references[at], reference);
    Py_INCREF(call);
    Py_XSETREF(self->calls[at], call);
    if (at == self->count)
        self->count++;
    Py_RETURN_TRUE;
}

static PyObject *Slot_exchange(Slot *self, PyObject *args)
{
    PyObject *old, *new;
    if (!PyArg_ParseTuple(args, "OO", &old, &new))
        return NULL;
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->calls[i] == old) {
            Py_INCREF(new);
            Py_SETREF(self->calls[i], new);
        }
    Py_RETURN_NONE;
}

static PyObject *Slot_is_root(Slot *self, PyObject *module)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (refers_to(self->references[i], module))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static int Slot_traverse(Slot *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->references[i]);
        Py_VISIT(self->calls[i]);
    }
    Py_VISIT(self->look);
    return 0;
}

static int Slot_clear(Slot *self)
{
    Py_ssize_t count = self->count;
    self->count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(self->references[i]);
        Py_CLEAR(self->calls[i]);
    }
    Py_CLEAR(self->look);
    return 0;
}

static int Slot_init(Slot *self, PyObject *args, PyObject *kwargs)
{
    Py_XSETREF(self->look, Py_NewRef(Py_None));
    return 0;
}

static void Slot_dealloc(Slot *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Slot_clear(self);
    type->tp_free((PyObject *)self);
}

static PyMemberDef Slot_members[] = {
    {"look", Py_T_OBJECT_EX, offsetof(Slot, look), 0, "called with a module that is no root, or None"},
    {NULL},
};

static PyMethodDef Slot_methods[] = {
    {"add", (PyCFunction)Slot_add, METH_VARARGS, "Make a module a root with this call; False where there is no room."},
    {"exchange", (PyCFunction)Slot_exchange, METH_VARARGS, "Put another call in the place of a root's."},
    {"is_root", (PyCFunction)Slot_is_root, METH_O, "Whether a module is a root."},
    {NULL},
};

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "goodput.sdk.recorder._fast.Slot",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "See goodput.sdk.automatic.forward_timing.Slot.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Slot_init,
    .tp_traverse = (traverseproc)Slot_traverse,
    .tp_clear = (inquiry)Slot_clear,
    .tp_dealloc = (destructor)Slot_dealloc,
    .tp_descr_get = Slot_get,
    .tp_descr_set = Slot_set,
    .tp_members = Slot_members,
    .tp_methods = Slot_methods,
};

int goodput_add_hooks(PyObject *module)
{
    if (PyType_Ready(&HookType) < 0 || PyType_Ready(&SlotType) < 0)
        return -1;
    if (slot_name == NULL && (slot_name = PyUnicode_InternFromString("_compiled_call_impl")) == NULL)
        return -1;
    if (call_name == NULL && (call_name = PyUnicode_InternFromString("_call_impl")) == NULL)
        return -1;
    if (shape_name == NULL && (shape_name = PyUnicode_InternFromString("shape")) == NULL)
        return -1;
    if (PyModule_AddObjectRef(module, "Slot", (PyObject *)&SlotType) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Hook", (PyObject *)&HookType);
}
