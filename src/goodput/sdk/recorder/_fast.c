/* The hot path of the SDK: the clock of the step thread, and enter and exit of a phase.
 *
 * The same types as in plain.py, which replaces this where it could not be compiled; the same tests run on both.
 * Words are the mapped rank page. Each store is one aligned 64-bit store, so the page is readable at any moment, also
 * after SIGKILL. Nothing here raises into the user's `with`. */
#include "_fast.h"

#define OVERFLOW_BIN 31744
#define OVERFLOW_SECONDS 65520.0
#define BLOCK_BITS 10 /* An octave of a histogram. */

/* Constants of goodput.rank_page.page, by name. */
static long long word_last, word_phase, word_totals, word_outside, word_steps, word_samples, word_step_start,
    word_step_next, word_cost, histograms, ring, ring_records, record_words, phase_slots;
static const struct {
    const char *name;
    long long *value;
} page_constants[] = {
    {"W_LAST", &word_last},
    {"W_PHASE", &word_phase},
    {"W_TOTALS", &word_totals},
    {"W_OUTSIDE", &word_outside},
    {"W_STEPS", &word_steps},
    {"W_SAMPLES", &word_samples},
    {"W_STEP_START", &word_step_start},
    {"W_STEP_NEXT", &word_step_next},
    {"W_COST", &word_cost},
    {"W_HISTOGRAMS", &histograms},
    {"W_STEP_RING", &ring},
    {"STEP_RING", &ring_records},
    {"STEP_WORDS", &record_words},
    {"PHASE_SLOTS", &phase_slots},
};

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

static int raise_again(void *exception)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)exception), (PyObject *)exception);
    Py_DECREF((PyObject *)exception);
    return -1;
}

/* Take the raised exception (NULL if none) and restore it. */
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

/* KeyboardInterrupt and SystemExit of a signal handler are raised again in the user's code, by a pending call. */
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

/* 0 for a call that returned `result`, -1 for one that raised. */
static int returned(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* ------------------------------------------------------------------------------------------- the page and the fields
 * Each of these functions is the only one here to write its fields. */

static inline void store(Clock *clock, long long word, uint64_t value)
{
    __atomic_store_n(&clock->words[word], value, __ATOMIC_RELEASE);
}

static inline void add(Clock *clock, long long word, long long value)
{
    store(clock, word, clock->words[word] + (uint64_t)value);
}

/* Charge the time since the last boundary to a word. */
static inline void charge(Clock *clock, long long word, long long now)
{
    add(clock, word, now - clock->last_ns);
    clock->last_ns = now;
    store(clock, word_last, (uint64_t)now);
}

static inline void set_current(Clock *clock, long long current, long long child_ns)
{
    clock->current = current;
    clock->child_ns = child_ns;
}

static inline void set_step_start(Clock *clock, long long start_ns)
{
    clock->step_start_ns = start_ns;
    store(clock, word_step_start, (uint64_t)start_ns);
}

static inline long long charged_word(Clock *clock)
{
    return clock->phases_off ? word_totals : clock->current;
}

/* ------------------------------------------------------------------------------------------- Gaps
 * The same as in plain.py, which says what the fields are. */

#define BATCH_DIVISOR 4
#define FORWARD_DIVISOR 4

long long goodput_word_forward;

void goodput_claim(Gaps *gaps, long long word)
{
    gaps->claimed = word;
}

void goodput_set_may_be_batch(Gaps *gaps, int may_be_batch)
{
    gaps->may_be_batch = (char)may_be_batch;
}

int goodput_claim_batch(Gaps *gaps)
{
    if (!gaps->may_be_batch || gaps->batch_word == 0)
        return 0;
    gaps->claimed = gaps->batch_word;
    return 1;
}

/* The word that the time before a phase is charged to. */
static long long word_before(Gaps *gaps, Clock *clock, long long total, long long now)
{
    long long claimed = gaps->claimed, length = gaps->backward_ns, gap_ns = now - clock->last_ns;
    long long batch = gaps->may_be_batch ? gaps->batch_word : 0;
    gaps->claimed = word_totals;
    if (clock->depth != 0)
        return clock->current;
    gap_ns = gap_ns > 0 ? gap_ns : 0;
    gaps->between_ns += gap_ns;
    if (claimed == word_totals) {
        gaps->may_be_batch = 0; /* Work of another kind: what surrounds it need not be the batch. */
        return clock->current;
    }
    if (batch)
        length /= BATCH_DIVISOR;
    else if (length < clock->length)
        length = clock->length;
    if (claimed == gaps->batch_word)
        return claimed;
    if (claimed == goodput_word_forward && total == claimed) {
        /* Between two forward passes: also the gaps together must be short, since they may be many. */
        int is_short = gap_ns <= clock->length && gaps->between_ns <= gaps->forward_ns / FORWARD_DIVISOR;
        return is_short ? claimed : clock->current;
    }
    if (gaps->between_ns <= length)
        return claimed;
    if (!batch)
        return clock->current;
    gaps->between_ns -= gap_ns; /* The making of a batch leaves the bound to the work on gradients. */
    return batch;
}

void goodput_pass_ended(Clock *clock, Gaps *gaps, int backward, int follows, int may_be_batch)
{
    gaps->may_be_batch = (char)may_be_batch;
    if (backward || !follows)
        gaps->forward_ns = gaps->between_ns = 0;
    if (clock->depth != 0) /* Then `length` is of another phase. */
        return;
    if (backward)
        gaps->backward_ns = clock->length;
    else
        gaps->forward_ns += clock->length;
}

static void forget_gaps(Gaps *gaps)
{
    gaps->claimed = word_totals;
    gaps->may_be_batch = 0;
}

static PyObject *Gaps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Gaps *self = (Gaps *)PyType_GenericNew(type, NULL, NULL);
    if (self != NULL)
        self->claimed = word_totals;
    return (PyObject *)self;
}

static PyObject *Gaps_claim(Gaps *self, PyObject *argument)
{
    long long word = PyLong_AsLongLong(argument);
    if (word == -1 && PyErr_Occurred())
        return NULL;
    goodput_claim(self, word);
    Py_RETURN_NONE;
}

static PyObject *Gaps_set_batch_word(Gaps *self, PyObject *argument)
{
    long long word = PyLong_AsLongLong(argument);
    if (word == -1 && PyErr_Occurred())
        return NULL;
    self->batch_word = word;
    Py_RETURN_NONE;
}

static PyObject *Gaps_claim_batch(Gaps *self, PyObject *unused)
{
    return PyBool_FromLong(goodput_claim_batch(self));
}

static PyObject *Gaps_word_before(Gaps *self, PyObject *args)
{
    PyObject *clock;
    long long total, now;
    if (!PyArg_ParseTuple(args, "O!LL", goodput_clock_type, &clock, &total, &now))
        return NULL;
    return PyLong_FromLongLong(word_before(self, (Clock *)clock, total, now));
}

static PyObject *Gaps_forward_ended(Gaps *self, PyObject *args)
{
    PyObject *clock;
    int follows, may_be_batch;
    if (!PyArg_ParseTuple(args, "O!pp", goodput_clock_type, &clock, &follows, &may_be_batch))
        return NULL;
    goodput_pass_ended((Clock *)clock, self, 0, follows, may_be_batch);
    Py_RETURN_NONE;
}

static PyObject *Gaps_backward_ended(Gaps *self, PyObject *clock)
{
    if (!PyObject_TypeCheck(clock, goodput_clock_type)) {
        PyErr_SetString(PyExc_TypeError, "want a Clock");
        return NULL;
    }
    goodput_pass_ended((Clock *)clock, self, 1, 0, 1);
    Py_RETURN_NONE;
}

static PyObject *Gaps_drop_claim(Gaps *self, PyObject *unused)
{
    self->claimed = word_totals;
    Py_RETURN_NONE;
}

static PyObject *Gaps_step_ended(Gaps *self, PyObject *unused)
{
    goodput_set_may_be_batch(self, 1);
    Py_RETURN_NONE;
}

static PyObject *Gaps_page_opened(Gaps *self, PyObject *unused)
{
    goodput_set_may_be_batch(self, 0);
    Py_RETURN_NONE;
}

static PyObject *Gaps_forget(Gaps *self, PyObject *unused)
{
    forget_gaps(self);
    Py_RETURN_NONE;
}

static PyMemberDef Gaps_members[] = {
    {"claimed", Py_T_LONGLONG, offsetof(Gaps, claimed), Py_READONLY, NULL},
    {"batch_word", Py_T_LONGLONG, offsetof(Gaps, batch_word), Py_READONLY, NULL},
    {"may_be_batch", Py_T_BOOL, offsetof(Gaps, may_be_batch), Py_READONLY, NULL},
    {"forward_ns", Py_T_LONGLONG, offsetof(Gaps, forward_ns), Py_READONLY, NULL},
    {"between_ns", Py_T_LONGLONG, offsetof(Gaps, between_ns), Py_READONLY, NULL},
    {"backward_ns", Py_T_LONGLONG, offsetof(Gaps, backward_ns), Py_READONLY, NULL},
    {NULL},
};

static PyMethodDef Gaps_methods[] = {
    {"claim", (PyCFunction)Gaps_claim, METH_O, NULL},
    {"claim_batch", (PyCFunction)Gaps_claim_batch, METH_NOARGS, NULL},
    {"drop_claim", (PyCFunction)Gaps_drop_claim, METH_NOARGS, NULL},
    {"word_before", (PyCFunction)Gaps_word_before, METH_VARARGS, NULL},
    {"forward_ended", (PyCFunction)Gaps_forward_ended, METH_VARARGS, NULL},
    {"backward_ended", (PyCFunction)Gaps_backward_ended, METH_O, NULL},
    {"step_ended", (PyCFunction)Gaps_step_ended, METH_NOARGS, NULL},
    {"set_batch_word", (PyCFunction)Gaps_set_batch_word, METH_O, NULL},
    {"page_opened", (PyCFunction)Gaps_page_opened, METH_NOARGS, NULL},
    {"forget", (PyCFunction)Gaps_forget, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot Gaps_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain.Gaps."},
    {Py_tp_new, Gaps_new},
    {Py_tp_members, Gaps_members},
    {Py_tp_methods, Gaps_methods},
    {0, NULL},
};

static PyType_Spec Gaps_spec = {
    .name = "goodput.sdk.recorder._fast.Gaps",
    .basicsize = sizeof(Gaps),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Gaps_slots,
};

/* ------------------------------------------------------------------------------------------- boundaries */

/* Count one in a histogram's bin. */
static int count_bin(Clock *clock, long long word)
{
    if (!(clock->backed[word >> (BLOCK_BITS + 3)] >> ((word >> BLOCK_BITS) & 7) & 1))
        return returned(PyObject_CallMethod((PyObject *)clock, "count_first", "L", word));
    add(clock, word, 1);
    return 0;
}

/* Report a boundary to the device clock; never raises. */
static void notify_device(Clock *clock, long long word)
{
    PyObject *device = Py_NewRef(clock->device);
    PyObject *argument = PyLong_FromLongLong(word);
    PyObject *result = argument ? call_with(device, argument) : NULL;
    if (result == NULL) {
        if (PyErr_ExceptionMatches(PyExc_Exception))
            set_reference(&clock->device, Py_NewRef(Py_None));
        goodput_drop_error();
    }
    Py_XDECREF(result);
    Py_XDECREF(argument);
    Py_DECREF(device);
}

/* ------------------------------------------------------------------------------------------- Costs
 * The same as in plain.py, which says what the fields are. */

/* Add the time since `from` to our own cost, less the clock reading made for this measurement only. */
static void count_own(Costs *costs, long long from)
{
    long long own = now_ns() - from - costs->reading_ns;
    costs->own_ns += own > 0 ? own : 0;
}

void goodput_start_own(Costs *costs)
{
    costs->hook_ns = now_ns();
}

void goodput_stop_own(Costs *costs, long long otherwise)
{
    long long from = costs->hook_ns ? costs->hook_ns : otherwise;
    if (from)
        count_own(costs, from);
    costs->hook_ns = 0;
}

static void end_measured_step(Costs *costs, long long end_ns)
{
    if (!costs->measuring)
        return;
    goodput_stop_own(costs, end_ns);
    costs->measuring = 0;
}

static PyObject *Costs_calibrate(Costs *self, PyObject *args)
{
    long long phase_ns, step_ns, reading_ns;
    if (!PyArg_ParseTuple(args, "LLL", &phase_ns, &step_ns, &reading_ns))
        return NULL;
    self->phase_ns = phase_ns;
    self->step_ns = step_ns;
    self->reading_ns = reading_ns;
    Py_RETURN_NONE;
}

static PyObject *Costs_add(Costs *self, PyObject *argument)
{
    long long ns = PyLong_AsLongLong(argument);
    if (ns == -1 && PyErr_Occurred())
        return NULL;
    self->extra_ns += ns;
    Py_RETURN_NONE;
}

static PyObject *Costs_measure(Costs *self, PyObject *argument)
{
    int on = PyObject_IsTrue(argument);
    if (on < 0)
        return NULL;
    self->own_ns = 0;
    self->measuring = (char)on;
    Py_RETURN_NONE;
}

static PyObject *Costs_count_since(Costs *self, PyObject *argument)
{
    long long from = PyLong_AsLongLong(argument);
    if (from == -1 && PyErr_Occurred())
        return NULL;
    count_own(self, from);
    Py_RETURN_NONE;
}

static PyObject *Costs_step_ended(Costs *self, PyObject *argument)
{
    long long end_ns = PyLong_AsLongLong(argument);
    if (end_ns == -1 && PyErr_Occurred())
        return NULL;
    end_measured_step(self, end_ns);
    Py_RETURN_NONE;
}

static PyObject *Costs_page_opened(Costs *self, PyObject *unused)
{
    self->extra_ns = 0;
    Py_RETURN_NONE;
}

static PyMemberDef Costs_members[] = {
    {"measuring", Py_T_BOOL, offsetof(Costs, measuring), Py_READONLY, NULL},
    {"own_ns", Py_T_LONGLONG, offsetof(Costs, own_ns), Py_READONLY, NULL},
    {"reading_ns", Py_T_LONGLONG, offsetof(Costs, reading_ns), Py_READONLY, NULL},
    {"phase_ns", Py_T_LONGLONG, offsetof(Costs, phase_ns), Py_READONLY, NULL},
    {"step_ns", Py_T_LONGLONG, offsetof(Costs, step_ns), Py_READONLY, NULL},
    {"extra_ns", Py_T_LONGLONG, offsetof(Costs, extra_ns), Py_READONLY, NULL},
    {NULL},
};

static PyMethodDef Costs_methods[] = {
    {"calibrate", (PyCFunction)Costs_calibrate, METH_VARARGS, NULL},
    {"add", (PyCFunction)Costs_add, METH_O, NULL},
    {"measure", (PyCFunction)Costs_measure, METH_O, NULL},
    {"count_since", (PyCFunction)Costs_count_since, METH_O, NULL},
    {"step_ended", (PyCFunction)Costs_step_ended, METH_O, NULL},
    {"page_opened", (PyCFunction)Costs_page_opened, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot Costs_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain.Costs."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_members, Costs_members},
    {Py_tp_methods, Costs_methods},
    {0, NULL},
};

static PyType_Spec Costs_spec = {
    .name = "goodput.sdk.recorder._fast.Costs",
    .basicsize = sizeof(Costs),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Costs_slots,
};

/* ------------------------------------------------------------------------------------------- Clock */

static PyObject *Clock_reset(Clock *self, PyObject *unused)
{
    self->depth = 0;
    if (self->gaps != NULL)
        forget_gaps(self->gaps);
    set_current(self, word_totals, 0);
    Py_RETURN_NONE;
}

static PyTypeObject *costs_type;

static PyObject *Clock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Clock *self = (Clock *)PyType_GenericNew(type, NULL, NULL);
    if (self != NULL && (self->costs = (Costs *)PyObject_CallNoArgs((PyObject *)costs_type)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int Clock_init(Clock *self, PyObject *args, PyObject *kwargs)
{
    set_reference(&self->device, Py_NewRef(Py_None));
    Py_DECREF(Clock_reset(self, NULL));
    return 0;
}

static void release_words(Clock *self)
{
    PyBuffer_Release(&self->view);
    free(self->backed);
    self->words = NULL;
    self->backed = NULL;
    self->words_count = 0;
}

/* `view.obj` is not visited: the collector of CPython before 3.13 clears a memoryview while its buffer is exported, and
   crashes when it is freed (gh-77894). Clock_clear releases it. */
static int Clock_traverse(Clock *self, visitproc visit, void *arg)
{
    Py_VISIT(self->device);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int Clock_clear(Clock *self)
{
    release_words(self);
    Py_CLEAR(self->device);
    return 0;
}

static void Clock_dealloc(Clock *self)
{
    PyObject_GC_UnTrack(self);
    Clock_clear(self);
    free(self->stack);
    Py_XDECREF((PyObject *)self->gaps);
    Py_XDECREF((PyObject *)self->costs);
    free_instance((PyObject *)self);
}

static PyObject *Clock_get_words(Clock *self, void *closure)
{
    return Py_NewRef(self->view.obj != NULL ? self->view.obj : Py_None);
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
    self->view = view;
    self->words = view.buf;
    self->words_count = view.len / 8;
    return 0;
}

static PyObject *Clock_get_charged(Clock *self, void *closure)
{
    return PyLong_FromLongLong(charged_word(self));
}

static PyObject *Clock_get_gaps(Clock *self, void *closure)
{
    return Py_NewRef(self->gaps != NULL ? (PyObject *)self->gaps : Py_None);
}

static PyObject *Clock_set_gaps(Clock *self, PyObject *gaps)
{
    if (!PyObject_TypeCheck(gaps, goodput_gaps_type)) {
        PyErr_SetString(PyExc_TypeError, "want a Gaps");
        return NULL;
    }
    set_reference((PyObject **)&self->gaps, Py_NewRef(gaps));
    Py_RETURN_NONE;
}

static PyObject *Clock_get_depth(Clock *self, void *closure)
{
    return PyLong_FromSsize_t(self->depth);
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
            memmove(&self->stack[depth - 1], &self->stack[depth], (self->depth - depth) * sizeof(Frame));
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

static PyObject *Clock_count(Clock *self, PyObject *argument)
{
    long long word = checked_word(self, argument);
    if (word < 0 || count_bin(self, word) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* How many open phases have their bit, by index, among these. */
Py_ssize_t goodput_count_open(Clock *clock, long long bits)
{
    Py_ssize_t open = 0;
    if (clock->depth == 0)
        return 0;
    open = bits >> (clock->current - word_totals) & 1;
    for (Py_ssize_t i = 1; i < clock->depth; i++)
        open += bits >> (clock->stack[i].current - word_totals) & 1;
    return open;
}

static PyObject *Clock_notify_device(Clock *self, PyObject *argument)
{
    long long word = PyLong_AsLongLong(argument);
    if (word == -1 && PyErr_Occurred())
        return NULL;
    notify_device(self, word);
    Py_RETURN_NONE;
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
    long long start = self->step_start_ns, number = self->steps + 1, samples;
    const Costs *costs = self->costs;
    long long at = ring + (number - 1) % ring_records * record_words;
    if (at + record_words > self->words_count || histograms + OVERFLOW_BIN >= self->words_count) {
        PyErr_SetString(PyExc_IndexError, "word index out of range");
        return -1;
    }
    if (now < self->last_ns)
        now = self->last_ns;
    charge(self, charged_word(self), now);
    self->step_end_ns = now;
    samples = (long long)self->words[word_samples] + self->step_samples;
    store(self, at + record_words - 1, 0);
    store(self, at + 1, (uint64_t)self->step_next + STEP_BIAS);
    store(self, at + 2, (uint64_t)start);
    store(self, at + 3, (uint64_t)now);
    store(self, at + 4, (uint64_t)samples);
    for (long long i = 0; i < self->columns && i < phase_slots; i++) {
        store(self, at + 5 + i, self->words[word_totals + i]);
        store(self, at + 5 + phase_slots + i, self->words[word_outside + i]);
    }
    store(self, at, (uint64_t)number);
    store(self, at + record_words - 1, (uint64_t)number);
    self->steps = number;
    store(self, word_steps, (uint64_t)number);
    store(self, word_samples, (uint64_t)samples);
    set_step_start(self, 0);
    self->step_next++;
    store(self, word_step_next, (uint64_t)self->step_next + STEP_BIAS);
    store(self, word_cost, (uint64_t)(self->entries * costs->phase_ns + number * costs->step_ns + costs->extra_ns));
    return count_bin(self, histograms + half_bin((double)(now - start) / 1e9));
}

static PyObject *Clock_close_step(Clock *self, PyObject *argument)
{
    long long now = PyLong_AsLongLong(argument);
    if ((now == -1 && PyErr_Occurred()) || close_step(self, now) < 0)
        return NULL;
    return PyLong_FromLongLong(self->step_end_ns);
}

/* Close the running step, and begin the next one where it ended. */
int goodput_next_step(Clock *self, long long samples)
{
    self->step_samples = samples;
    if (close_step(self, now_ns()) < 0)
        return -1;
    self->step_samples = 0;
    set_step_start(self, self->step_end_ns);
    end_measured_step(self->costs, self->step_end_ns);
    return 0;
}

static PyObject *Clock_next_step(Clock *self, PyObject *samples)
{
    long long count = PyLong_AsLongLong(samples);
    if ((count == -1 && PyErr_Occurred()) || goodput_next_step(self, count) < 0)
        return NULL;
    return PyLong_FromLongLong(self->step_end_ns);
}

#define NUMBER(field, doc) {#field, Py_T_LONGLONG, offsetof(Clock, field), 0, doc}
#define FLAG(field, doc) {#field, Py_T_BOOL, offsetof(Clock, field), 0, doc}
#define OBJECT(field, doc) {#field, Py_T_OBJECT_EX, offsetof(Clock, field), 0, doc}

static PyMemberDef Clock_members[] = {
    NUMBER(steps, "steps completed"),
    NUMBER(step_start_ns, "start of the running step, 0 between steps"),
    NUMBER(step_end_ns, "end of the last completed step"),
    NUMBER(step_next, "index of the running or next step"),
    NUMBER(step_samples, "samples of the running step"),
    NUMBER(columns, "phases in use"),
    NUMBER(thread, "ident of the step thread, 0 if none"),
    NUMBER(current, "word of the phase that time is charged to"),
    NUMBER(last_ns, "monotonic ns up to which time is charged"),
    NUMBER(entries, "phases completed"),
    FLAG(phases_off, "whether phases are not measured"),
    NUMBER(length, "ns of the last outermost phase"),
    {"costs", Py_T_OBJECT_EX, offsetof(Clock, costs), Py_READONLY, "what measuring costs"},
    OBJECT(device, "called with the charged word at each boundary, or None"),
    FLAG(raised, "whether a phase's body raised"),
    {NULL},
};

static PyGetSetDef Clock_getset[] = {
    {"words", (getter)Clock_get_words, (setter)Clock_set_words, "the page as u64", NULL},
    {"charged", (getter)Clock_get_charged, NULL, "word that time is charged to", NULL},
    {"gaps", (getter)Clock_get_gaps, NULL, "decides what the time before a phase is charged to, or None", NULL},
    {"depth", (getter)Clock_get_depth, NULL, "phases that are open", NULL},
    {NULL},
};

static PyMethodDef Clock_methods[] = {
    {"close_step", (PyCFunction)Clock_close_step, METH_O, "Close the running step."},
    {"next_step", (PyCFunction)Clock_next_step, METH_O, "Close the running step and begin the next."},
    {"set_gaps", (PyCFunction)Clock_set_gaps, METH_O, "Charge the time between phases as this Gaps says."},
    {"reset", (PyCFunction)Clock_reset, METH_NOARGS, "Forget open phases."},
    {"close_below", (PyCFunction)Clock_close_below, METH_O, "Close an outer open phase."},
    {"count", (PyCFunction)Clock_count, METH_O, "Count one in a histogram's bin."},
    {"notify_device", (PyCFunction)Clock_notify_device, METH_O, "Report a boundary to the device clock; never raises."},
    {"back", (PyCFunction)Clock_back, METH_O, "Note that the memory of a word's block is allocated."},
    {NULL},
};

static PyType_Slot Clock_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain.Clock."},
    {Py_tp_new, Clock_new},
    {Py_tp_init, Clock_init},
    {Py_tp_dealloc, Clock_dealloc},
    {Py_tp_traverse, Clock_traverse},
    {Py_tp_clear, Clock_clear},
    {Py_tp_members, Clock_members},
    {Py_tp_getset, Clock_getset},
    {Py_tp_methods, Clock_methods},
    {0, NULL},
};

static PyType_Spec Clock_spec = {
    .name = "goodput.sdk.recorder._fast.Clock",
    .basicsize = sizeof(Clock),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Clock_slots,
};

/* ------------------------------------------------------------------------------------------- Phase */

static int Phase_init(Phase *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "name", "index", "total", "histogram", NULL};
    PyObject *recorder, *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OLLL", names, goodput_clock_type, &recorder, &name, &self->index,
                                     &self->total, &self->histogram))
        return -1;
    set_reference((PyObject **)&self->recorder, Py_NewRef(recorder));
    set_reference(&self->name, Py_NewRef(name));
    return 0;
}

/* No tp_clear: hooks use `recorder` without a check, and the recorder's own tp_clear breaks cycles. */
static int Phase_traverse(Phase *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->name);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void Phase_dealloc(Phase *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->recorder);
    Py_XDECREF(self->name);
    free_instance((PyObject *)self);
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

int goodput_enter(Phase *self)
{
    long long now = now_ns(), charged;
    Clock *clock = self->recorder;
    if (is_elsewhere(self))
        return returned(PyObject_CallMethod((PyObject *)self, "_enter_elsewhere", "L", now));
    if (clock->depth == clock->room && !make_room(clock)) {
        PyErr_NoMemory();
        return -1;
    }
    if (clock->phases_off) {
        clock->stack[clock->depth++] = (Frame){clock->current, 0, clock->child_ns};
        set_current(clock, self->total, clock->child_ns);
        return 0;
    }
    charged = clock->gaps == NULL ? clock->current : word_before(clock->gaps, clock, self->total, now);
    charge(clock, charged, now);
    clock->stack[clock->depth++] = (Frame){clock->current, now, clock->child_ns};
    set_current(clock, self->total, 0);
    store(clock, word_phase, (uint64_t)self->index);
    if (has_device(clock))
        notify_device(clock, charged);
    if (clock->costs->measuring && clock->costs->hook_ns == 0)
        count_own(clock->costs, now);
    return 0;
}

int goodput_exit(Phase *self, int raised)
{
    long long now = now_ns();
    Clock *clock = self->recorder;
    long long length, own;
    Frame frame;
    if (is_elsewhere(self))
        return returned(PyObject_CallMethod((PyObject *)self, "_exit_elsewhere", "L", now));
    if (clock->current != self->total || clock->depth == 0)
        return returned(PyObject_CallMethod((PyObject *)self, "_exit_out_of_order", NULL));
    if (raised)
        clock->raised = 1;
    frame = clock->stack[--clock->depth];
    if (clock->phases_off) {
        set_current(clock, frame.current, frame.child_ns);
        return 0;
    }
    charge(clock, self->total, now);
    length = frame.began_ns ? now - frame.began_ns : 0;
    own = length - clock->child_ns;
    set_current(clock, frame.current, frame.child_ns + length);
    clock->entries++;
    if (clock->depth == 0)
        clock->length = length;
    store(clock, word_phase, (uint64_t)(frame.current - word_totals));
    if (has_device(clock))
        notify_device(clock, self->total);
    /* Entered while phases were off: the length is unknown. */
    if (frame.began_ns && count_bin(clock, self->histogram + half_bin((double)own / 1e9)) < 0)
        return -1;
    if (clock->costs->measuring && clock->costs->hook_ns == 0)
        count_own(clock->costs, now);
    return 0;
}

/* Close the phases above `depth` that an interrupt has left open: from Python 3.14 on, one may arrive between the enter
   of a `with` statement and its body. As Clock.unwind in plain.py. */
static void unwind(Clock *clock, Py_ssize_t depth)
{
    long long now = now_ns();
    if (clock->depth <= depth)
        return;
    charge(clock, charged_word(clock), now);
    while (clock->depth > depth) {
        Frame frame = clock->stack[--clock->depth];
        set_current(clock, frame.current, frame.child_ns + (frame.began_ns ? now - frame.began_ns : 0));
    }
    store(clock, word_phase, (uint64_t)(charged_word(clock) - word_totals));
}

void goodput_exit_after(Phase *self, PyObject *result, Py_ssize_t depth)
{
    PyObject *raised = goodput_take_error();
    if (result == NULL && !is_elsewhere(self))
        unwind(self->recorder, depth);
    if (goodput_exit(self, result == NULL) < 0)
        goodput_drop_error();
    goodput_restore_error(raised);
}

static PyObject *Phase_enter(Phase *self, PyObject *unused)
{
    return goodput_enter(self) < 0 ? NULL : Py_NewRef((PyObject *)self);
}

static PyObject *Phase_exit(Phase *self, PyObject *const *args, Py_ssize_t count)
{
    if (goodput_exit(self, count > 0 && args[0] != Py_None) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Call a function in the phase and pass its result or exception on. */
static PyObject *Phase_run(Phase *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *result;
    Py_ssize_t depth;
    int entered;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "run() takes a function and its arguments");
        return NULL;
    }
    entered = goodput_enter(self) == 0;
    if (!entered)
        goodput_drop_error();
    depth = self->recorder != NULL ? self->recorder->depth : 0;
    result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    if (entered)
        goodput_exit_after(self, result, depth);
    return result;
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

static PyType_Slot Phase_slots[] = {
    {Py_tp_doc, (void *)"See goodput.sdk.recorder.plain.Phase."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Phase_init},
    {Py_tp_dealloc, Phase_dealloc},
    {Py_tp_traverse, Phase_traverse},
    {Py_tp_members, Phase_members},
    {Py_tp_methods, Phase_methods},
    {0, NULL},
};

static PyType_Spec Phase_spec = {
    .name = "goodput.sdk.recorder._fast.Phase",
    .basicsize = sizeof(Phase),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Phase_slots,
};

PyTypeObject *goodput_gaps_type, *goodput_clock_type, *goodput_phase_type;
static PyObject *method_type;

PyTypeObject *goodput_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (type == NULL)
        return NULL;
    if (PyModule_AddType(module, type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return type; /* The reference is never dropped: the module's functions use the type. */
}

PyObject *goodput_bind(PyObject *function, PyObject *instance)
{
    PyObject *arguments[] = {function, instance};
    return PyObject_Vectorcall(method_type, arguments, 2, NULL);
}

static PyObject *attribute_of(const char *module, const char *name)
{
    PyObject *from = PyImport_ImportModule(module), *found = NULL;
    if (from != NULL)
        found = PyObject_GetAttrString(from, name);
    Py_XDECREF(from);
    return found;
}

int goodput_init_clock(PyObject *module)
{
    PyObject *page = PyImport_ImportModule("goodput.rank_page.page");
    if (page == NULL)
        return -1;
    for (size_t i = 0; i < sizeof page_constants / sizeof *page_constants && !PyErr_Occurred(); i++) {
        PyObject *value = PyObject_GetAttrString(page, page_constants[i].name);
        if (value != NULL)
            *page_constants[i].value = PyLong_AsLongLong(value);
        Py_XDECREF(value);
    }
    Py_DECREF(page);
    if (PyErr_Occurred() || (method_type = attribute_of("types", "MethodType")) == NULL ||
        (costs_type = goodput_add_type(module, &Costs_spec)) == NULL ||
        (goodput_gaps_type = goodput_add_type(module, &Gaps_spec)) == NULL ||
        (goodput_clock_type = goodput_add_type(module, &Clock_spec)) == NULL ||
        (goodput_phase_type = goodput_add_type(module, &Phase_spec)) == NULL)
        return -1;
    return 0;
}
