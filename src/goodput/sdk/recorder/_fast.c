/* The hot path of the SDK: the clock of the step thread, and enter and exit of a phase.
 *
 * The same two types as step_clock.py, which replaces this where it could not be compiled; the same tests run on both.
 * Words are the mapped rank page. Each store is one aligned 64-bit store, so the page is readable at any moment, also
 * after SIGKILL. Nothing here raises into the user's `with`. */
#include <string.h>

#include "_fast.h"

/* The histogram bin: seconds rounded to IEEE binary16, half to even, of which the 15 low bits. No call into the C library,
 * since its code would miss the instruction cache at every boundary. */
static inline int half_bin(double seconds)
{
    uint64_t bits, mantissa, left;
    int bin;
    if (seconds >= OVERFLOW_SECONDS)
        return OVERFLOW_BIN;
    if (seconds < 6.103515625e-05) { /* 2^-14: subnormal, bins are 2^-24 wide. */
        const double whole = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer. */
        double rounded = (seconds > 0 ? seconds * 16777216.0 : 0) + whole;
        return (int)(rounded - whole);
    }
    memcpy(&bits, &seconds, sizeof bits);
    mantissa = bits & 0xfffffffffffffULL;
    left = mantissa & 0x3ffffffffffULL; /* The 42 bits that binary16 drops. */
    bin = (((int)(bits >> 52) - 1023 + 15) << 10) + (int)(mantissa >> 42);
    return bin + (left > 0x20000000000ULL || (left == 0x20000000000ULL && (bin & 1)));
}

static inline void store(Clock *clock, long long word, uint64_t value)
{
    __atomic_store_n(&clock->words[word], value, __ATOMIC_RELEASE);
}

static inline void add(Clock *clock, long long word, long long value)
{
    store(clock, word, clock->words[word] + (uint64_t)value);
}

static int raise_again(void *exception)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)exception), (PyObject *)exception);
    Py_DECREF((PyObject *)exception);
    return -1;
}

PyObject *goodput_take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL)
        return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

void goodput_restore_error(PyObject *exception)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exception);
#else
    if (exception == NULL)
        PyErr_Restore(NULL, NULL, NULL);
    else
        PyErr_Restore(Py_NewRef(Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
#endif
}

/* Drop an exception of our own code. KeyboardInterrupt and SystemExit of a signal handler are raised again in the user's
 * code, by a pending call. */
void goodput_drop_error(void)
{
    PyObject *exception;
    if (PyErr_Occurred() == NULL || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return;
    }
    exception = goodput_take_error();
    if (exception != NULL && Py_AddPendingCall(raise_again, exception) < 0)
        Py_DECREF(exception);
}

/* Report a boundary to the device clock; never raises. */
static void notify_device(Clock *clock, long long word)
{
    PyObject *raised = goodput_take_error(); /* The body's exception may be set. */
    PyObject *device = Py_NewRef(clock->device);
    PyObject *argument = PyLong_FromLongLong(word);
    PyObject *result = argument ? PyObject_CallOneArg(device, argument) : NULL;
    if (result == NULL) {
        if (PyErr_ExceptionMatches(PyExc_Exception))
            Py_SETREF(clock->device, Py_NewRef(Py_None));
        goodput_drop_error();
    }
    Py_XDECREF(result);
    Py_XDECREF(argument);
    Py_DECREF(device);
    goodput_restore_error(raised);
}

static inline long long charged_word(Clock *clock)
{
    return clock->phases_off ? clock->word_totals : clock->current;
}

static inline int is_backed(Clock *clock, long long word)
{
    return clock->backed[word >> (BLOCK_BITS + 3)] >> ((word >> BLOCK_BITS) & 7) & 1;
}

/* ------------------------------------------------------------------------------------------- Clock */

static int Clock_init(Clock *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"word_last", "word_phase", "word_totals", "layout", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLL(LLLLLLLLLLL)", names, &self->word_last, &self->word_phase,
                                     &self->word_totals, &self->ring, &self->ring_records, &self->record_words,
                                     &self->slots, &self->word_outside, &self->word_steps, &self->word_samples,
                                     &self->word_step_start, &self->word_step_next, &self->word_cost,
                                     &self->histograms))
        return -1;
    self->current = self->gap = self->word_totals;
    self->columns = self->slots;
    Py_XSETREF(self->device, Py_NewRef(Py_None));
    Py_XSETREF(self->iterator, Py_NewRef(Py_None));
    Py_XSETREF(self->anchor, Py_NewRef(Py_None));
    Py_XSETREF(self->optimizer, Py_NewRef(Py_None));
    return 0;
}

static void release_words(Clock *self)
{
    if (self->words_object != NULL) {
        PyBuffer_Release(&self->view);
        Py_CLEAR(self->words_object);
    }
    free(self->backed);
    self->words = NULL;
    self->backed = NULL;
    self->words_count = 0;
}

static int Clock_traverse(Clock *self, visitproc visit, void *arg)
{
    Py_VISIT(self->words_object);
    Py_VISIT(self->device);
    Py_VISIT(self->iterator);
    Py_VISIT(self->anchor);
    Py_VISIT(self->optimizer);
    return 0;
}

static int Clock_clear(Clock *self)
{
    release_words(self);
    Py_CLEAR(self->device);
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->optimizer);
    return 0;
}

static void Clock_dealloc(Clock *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Clock_clear(self);
    free(self->stack);
    type->tp_free((PyObject *)self);
}

static PyObject *Clock_get_words(Clock *self, void *closure)
{
    PyObject *words = self->words_object ? self->words_object : Py_None;
    Py_INCREF(words);
    return words;
}

static int Clock_set_words(Clock *self, PyObject *value, void *closure)
{
    Py_buffer view;
    unsigned char *backed;
    if (value == NULL || value == Py_None) {
        release_words(self);
        return 0;
    }
    if (PyObject_GetBuffer(value, &view, PyBUF_WRITABLE | PyBUF_SIMPLE) < 0)
        return -1;
    backed = calloc((view.len / 8 >> (BLOCK_BITS + 3)) + 1, 1);
    if (backed == NULL) {
        PyBuffer_Release(&view);
        PyErr_NoMemory();
        return -1;
    }
    release_words(self);
    self->backed = backed;
    Py_INCREF(value);
    self->words_object = value;
    self->view = view;
    self->words = view.buf;
    self->words_count = view.len / 8;
    return 0;
}

static PyObject *Clock_get_charged(Clock *self, void *closure)
{
    return PyLong_FromLongLong(charged_word(self));
}

static PyObject *Clock_get_depth(Clock *self, void *closure)
{
    return PyLong_FromSsize_t(self->depth);
}

static PyObject *Clock_reset(Clock *self, PyObject *unused)
{
    self->depth = 0;
    self->child_ns = 0;
    self->current = self->gap = self->word_totals;
    Py_RETURN_NONE;
}

/* Remove an outer open phase: the phase above it will return to the phase below it. */
static PyObject *Clock_close_below(Clock *self, PyObject *argument)
{
    long long total = PyLong_AsLongLong(argument);
    if (total == -1 && PyErr_Occurred())
        return NULL;
    for (Py_ssize_t depth = self->depth - 1; depth > 0; depth--) {
        if (self->stack[depth].current == total) {
            self->stack[depth].current = self->stack[depth - 1].current;
            for (Py_ssize_t i = depth - 1; i < self->depth - 1; i++)
                self->stack[i] = self->stack[i + 1];
            self->depth--;
            break;
        }
    }
    Py_RETURN_NONE;
}

static long long checked_word(Clock *self, PyObject *argument)
{
    long long word = PyLong_AsLongLong(argument);
    if (!PyErr_Occurred() && (word < 0 || word >= self->words_count))
        PyErr_SetString(PyExc_IndexError, "word index out of range");
    return PyErr_Occurred() ? -1 : word;
}

static PyObject *Clock_is_backed(Clock *self, PyObject *argument)
{
    long long word = checked_word(self, argument);
    return word < 0 ? NULL : PyBool_FromLong(is_backed(self, word));
}

static PyObject *Clock_back(Clock *self, PyObject *argument)
{
    long long word = checked_word(self, argument);
    if (word < 0)
        return NULL;
    self->backed[word >> (BLOCK_BITS + 3)] |= 1 << ((word >> BLOCK_BITS) & 7);
    Py_RETURN_NONE;
}

#define STEP_BIAS (1ULL << 63)

/* Close the running step: write its record into the ring, the seal last, and count its length in the histogram. */
static int close_step(Clock *self, long long now)
{
    long long at, word, start = self->step_start_ns, number = self->steps + 1;
    at = self->ring + (number - 1) % self->ring_records * self->record_words;
    if (at + self->record_words > self->words_count || self->histograms + OVERFLOW_BIN >= self->words_count) {
        PyErr_SetString(PyExc_IndexError, "word index out of range");
        return -1;
    }
    if (now < self->last_ns)
        now = self->last_ns;
    add(self, charged_word(self), now - self->last_ns);
    self->last_ns = self->step_end_ns = now;
    store(self, self->word_last, (uint64_t)now);
    self->samples += self->step_samples;
    store(self, at + self->record_words - 1, 0);
    store(self, at + 1, (uint64_t)self->step_next + STEP_BIAS);
    store(self, at + 2, (uint64_t)start);
    store(self, at + 3, (uint64_t)now);
    store(self, at + 4, (uint64_t)self->samples);
    for (long long i = 0; i < self->columns && i < self->slots; i++) {
        store(self, at + 5 + i, self->words[self->word_totals + i]);
        store(self, at + 5 + self->slots + i, self->words[self->word_outside + i]);
    }
    store(self, at, (uint64_t)number);
    store(self, at + self->record_words - 1, (uint64_t)number);
    self->steps = number;
    store(self, self->word_steps, (uint64_t)number);
    store(self, self->word_samples, (uint64_t)self->samples);
    self->step_start_ns = 0;
    store(self, self->word_step_start, 0);
    self->step_next++;
    store(self, self->word_step_next, (uint64_t)self->step_next + STEP_BIAS);
    store(self, self->word_cost, (uint64_t)(self->entries * self->phase_cost_ns + number * self->step_cost_ns + self->extra_cost_ns));
    word = self->histograms + half_bin((double)(now - start) / 1e9);
    if (!is_backed(self, word)) {
        PyObject *counted = PyObject_CallMethod((PyObject *)self, "count_first", "L", word);
        if (counted == NULL)
            return -1;
        Py_DECREF(counted);
    } else
        add(self, word, 1);
    return 0;
}

static PyObject *Clock_close_step(Clock *self, PyObject *argument)
{
    long long now = PyLong_AsLongLong(argument);
    if ((now == -1 && PyErr_Occurred()) || close_step(self, now) < 0)
        return NULL;
    return PyLong_FromLongLong(self->step_end_ns);
}

/* Add the time since `from` to our own cost, less the clock reading made for this measurement only. */
void goodput_count_own(Clock *self, long long from)
{
    long long own = now_ns() - from - self->reading_ns;
    self->own_ns += own > 0 ? own : 0;
}

/* Close the running step, and begin the next one where it ended. */
int goodput_next_step(Clock *self, long long samples)
{
    self->step_samples = samples;
    if (close_step(self, now_ns()) < 0)
        return -1;
    self->step_samples = 0;
    self->step_start_ns = self->step_end_ns;
    store(self, self->word_step_start, (uint64_t)self->step_start_ns);
    if (self->measuring) {
        goodput_count_own(self, self->hook_ns ? self->hook_ns : self->step_end_ns);
        self->hook_ns = self->measuring = 0;
    }
    return 0;
}

static PyObject *Clock_next_step(Clock *self, PyObject *samples)
{
    long long count = PyLong_AsLongLong(samples);
    if ((count == -1 && PyErr_Occurred()) || goodput_next_step(self, count) < 0)
        return NULL;
    return PyLong_FromLongLong(self->step_end_ns);
}

static PyMemberDef Clock_members[] = {
    {"steps", Py_T_LONGLONG, offsetof(Clock, steps), 0, "steps completed"},
    {"samples", Py_T_LONGLONG, offsetof(Clock, samples), 0, "samples of completed steps"},
    {"step_start_ns", Py_T_LONGLONG, offsetof(Clock, step_start_ns), 0, "start of the running step, 0 between steps"},
    {"step_end_ns", Py_T_LONGLONG, offsetof(Clock, step_end_ns), 0, "end of the last completed step"},
    {"step_next", Py_T_LONGLONG, offsetof(Clock, step_next), 0, "index of the running or next step"},
    {"step_samples", Py_T_LONGLONG, offsetof(Clock, step_samples), 0, "samples of the running step"},
    {"phase_cost_ns", Py_T_LONGLONG, offsetof(Clock, phase_cost_ns), 0, "cost of a phase in ns"},
    {"step_cost_ns", Py_T_LONGLONG, offsetof(Clock, step_cost_ns), 0, "cost of a step in ns"},
    {"columns", Py_T_LONGLONG, offsetof(Clock, columns), 0, "phases in use"},
    {"thread", Py_T_LONGLONG, offsetof(Clock, thread), 0, "ident of the step thread, 0 if none"},
    {"current", Py_T_LONGLONG, offsetof(Clock, current), 0, "word of the phase that time is charged to"},
    {"last_ns", Py_T_LONGLONG, offsetof(Clock, last_ns), 0, "monotonic ns up to which time is charged"},
    {"child_ns", Py_T_LONGLONG, offsetof(Clock, child_ns), 0, "ns of inner phases in the current one"},
    {"entries", Py_T_LONGLONG, offsetof(Clock, entries), 0, "phases completed"},
    {"began", Py_T_LONGLONG, offsetof(Clock, began), 0, "start of the step that was begun automatically, or 0"},
    {"after", Py_T_LONGLONG, offsetof(Clock, after), 0, "the last training call of the step"},
    {"batch_samples", Py_T_LONGLONG, offsetof(Clock, batch_samples), 0, "samples fetched for the running step"},
    {"optimizer_depth", Py_T_LONGLONG, offsetof(Clock, optimizer_depth), 0, "nested optimizer steps that are running"},
    {"micro_batches", Py_T_LONGLONG, offsetof(Clock, micro_batches), 0, "backward passes"},
    {"optimizer_steps", Py_T_LONGLONG, offsetof(Clock, optimizer_steps), 0, "optimizer steps completed"},
    {"own_ns", Py_T_LONGLONG, offsetof(Clock, own_ns), 0, "ns spent in boundaries and hooks while `measuring`"},
    {"reading_ns", Py_T_LONGLONG, offsetof(Clock, reading_ns), 0, "cost of a clock reading"},
    {"extra_cost_ns", Py_T_LONGLONG, offsetof(Clock, extra_cost_ns), 0, "cost beyond that of phases and steps"},
    {"phases_off", Py_T_BOOL, offsetof(Clock, phases_off), 0, "whether phases are not measured"},
    {"measuring", Py_T_BOOL, offsetof(Clock, measuring), 0, "whether the cost of this step is measured"},
    {"reducers", Py_T_LONGLONG, offsetof(Clock, reducers), 0, "modules whose gradients are reduced in a backward pass"},
    {"preparing", Py_T_BOOL, offsetof(Clock, preparing), 0, "whether optimizer steps are not of the training"},
    {"inside", Py_T_BOOL, offsetof(Clock, inside), 0, "whether a forward or backward pass runs"},
    {"evaluating", Py_T_BOOL, offsetof(Clock, evaluating), 0, "whether the phase evaluation is open"},
    {"trained", Py_T_BOOL, offsetof(Clock, trained), 0, "whether the running step has trained"},
    {"fetched", Py_T_BOOL, offsetof(Clock, fetched), 0, "whether the running step has fetched a batch"},
    {"counting", Py_T_BOOL, offsetof(Clock, counting), 0, "whether the iterator's batches count as samples"},
    {"routine", Py_T_BOOL, offsetof(Clock, routine), 0, "whether the end of the step needs no Python code"},
    {"unhooked_steps", Py_T_BOOL, offsetof(Clock, unhooked_steps), 0, "whether an optimizer may step without a hook"},
    {"sampling", Py_T_BOOL, offsetof(Clock, sampling), 0, "whether only some batches of the iterator are measured"},
    {"skips_left", Py_T_LONGLONG, offsetof(Clock, skips_left), 0, "batches to skip before one is measured"},
    {"skipped_ns", Py_T_LONGLONG, offsetof(Clock, skipped_ns), 0, "ns that the skipped quick batches took"},
    {"word_batches", Py_T_LONGLONG, offsetof(Clock, word_batches), 0, "the word that counts batches"},
    {"word_inside", Py_T_LONGLONG, offsetof(Clock, word_inside), 0, "the word that counts batches made on the step thread"},
    {"word_wait", Py_T_LONGLONG, offsetof(Clock, word_wait), 0, "the word of the time waited for batches"},
    {"fetching", Py_T_BOOL, offsetof(Clock, fetching), 0, "whether a batch is being fetched"},
    {"iterator", Py_T_OBJECT_EX, offsetof(Clock, iterator), 0, "weak reference to the training iterator used last"},
    {"anchor", Py_T_OBJECT_EX, offsetof(Clock, anchor), 0, "weak reference to the optimizer that bounds steps"},
    {"optimizer", Py_T_OBJECT_EX, offsetof(Clock, optimizer), 0, "weak reference to the optimizer whose step is running"},
    {"gap", Py_T_LONGLONG, offsetof(Clock, gap), 0, "word that the time before the next outermost phase may be charged to"},
    {"length", Py_T_LONGLONG, offsetof(Clock, length), 0, "ns that the last outermost phase took"},
    {"device", Py_T_OBJECT_EX, offsetof(Clock, device), 0, "called with the charged word at each boundary, or None"},
    {"raised", Py_T_BOOL, offsetof(Clock, raised), 0, "whether a phase's body raised"},
    {NULL},
};

static PyGetSetDef Clock_getset[] = {
    {"words", (getter)Clock_get_words, (setter)Clock_set_words, "the page as u64", NULL},
    {"charged", (getter)Clock_get_charged, NULL, "word that time is charged to", NULL},
    {"depth", (getter)Clock_get_depth, NULL, "phases that are open", NULL},
    {NULL},
};

static PyMethodDef Clock_methods[] = {
    {"close_step", (PyCFunction)Clock_close_step, METH_O, "Close the running step."},
    {"next_step", (PyCFunction)Clock_next_step, METH_O, "Close the running step and begin the next."},
    {"reset", (PyCFunction)Clock_reset, METH_NOARGS, "Forget open phases."},
    {"close_below", (PyCFunction)Clock_close_below, METH_O, "Close an outer open phase."},
    {"is_backed", (PyCFunction)Clock_is_backed, METH_O, "Whether the memory of a word is allocated."},
    {"back", (PyCFunction)Clock_back, METH_O, "Note that the memory of a word's block is allocated."},
    {NULL},
};

static PyTypeObject ClockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "goodput.sdk.recorder._fast.Clock",
    .tp_basicsize = sizeof(Clock),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "See goodput.sdk.recorder.step_clock.Clock.",
    .tp_traverse = (traverseproc)Clock_traverse,
    .tp_clear = (inquiry)Clock_clear,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Clock_init,
    .tp_dealloc = (destructor)Clock_dealloc,
    .tp_members = Clock_members,
    .tp_getset = Clock_getset,
    .tp_methods = Clock_methods,
};

/* ------------------------------------------------------------------------------------------- Phase */

static int Phase_init(Phase *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "name", "index", "total", "histogram", NULL};
    PyObject *recorder, *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OLLL", names, &ClockType, &recorder, &name, &self->index,
                                     &self->total, &self->histogram))
        return -1;
    Py_INCREF(recorder);
    Py_INCREF(name);
    Py_XSETREF(self->recorder, (Clock *)recorder);
    Py_XSETREF(self->name, name);
    return 0;
}

/* No tp_clear: hooks use `recorder` without a check, and the recorder's own tp_clear breaks cycles. */
static int Phase_traverse(Phase *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->name);
    return 0;
}

static void Phase_dealloc(Phase *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->recorder);
    Py_XDECREF(self->name);
    type->tp_free((PyObject *)self);
}

static int is_elsewhere(Phase *self)
{
    Clock *clock = self->recorder;
    return clock == NULL || this_thread() != clock->thread ||
           self->histogram + OVERFLOW_BIN >= clock->words_count;
}

static int make_room(Clock *clock)
{
    Py_ssize_t room = clock->room ? 2 * clock->room : 16;
    Frame *stack = realloc(clock->stack, room * sizeof(Frame));
    if (stack == NULL)
        return 0;
    clock->stack = stack;
    clock->room = room;
    return 1;
}

PyObject *goodput_enter(Phase *self)
{
    long long now = now_ns(), charged;
    Clock *clock = self->recorder;
    if (is_elsewhere(self))
        return PyObject_CallMethod((PyObject *)self, "_enter_elsewhere", "L", now);
    if (clock->depth == clock->room && !make_room(clock))
        return PyErr_NoMemory();
    if (clock->phases_off) {
        clock->stack[clock->depth++] = (Frame){clock->current, 0, clock->child_ns};
        clock->current = self->total;
        Py_INCREF(self);
        return (PyObject *)self;
    }
    charged = clock->current;
    if (clock->gap != clock->word_totals) {
        if (clock->depth == 0 && now - clock->last_ns <= clock->length)
            charged = clock->gap;
        clock->gap = clock->word_totals;
    }
    add(clock, charged, now - clock->last_ns);
    clock->stack[clock->depth++] = (Frame){clock->current, now, clock->child_ns};
    clock->child_ns = 0;
    clock->current = self->total;
    clock->last_ns = now;
    store(clock, clock->word_last, (uint64_t)now);
    store(clock, clock->word_phase, (uint64_t)self->index);
    if (clock->device != NULL && clock->device != Py_None)
        notify_device(clock, charged);
    if (clock->measuring && clock->hook_ns == 0)
        goodput_count_own(clock, now);
    Py_INCREF(self);
    return (PyObject *)self;
}

PyObject *goodput_exit(Phase *self, int raised)
{
    long long now = now_ns();
    Clock *clock = self->recorder;
    long long length, word;
    Frame frame;
    if (is_elsewhere(self))
        return PyObject_CallMethod((PyObject *)self, "_exit_elsewhere", "L", now);
    if (clock->current != self->total || clock->depth == 0)
        return PyObject_CallMethod((PyObject *)self, "_exit_out_of_order", NULL);
    if (raised)
        clock->raised = 1;
    frame = clock->stack[--clock->depth];
    if (clock->phases_off) {
        clock->current = frame.current;
        clock->child_ns = frame.child_ns;
        Py_RETURN_NONE;
    }
    add(clock, self->total, now - clock->last_ns);
    length = now - (frame.began_ns ? frame.began_ns : now);
    word = self->histogram + half_bin((double)(length - clock->child_ns) / 1e9);
    clock->child_ns = frame.child_ns + length;
    clock->current = frame.current;
    clock->last_ns = now;
    clock->entries++;
    if (clock->depth == 0)
        clock->length = length;
    store(clock, clock->word_last, (uint64_t)now);
    store(clock, clock->word_phase, (uint64_t)(frame.current - clock->word_totals));
    if (clock->device != NULL && clock->device != Py_None)
        notify_device(clock, self->total);
    if (frame.began_ns == 0) /* Entered while phases were off: the length is unknown. */
        Py_RETURN_NONE;
    if (!is_backed(clock, word))
        return PyObject_CallMethod((PyObject *)clock, "count_first", "L", word);
    add(clock, word, 1);
    if (clock->measuring && clock->hook_ns == 0)
        goodput_count_own(clock, now);
    Py_RETURN_NONE;
}

static PyObject *Phase_enter(Phase *self, PyObject *unused)
{
    return goodput_enter(self);
}

static PyObject *Phase_exit(Phase *self, PyObject *const *args, Py_ssize_t count)
{
    return goodput_exit(self, count > 0 && args[0] != Py_None);
}

/* Call a function in the phase and pass its result or exception on. */
static PyObject *Phase_run(Phase *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *raised, *result, *done;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "run() takes a function and its arguments");
        return NULL;
    }
    done = goodput_enter(self);
    if (done == NULL) {
        goodput_drop_error();
        return PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    }
    Py_DECREF(done);
    result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    raised = goodput_take_error();
    done = goodput_exit(self, result == NULL);
    if (done == NULL)
        goodput_drop_error();
    Py_XDECREF(done);
    goodput_restore_error(raised);
    return result;
}

PyObject *goodput_bin_of_ns(PyObject *module, PyObject *argument)
{
    int beyond;
    long long ns = PyLong_AsLongLongAndOverflow(argument, &beyond);
    if (ns == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(beyond > 0 ? OVERFLOW_BIN : half_bin((double)ns / 1e9));
}

static PyMemberDef Phase_members[] = {
    {"recorder", Py_T_OBJECT_EX, offsetof(Phase, recorder), Py_READONLY, "its recorder"},
    {"name", Py_T_OBJECT_EX, offsetof(Phase, name), Py_READONLY, "its name"},
    {"index", Py_T_LONGLONG, offsetof(Phase, index), Py_READONLY, "its column in the page"},
    {"total", Py_T_LONGLONG, offsetof(Phase, total), Py_READONLY, "the word of its total"},
    {"histogram", Py_T_LONGLONG, offsetof(Phase, histogram), Py_READONLY, "the first word of its histogram"},
    {NULL},
};

static PyMethodDef Phase_methods[] = {
    {"__enter__", (PyCFunction)Phase_enter, METH_NOARGS, "Begin the phase."},
    {"__exit__", (PyCFunction)(void (*)(void))Phase_exit, METH_FASTCALL, "End it; never swallows an exception."},
    {"run", (PyCFunction)(void (*)(void))Phase_run, METH_FASTCALL | METH_KEYWORDS, "Call a function in the phase."},
    {NULL},
};

PyTypeObject goodput_phase_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "goodput.sdk.recorder._fast.Phase",
    .tp_basicsize = sizeof(Phase),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "See goodput.sdk.recorder.step_clock.Phase.",
    .tp_traverse = (traverseproc)Phase_traverse,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Phase_init,
    .tp_dealloc = (destructor)Phase_dealloc,
    .tp_members = Phase_members,
    .tp_methods = Phase_methods,
};

int goodput_ident_is_pointer;

int goodput_add_clock(PyObject *module)
{
    goodput_ident_is_pointer = (long long)PyThread_get_thread_ident() == thread_pointer();
    if (PyType_Ready(&ClockType) < 0 || PyType_Ready(&goodput_phase_type) < 0)
        return -1;
    if (PyModule_AddObjectRef(module, "Clock", (PyObject *)&ClockType) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Phase", (PyObject *)&goodput_phase_type);
}
