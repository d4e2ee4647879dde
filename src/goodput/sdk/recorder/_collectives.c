/* Records of collectives in the rank page: the hot part of collectives.py.
 *
 * Everything runs under the interpreter's lock and releases it only in the wrapped call and in attributes of tensors, so
 * a record is written as one, from whichever thread. Nothing here raises into the wrapped call. */
#include "_fast.h"

/* Words of the page: goodput.rank_page.collective_records.CONSTANTS. */
static long long word_base, word_count, word_groups, word_sums, word_ring, word_totals, word_communication;

/* As there. */
enum { WRITTEN, GROUPS, DROPPED };
enum { AT_HIDDEN = 4, HIDDEN_MAX = 31, HIDDEN_WORDS = 4, H_KEY = 0, H_LEFT, H_LEAST, H_MOST, WAITED_NS = 100000 };
enum { GROUPS_MAX = 128, GROUP_WORDS = 64, G_CALLS = 3, G_P2P = 4, G_LAST = 5 };
enum { RING = 512, RECORD_WORDS = 16, OPERATION_SLOTS = 16, SUM_WORDS = 4, REDUCE_SCATTER = 7, SEND = 10 };
enum { R_NUMBER, R_KIND, R_SEQUENCE, R_PEER, R_BYTES, R_ENTER, R_RETURN, R_EXIT, R_EXPOSED, R_STEP, R_PHASE, R_WAITED = 14, R_SEAL };
enum { REDUCER = 1, FUNCTIONAL = 2, COALESCED = 4, OTHER_THREAD = 8, RAISED = 16, FUTURE = 32 };
#define STEP_BIAS (1ULL << 63)
#define OPERATION_OF 0xFFFFFFFF000000FFULL /* The bits of a record's kind that are its group and its operation. */

enum { WORKS = 256, PROBES = 8, KNOWN = 16 };

typedef struct {
    const void *work; /* Only compared: it may be gone. */
    long long first, last;
} Issued;

typedef struct {
    PyObject_HEAD
    Clock *recorder;
    PyObject *slots;  /* A dictionary: slots by the id of a process group and by its name, -1 for no slot. */
    PyObject *dtypes; /* A dictionary: codes by dtype. */
    const void *known[KNOWN]; /* The process groups used last; only compared. */
    long long known_slots[KNOWN];
    long long ready;         /* 1: the page has room for records; -1: it has none; 0: ask `prepare`. */
    long long written, last; /* Records in this page, and the last one of the step thread. */
    long long attributed;    /* Time of the phase `communication` that is attributed to records. */
    long long reducing, first_reduced; /* Whether a reducer calls, and the first of its records without an exit. */
    long long functional;    /* The thread that is in a functional collective, or 0. */
    long long coalesced;     /* The first record between the calls that begin and end coalescing, or 0. */
    long long calls[GROUPS_MAX], point_to_point[GROUPS_MAX];
    unsigned char hidden[GROUPS_MAX * OPERATION_SLOTS], hidden_count; /* Places in the table of hidden time, from 1 on. */
    const void *dtype; /* The dtype of the last tensor, one of `dtypes`, and its code. */
    long long dtype_code;
    Issued issued[WORKS];
} Records;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Records *records;
    PyObject *function, *python, *exact; /* `python` is called for a first argument of none of the types `exact`, if any. */
    long long operation, tensors, group, peer, flags; /* Positions of arguments, -1 for none. */
    PyObject *dict, *weakrefs;
} Call;

static PyTypeObject *records_type;
static PyObject *nbytes_name, *dtype_name, *root_name, *address_name;

static inline void put(uint64_t *word, long long value)
{
    __atomic_store_n(word, (uint64_t)value, __ATOMIC_RELEASE);
}

static inline uint64_t *region(Records *self)
{
    return self->recorder->words + word_base;
}

static inline uint64_t *record_at(Records *self, long long number)
{
    return region(self) + word_ring + (number - 1) % RING * RECORD_WORDS;
}

/* One of the places where a Work may be remembered. A pipeline waits for many only at the end of its step. */
static inline Issued *issued_at(Records *self, const void *work, int probe)
{
    return &self->issued[((((uintptr_t)work >> 4) * 0x9E3779B97F4A7C15ULL >> 56) + probe) % WORKS];
}

static Issued *find_issued(Records *self, const void *work)
{
    for (int probe = 0; work != NULL && probe < PROBES; probe++)
        if (issued_at(self, work, probe)->work == work)
            return issued_at(self, work, probe);
    return NULL;
}

/* Waiting for this object waits for these records. Where all its places are taken the oldest is forgotten. */
static void put_issued(Records *self, const void *work, long long first, long long last)
{
    Issued *place = NULL;
    for (int probe = 0; probe < PROBES; probe++) {
        Issued *next = issued_at(self, work, probe);
        if (next->work == NULL || next->work == work) {
            place = next;
            break;
        }
        if (place == NULL || next->last < place->last)
            place = next;
    }
    *place = (Issued){work, first, last};
}

/* What is waited for: a Work, a future, whose address is made odd since it may be that of a Work that is gone, or the
 * memory of a functional collective's tensor, of which views are made. */
static const void *awaited(PyObject *object, long long flags)
{
    PyObject *address;
    void *found;
    if (flags & FUTURE)
        return (const char *)object + 1;
    if (!(flags & FUNCTIONAL))
        return object;
    address = PyObject_VectorcallMethod(address_name, &object, 1, NULL);
    found = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    if (PyErr_Occurred())
        goodput_drop_error();
    return found;
}

/* Records of one Work, or of coalesced ones: of these only those with the flag. */
static inline long long flag_of(Issued issued)
{
    return issued.first == issued.last ? 0 : COALESCED;
}

/* Set whether futures of these records are taken that nothing waits for. Reducers wait for theirs in C++. */
static void mark_future(Records *self, Issued issued, int is_taken)
{
    long long first = issued.first > issued.last - RING ? issued.first : issued.last - RING + 1, flag = flag_of(issued);
    if (self->ready != 1 || self->recorder->words == NULL)
        return;
    for (long long number = first; number <= issued.last && number <= self->written; number++) {
        uint64_t *record = record_at(self, number), kind = record[R_KIND], flags = kind >> 16;
        if (record[R_NUMBER] == (uint64_t)number && !record[R_EXIT] && !(flags & REDUCER) && (flags & flag) == (uint64_t)flag)
            put(&record[R_KIND], (long long)(is_taken ? kind | FUTURE << 16 : kind & ~((uint64_t)FUTURE << 16)));
    }
}

/* Whether records can be written now. */
static int is_ready(Records *self)
{
    Clock *clock = self->recorder;
    PyObject *answer;
    if (clock->thread == 0 || clock->words == NULL)
        return 0;
    if (self->ready == 0) {
        answer = PyObject_CallMethod((PyObject *)self, "prepare", NULL);
        if (answer == NULL)
            goodput_drop_error();
        Py_XDECREF(answer);
    }
    return self->ready == 1 && word_base + word_count <= clock->words_count;
}

/* The slot of a process group or of the name of one, -1 for none. */
static long long slot_of(Records *self, PyObject *group)
{
    size_t place = ((uintptr_t)group >> 4) % KNOWN;
    PyObject *key, *found;
    long long slot = -1;
    if (self->known[place] == group)
        return self->known_slots[place];
    key = PyUnicode_Check(group) ? Py_NewRef(group) : PyLong_FromVoidPtr(group);
    found = key == NULL ? NULL : PyDict_GetItemWithError(self->slots, key);
    Py_XINCREF(found);
    if (found == NULL && !PyErr_Occurred())
        found = PyObject_CallMethod((PyObject *)self, "register", "O", group);
    Py_XDECREF(key);
    if (found != NULL)
        slot = PyLong_AsLongLong(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        goodput_drop_error();
        return -1;
    }
    slot = slot >= 0 && slot < GROUPS_MAX ? slot : -1;
    if (!PyUnicode_Check(group)) {
        self->known[place] = group;
        self->known_slots[place] = slot;
    }
    return slot;
}

static long long number_of(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    long long number = value == NULL ? 0 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    if (PyErr_Occurred())
        goodput_drop_error();
    return number < 0 ? 0 : number;
}

/* The code of a tensor's dtype, 0 for an unknown one. */
static long long dtype_of(Records *self, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, dtype_name);
    PyObject *found;
    long long code = 0;
    if (dtype != NULL && dtype == self->dtype) {
        Py_DECREF(dtype);
        return self->dtype_code;
    }
    found = dtype == NULL ? NULL : PyDict_GetItemWithError(self->dtypes, dtype);
    if (found != NULL) {
        code = PyLong_AsLongLong(found);
        self->dtype = dtype; /* The dictionary, which never changes, keeps it. */
        self->dtype_code = code;
    }
    Py_XDECREF(dtype);
    if (PyErr_Occurred())
        goodput_drop_error();
    return code;
}

/* The bytes of a tensor or a list of tensors, and the dtype of the first. */
static long long measure(Records *self, PyObject *value, long long *dtype)
{
    PyObject *items;
    long long bytes = 0;
    if (value == Py_None)
        return 0;
    if (PyList_Check(value) && PyList_Size(value) == 1)
        value = PyList_GetItem(value, 0);
    if (!PyList_Check(value) && !PyTuple_Check(value)) {
        Py_INCREF(value); /* Attributes may run code that changes a list. */
        *dtype = dtype_of(self, value);
        bytes = number_of(value, nbytes_name);
        Py_DECREF(value);
        return bytes;
    }
    items = PySequence_Tuple(value);
    if (items == NULL) {
        goodput_drop_error();
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(items); i++)
        bytes += number_of(PyTuple_GetItem(items, i), nbytes_name);
    if (PyTuple_Size(items))
        *dtype = dtype_of(self, PyTuple_GetItem(items, 0));
    Py_DECREF(items);
    return bytes;
}

/* The time in the phase `communication` so far. */
static inline long long waited_ns(Clock *clock, long long now)
{
    long long total = (long long)clock->words[word_communication];
    return clock->current == word_communication && !clock->phases_off ? total + now - clock->last_ns : total;
}

/* Attribute the time in the phase `communication` since the last attribution to a record; returns it. */
static long long attribute(Records *self, long long number, long long now)
{
    Clock *clock = self->recorder;
    long long total = waited_ns(clock, now), more = total - self->attributed;
    uint64_t *record, *sums;
    if (more <= 0 || number <= 0 || this_thread() != clock->thread)
        return 0;
    record = record_at(self, number);
    if (record[R_NUMBER] != (uint64_t)number)
        return 0; /* Overwritten: the time stays for the next one. */
    self->attributed = total;
    put(&record[R_EXPOSED], (long long)record[R_EXPOSED] + more);
    sums = region(self) + word_sums;
    sums += ((long long)(record[R_KIND] >> 32) * OPERATION_SLOTS + (long long)(record[R_KIND] & 255)) * SUM_WORDS;
    put(&sums[2], (long long)sums[2] + more);
    if (clock->steps == 0 && clock->step_start_ns == 0)
        put(&sums[3], (long long)sums[3] + more);
    return more;
}

/* The entry of a record's group and operation in the table of hidden time; NULL where it is full. */
static uint64_t *hidden_of(Records *self, uint64_t kind)
{
    long long key = (long long)(kind >> 32) * OPERATION_SLOTS + (long long)(kind & 255);
    uint64_t *entry;
    if (self->hidden[key] == 0) {
        if (self->hidden_count >= HIDDEN_MAX)
            return NULL;
        self->hidden[key] = ++self->hidden_count;
    }
    entry = region(self) + AT_HIDDEN + (self->hidden[key] - 1) * HIDDEN_WORDS;
    if (entry[H_KEY] == 0)
        put(&entry[H_KEY], key + 1);
    return entry;
}

/* So many ns of calls of this kind were hidden, at least and at most; `left` of them have been waited for. */
static void add_hidden(Records *self, uint64_t kind, long long left, long long least, long long most)
{
    uint64_t *entry = hidden_of(self, kind);
    if (entry == NULL)
        return;
    if (least)
        put(&entry[H_LEAST], (long long)entry[H_LEAST] + least);
    if (most)
        put(&entry[H_MOST], (long long)entry[H_MOST] + most);
    put(&entry[H_LEFT], (long long)entry[H_LEFT] + left);
}

/* The phase that the step thread is in, or was in before that of this wait. */
static long long phase_of(Clock *clock)
{
    long long word = clock->current;
    if (word == word_communication && clock->depth > 0)
        word = clock->stack[clock->depth - 1].current;
    return clock->phases_off ? 0 : word - word_totals;
}

/* Write the record of a call that is entered; returns its number. */
static long long enter(Records *self, Call *call, long long slot, long long bytes, long long dtype, long long peer)
{
    Clock *clock = self->recorder;
    long long number = self->written + 1, operation = call->operation, now = now_ns();
    int other = this_thread() != clock->thread, paired = operation >= SEND;
    long long sequence = paired ? self->point_to_point[slot] : self->calls[slot];
    long long flags = call->flags | (self->reducing ? REDUCER : 0) | (self->coalesced ? COALESCED : 0) |
                      (other ? OTHER_THREAD : 0);
    uint64_t *record = record_at(self, number), *group = region(self) + word_groups + slot * GROUP_WORDS;
    uint64_t *sums = region(self) + word_sums + (slot * OPERATION_SLOTS + operation) * SUM_WORDS;
    put(&record[R_SEAL], 0);
    put(&record[R_KIND], operation | dtype << 8 | flags << 16 | slot << 32);
    put(&record[R_SEQUENCE], sequence);
    put(&record[R_PEER], peer + 1);
    put(&record[R_BYTES], bytes);
    put(&record[R_ENTER], now);
    for (int i = R_RETURN; i <= R_EXPOSED; i++)
        put(&record[i], 0);
    __atomic_store_n(&record[R_STEP], (uint64_t)clock->step_next + STEP_BIAS, __ATOMIC_RELEASE);
    put(&record[R_PHASE], phase_of(clock));
    put(&record[R_WAITED], other ? 0 : waited_ns(clock, now));
    put(&record[R_NUMBER], number);
    put(&record[R_SEAL], number);
    put(&group[paired ? G_P2P : G_CALLS], sequence);
    put(&group[G_LAST], number);
    put(&sums[0], (long long)sums[0] + 1);
    put(&sums[1], (long long)sums[1] + bytes);
    put(&region(self)[WRITTEN], number);
    self->written = number;
    if (!other)
        self->last = number;
    if (flags & REDUCER && self->first_reduced == 0)
        self->first_reduced = number;
    if (self->coalesced < 0)
        self->coalesced = number;
    return number;
}

/* A wrapped call has returned: `result` is its Work, None for one that has waited, NULL for one that raised. */
static void returned(Records *self, long long number, PyObject *result, long long flags)
{
    long long now = now_ns();
    uint64_t *record;
    if (self->ready != 1 || self->recorder->words == NULL)
        return;
    record = record_at(self, number);
    if (record[R_NUMBER] != (uint64_t)number)
        return;
    put(&record[R_RETURN], now);
    if (result == NULL)
        put(&record[R_KIND], (long long)(record[R_KIND] | RAISED << 16));
    if (result == NULL || result == Py_None) {
        put(&record[R_EXIT], now);
        attribute(self, number, now);
        if (result != NULL && !(record[R_KIND] >> 16 & OTHER_THREAD))
            add_hidden(self, record[R_KIND], 1, 0, 0);
        return;
    }
    for (Py_ssize_t i = 0; i < (PyList_Check(result) ? PyList_Size(result) : 1); i++) {
        const void *work = awaited(PyList_Check(result) ? PyList_GetItem(result, i) : result, flags);
        if (work != NULL)
            put_issued(self, work, number, number);
    }
}

/* Records `first` to `last` of a group have been waited for.
 *
 * Of the time since they were entered that was not waiting, the last one was under way in all if the wait has taken time,
 * since it ended only then; if not, it is unknown when it ended. Of those of its kind before it that is always unknown, and
 * of other kinds nothing is counted: DistributedDataParallel has waited for them before. */
static void leave(Records *self, long long first, long long last, long long flag, int raised)
{
    Clock *clock = self->recorder;
    long long now = now_ns(), waited, span, left = 0, longest = 0, shortest = 0, is_mine = this_thread() == clock->thread;
    uint64_t kind = 0;
    if (self->ready != 1 || clock->words == NULL)
        return;
    waited = waited_ns(clock, now);
    if (first <= last - RING)
        first = last - RING + 1;
    for (long long number = last < self->written ? last : self->written; number >= first; number--) {
        uint64_t *record = record_at(self, number);
        if (record[R_NUMBER] != (uint64_t)number || record[R_EXIT] || !((record[R_KIND] >> 16 & flag) == (uint64_t)flag))
            continue;
        if (raised)
            put(&record[R_KIND], (long long)(record[R_KIND] | RAISED << 16));
        put(&record[R_EXIT], now);
        kind = kind ? kind : record[R_KIND] & OPERATION_OF;
        if (raised || !is_mine || record[R_KIND] >> 16 & OTHER_THREAD || (record[R_KIND] & OPERATION_OF) != kind)
            continue;
        span = now - (long long)record[R_ENTER] - (waited - (long long)record[R_WAITED]);
        span = span > 0 ? span : 0;
        shortest = left++ ? shortest : span;
        longest = span > longest ? span : longest;
    }
    waited = attribute(self, last, now);
    if (left)
        add_hidden(self, kind, left, waited >= WAITED_NS ? shortest : 0, longest);
}

/* ------------------------------------------------------------------------------------------- Records */

static int Records_init(Records *self, PyObject *args, PyObject *kwargs)
{
    PyObject *recorder, *slots, *dtypes;
    if (!PyArg_ParseTuple(args, "O!O!O!", goodput_clock_type, &recorder, &PyDict_Type, &slots, &PyDict_Type, &dtypes))
        return -1;
    set_reference((PyObject **)&self->recorder, Py_NewRef(recorder));
    set_reference(&self->slots, Py_NewRef(slots));
    set_reference(&self->dtypes, Py_NewRef(dtypes));
    return 0;
}

/* The page was exchanged. */
static PyObject *Records_page_changed(Records *self, PyObject *unused)
{
    self->ready = self->written = self->last = self->attributed = self->first_reduced = 0;
    self->hidden_count = 0;
    memset(self->hidden, 0, sizeof self->hidden);
    memset(self->issued, 0, sizeof self->issued);
    Py_RETURN_NONE;
}

/* A process group is gone. */
static PyObject *Records_forget(Records *self, PyObject *unused)
{
    memset(self->known, 0, sizeof self->known);
    Py_RETURN_NONE;
}

/* The communication so far that no record explains belongs to the last one of the step thread. */
static PyObject *Records_settle(Records *self, PyObject *unused)
{
    if (self->ready == 1 && self->recorder->words != NULL)
        attribute(self, self->last, now_ns());
    Py_RETURN_NONE;
}

/* A backward pass has ended, and with it the wait for what its reducers issued. */
static PyObject *Records_leave_reduced(Records *self, PyObject *unused)
{
    if (self->first_reduced)
        leave(self, self->first_reduced, self->written, REDUCER, 0);
    self->first_reduced = 0;
    Py_RETURN_NONE;
}

/* Waiting for this object waits for the records from the given one on. */
static PyObject *Records_issued_by(Records *self, PyObject *const *args, Py_ssize_t count)
{
    long long first = count == 2 ? PyLong_AsLongLong(args[1]) : 0;
    if (PyErr_Occurred())
        return NULL;
    if (first > 0 && args[0] != Py_None)
        put_issued(self, args[0], first, self->written);
    Py_RETURN_NONE;
}

/* Waiting for this future waits for a Work. */
static PyObject *Records_awaits(Records *self, PyObject *future)
{
    return PyBool_FromLong(find_issued(self, awaited(future, FUTURE)) != NULL);
}

/* The second object is a future of the first one, a Work or with the flag a future: it waits for the same records, if any. */
static PyObject *Records_passed_on(Records *self, PyObject *const *args, Py_ssize_t count)
{
    long long flags = count == 3 ? PyLong_AsLongLong(args[2]) : 0;
    Issued *issued;
    if (PyErr_Occurred())
        return NULL;
    if (count != 3)
        Py_RETURN_NONE;
    issued = find_issued(self, awaited(args[0], flags));
    if (issued != NULL) {
        Issued found = *issued;
        put_issued(self, awaited(args[1], FUTURE), found.first, found.last);
        mark_future(self, found, 1);
    } else if ((issued = find_issued(self, awaited(args[1], FUTURE))) != NULL)
        issued->work = NULL; /* Of a future that is gone. */
    Py_RETURN_NONE;
}

/* A Work, or with the flag a future, was found to be complete, without a wait. */
static PyObject *Records_completed(Records *self, PyObject *const *args, Py_ssize_t count)
{
    long long flags = count == 2 ? PyLong_AsLongLong(args[1]) : 0;
    Issued *issued;
    if (PyErr_Occurred())
        return NULL;
    issued = count == 2 ? find_issued(self, awaited(args[0], flags)) : NULL;
    if (issued != NULL) {
        Issued found = *issued;
        issued->work = NULL;
        leave(self, found.first, found.last, flag_of(found), 0);
    }
    Py_RETURN_NONE;
}

static PyMethodDef Records_methods[] = {
    {"awaits", (PyCFunction)Records_awaits, METH_O, "Whether a future stands for records."},
    {"passed_on", (PyCFunction)(void (*)(void))Records_passed_on, METH_FASTCALL, "A future of a Work or of a future."},
    {"completed", (PyCFunction)(void (*)(void))Records_completed, METH_FASTCALL, "A Work or a future is complete."},
    {"page_changed", (PyCFunction)Records_page_changed, METH_NOARGS, "Begin anew in another page."},
    {"forget", (PyCFunction)Records_forget, METH_NOARGS, "Look process groups up again."},
    {"settle", (PyCFunction)Records_settle, METH_NOARGS, "Attribute all communication so far."},
    {"leave_reduced", (PyCFunction)Records_leave_reduced, METH_NOARGS, "What reducers issued has been waited for."},
    {"issued_by", (PyCFunction)(void (*)(void))Records_issued_by, METH_FASTCALL, "What a Work stands for."},
    {NULL},
};

#define NUMBER(field, doc) {#field, Py_T_LONGLONG, offsetof(Records, field), 0, doc}

static PyMemberDef Records_members[] = {
    {"recorder", Py_T_OBJECT_EX, offsetof(Records, recorder), Py_READONLY, "whose page it is"},
    {"slots", Py_T_OBJECT_EX, offsetof(Records, slots), Py_READONLY, "slots by id and name of a process group"},
    {"dtypes", Py_T_OBJECT_EX, offsetof(Records, dtypes), Py_READONLY, "codes by dtype"},
    NUMBER(ready, "1 if the page has room for records, -1 if not, 0 if that is unknown"),
    NUMBER(written, "records in this page"),
    NUMBER(last, "the last record of the step thread"),
    NUMBER(attributed, "ns of communication that are attributed"),
    NUMBER(reducing, "whether a reducer calls"),
    NUMBER(coalesced, "the first record of coalesced calls, -1 before it, 0 outside"),
    {NULL},
};

static int Records_traverse(Records *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->slots);
    Py_VISIT(self->dtypes);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void Records_dealloc(Records *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->recorder);
    Py_XDECREF(self->slots);
    Py_XDECREF(self->dtypes);
    free_instance((PyObject *)self);
}

static PyType_Slot Records_slots[] = {
    {Py_tp_doc, (void *)"The records of one process: see goodput.sdk.recorder.collectives.CollectiveRecords."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Records_init},
    {Py_tp_dealloc, Records_dealloc},
    {Py_tp_traverse, Records_traverse},
    {Py_tp_members, Records_members},
    {Py_tp_methods, Records_methods},
    {0, NULL},
};

static PyType_Spec Records_spec = {
    .name = "goodput.sdk.recorder._fast.Records",
    .basicsize = sizeof(Records),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Records_slots,
};

/* ------------------------------------------------------------------------------------------- Call */

/* Enter the record of a call; 0 if there is none to write. */
static long long begin(Call *self, PyObject *const *args, Py_ssize_t count)
{
    Records *records = self->records;
    long long slot, bytes, dtype = 0, peer = -1;
    if (records->recorder->thread == 0 || self->group >= count)
        return 0;
    slot = slot_of(records, args[self->group]);
    if (slot >= 0)
        (self->operation >= SEND ? records->point_to_point : records->calls)[slot]++;
    if (!is_ready(records))
        return 0;
    if (slot < 0) {
        put(&region(records)[DROPPED], (long long)region(records)[DROPPED] + 1);
        return 0;
    }
    bytes = self->tensors >= 0 && self->tensors < count ? measure(records, args[self->tensors], &dtype) : 0;
    if (self->operation == REDUCE_SCATTER && self->flags & FUNCTIONAL && PyLong_Check(args[self->group - 1])) {
        long long size = PyLong_AsLongLong(args[self->group - 1]); /* It has the input, which is all ranks' parts. */
        bytes = size > 0 ? bytes / size : bytes;
    }
    if (self->peer >= 0 && self->peer < count) {
        if (PyLong_Check(args[self->peer]))
            peer = PyLong_AsLongLong(args[self->peer]);
        else
            peer = number_of(args[self->peer], root_name);
        if (PyErr_Occurred())
            goodput_drop_error();
    }
    if (!is_ready(records)) /* Attributes of a tensor may have run code that ended it. */
        return 0;
    return enter(records, self, slot, bytes, dtype, peer < -1 || peer >= 1LL << 32 ? -1 : peer);
}

/* Pass a call on, with the exception that it may raise kept over our own code. */
static PyObject *recorded(Call *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Records *records = self->records;
    PyObject *result, *raised;
    long long number, me, before = records->functional;
    me = self->flags & FUNCTIONAL ? this_thread() : 0;
    if (me != 0 && before == me)
        return PyObject_Vectorcall(self->function, args, flags, names); /* Dispatched again by a mode. */
    number = begin(self, args, PyVectorcall_NARGS(flags));
    if (number == 0)
        return PyObject_Vectorcall(self->function, args, flags, names);
    if (me != 0)
        records->functional = me;
    result = PyObject_Vectorcall(self->function, args, flags, names);
    if (me != 0)
        records->functional = 0;
    raised = goodput_take_error();
    returned(records, number, result, self->flags);
    goodput_restore_error(raised);
    return result;
}

/* Wait for a Work or for the tensor of a functional collective. */
static PyObject *waited(Call *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Records *records = self->records;
    PyObject *result, *raised;
    Issued found = {NULL, 0, 0};
    if (PyVectorcall_NARGS(flags) > 0) {
        Issued *issued = find_issued(records, awaited(args[0], self->flags));
        if (issued != NULL) {
            found = *issued;
            issued->work = NULL;
            mark_future(records, found, 0);
        }
    }
    result = PyObject_Vectorcall(self->function, args, flags, names);
    if (found.work != NULL) {
        raised = goodput_take_error();
        leave(records, found.first, found.last, flag_of(found), result == NULL);
        goodput_restore_error(raised);
    }
    return result;
}

/* Whether the first argument, or the first of a list, is of one of the exact types. */
static int is_exact(Call *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *first = count > 0 ? args[0] : NULL;
    if (first != NULL && PyList_Check(first))
        first = PyList_Size(first) ? PyList_GetItem(first, 0) : NULL;
    for (Py_ssize_t i = 0; first != NULL && i < PyTuple_Size(self->exact); i++)
        if (PyTuple_GetItem(self->exact, i) == (PyObject *)Py_TYPE(first))
            return 1;
    return 0;
}

static PyObject *Call_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Call *self = (Call *)callable;
    if (self->exact != NULL && !is_exact(self, args, PyVectorcall_NARGS(flags)))
        return PyObject_Vectorcall(self->python, args, flags, names);
    return self->operation == 0 ? waited(self, args, flags, names) : recorded(self, args, flags, names);
}

static int Call_init(Call *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", "function", "operation", "tensors", "group", "peer", "flags", "exact", "python", NULL};
    PyObject *records, *function, *exact = NULL, *python = NULL;
    self->tensors = self->group = self->peer = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OL|LLLLO!O", names, records_type, &records, &function,
                                     &self->operation, &self->tensors, &self->group, &self->peer, &self->flags,
                                     &PyTuple_Type, &exact, &python))
        return -1;
    if (self->operation < 0 || self->operation >= OPERATION_SLOTS || (self->operation > 0 && self->group < 0)) {
        PyErr_SetString(PyExc_ValueError, "no operation of a process group");
        return -1;
    }
    set_reference((PyObject **)&self->records, Py_NewRef(records));
    set_reference(&self->function, Py_NewRef(function));
    set_reference(&self->exact, Py_XNewRef(exact));
    set_reference(&self->python, Py_NewRef(python == NULL ? function : python));
    self->vectorcall = Call_call;
    return 0;
}

/* No tp_clear: a call uses them without a check, and patches are held by modules. */
static int Call_traverse(Call *self, visitproc visit, void *arg)
{
    Py_VISIT(self->records);
    Py_VISIT(self->function);
    Py_VISIT(self->python);
    Py_VISIT(self->exact);
    Py_VISIT(self->dict);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void Call_dealloc(Call *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF((PyObject *)self->records);
    Py_XDECREF(self->function);
    Py_XDECREF(self->python);
    Py_XDECREF(self->exact);
    Py_XDECREF(self->dict);
    free_instance((PyObject *)self);
}

static PyObject *Call_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    if (instance == NULL || instance == Py_None)
        return Py_NewRef(self);
    return goodput_bind(self, instance);
}

static PyMemberDef Call_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Call, vectorcall), Py_READONLY, NULL},
    {"__dictoffset__", Py_T_PYSSIZET, offsetof(Call, dict), Py_READONLY, NULL},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Call, weakrefs), Py_READONLY, NULL},
    {NULL},
};

static PyGetSetDef Call_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyType_Slot Call_slots[] = {
    {Py_tp_doc, (void *)"A function that calls another one and records it, or for operation 0 the end of the wait."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Call_init},
    {Py_tp_dealloc, Call_dealloc},
    {Py_tp_traverse, Call_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, Call_get},
    {Py_tp_members, Call_members},
    {Py_tp_getset, Call_getset},
    {0, NULL},
};

static PyType_Spec Call_spec = {
    .name = "goodput.sdk.recorder._fast.Call",
    .basicsize = sizeof(Call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = Call_slots,
};

PyObject *goodput_set_collective_constants(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"base", "words", "groups", "sums", "ring", "totals", "communication", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$LLLLLLL", names, &word_base, &word_count, &word_groups, &word_sums,
                                     &word_ring, &word_totals, &word_communication))
        return NULL;
    Py_RETURN_NONE;
}

int goodput_init_collectives(PyObject *module)
{
    nbytes_name = PyUnicode_InternFromString("nbytes");
    dtype_name = PyUnicode_InternFromString("dtype");
    root_name = PyUnicode_InternFromString("rootRank");
    address_name = PyUnicode_InternFromString("data_ptr");
    if (nbytes_name == NULL || dtype_name == NULL || root_name == NULL || address_name == NULL ||
        (records_type = goodput_add_type(module, &Records_spec)) == NULL)
        return -1;
    return goodput_add_type(module, &Call_spec) == NULL ? -1 : 0;
}
