/* The reports of ranks that are known, from the bytes of a push to columns, in one pass.
 *
 * A push is accepted here only where each of its ranks has the identity and phases, byte for byte, of one that the schema has
 * decoded and checked before, and where everything else in it is of the usual kind and within its bounds. Any other push,
 * valid or not, is left to the schema, which decodes it and names what is wrong. */
#include "_steps.h"

enum { MAP, ARRAY, TEXT, BINARY };
enum { RANKS_MAX = 4096, NAME_CHARS_MAX = 32, DROPS_MAX = 32, LOADER_MAX = 64, HARDWARE_MAX = 32 };

typedef struct {
    const uint8_t *at, *end;
} Cursor;

typedef struct {
    const uint8_t *at;
    size_t size;
} Bytes;

/* ---- MessagePack. Each function returns 0 where something else follows, or the input ends. */

static uint64_t big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* An integer that fits 64 bits with a sign. */
static int read_integer(Cursor *from, int64_t *value)
{
    static const uint8_t sizes[] = {1, 2, 4, 8, 1, 2, 4, 8}; /* cc to d3 */
    if (from->at >= from->end)
        return 0;
    uint8_t tag = *from->at++;
    if (tag < 0x80 || tag >= 0xe0) {
        *value = (int8_t)tag;
        return 1;
    }
    if (tag < 0xcc || tag > 0xd3 || from->end - from->at < sizes[tag - 0xcc])
        return 0;
    int bytes = sizes[tag - 0xcc];
    uint64_t found = big_endian(from->at, bytes);
    from->at += bytes;
    if (tag >= 0xd0 && bytes < 8 && found >> (8 * bytes - 1))
        found -= UINT64_C(1) << 8 * bytes;
    *value = (int64_t)found;
    return tag != 0xcf || found <= INT64_MAX;
}

/* The size of a map, an array, a text or bytes that follows. */
static int read_size(Cursor *from, int kind, size_t *size)
{
    static const struct {
        uint8_t few, few_last, first, last; /* The tags of few; the tags with a size of 1, 2 or 4 bytes. */
        int least;                          /* Bytes of the size at `first`. */
    } tags[] = {{0x80, 0x8f, 0xde, 0xdf, 2}, {0x90, 0x9f, 0xdc, 0xdd, 2}, {0xa0, 0xbf, 0xd9, 0xdb, 1}, {1, 0, 0xc4, 0xc6, 1}};
    if (from->at >= from->end)
        return 0;
    uint8_t tag = *from->at++;
    if (tag >= tags[kind].few && tag <= tags[kind].few_last) {
        *size = (size_t)(tag - tags[kind].few);
    } else {
        if (tag < tags[kind].first || tag > tags[kind].last)
            return 0;
        int bytes = tags[kind].least << (tag - tags[kind].first);
        if (from->end - from->at < bytes)
            return 0;
        *size = big_endian(from->at, bytes);
        from->at += bytes;
    }
    return *size <= (size_t)(from->end - from->at);
}

static int read_bytes_of(Cursor *from, int kind, Bytes *found)
{
    if (!read_size(from, kind, &found->size))
        return 0;
    found->at = from->at;
    from->at += found->size;
    return 1;
}

static int is_text(Bytes text, const char *name)
{
    return text.size == strlen(name) && memcmp(text.at, name, text.size) == 0;
}

/* Skip a value, whatever it is, and return its bytes. */
static int read_any(Cursor *from, Bytes *found)
{
    size_t left = 1, size;
    Bytes ignored;
    found->at = from->at;
    for (; left; left--) {
        if (from->at >= from->end)
            return 0;
        uint8_t tag = *from->at;
        int64_t number;
        if (tag < 0x80 || tag >= 0xe0 || (tag >= 0xcc && tag <= 0xcf) || (tag >= 0xd0 && tag <= 0xd3)) {
            uint8_t wide = tag == 0xcf; /* May be more than read_integer takes. */
            if (wide ? from->end - from->at < 9 : !read_integer(from, &number))
                return 0;
            from->at += wide ? 9 : 0;
        } else if (tag == 0xc0 || tag == 0xc2 || tag == 0xc3) { /* nil, false, true */
            from->at++;
        } else if (tag == 0xca || tag == 0xcb) {
            Py_ssize_t bytes = tag == 0xca ? 5 : 9;
            if (from->end - from->at < bytes)
                return 0;
            from->at += bytes;
        } else if ((tag & 0xe0) == 0xa0 || (tag >= 0xd9 && tag <= 0xdb)) {
            if (!read_bytes_of(from, TEXT, &ignored))
                return 0;
        } else if (tag >= 0xc4 && tag <= 0xc6) {
            if (!read_bytes_of(from, BINARY, &ignored))
                return 0;
        } else if ((tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf) {
            if (!read_size(from, MAP, &size))
                return 0;
            left += 2 * size;
        } else if ((tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd) {
            if (!read_size(from, ARRAY, &size))
                return 0;
            left += size;
        } else {
            return 0; /* An extension. */
        }
        if (left > (size_t)(from->end - from->at) + 1)
            return 0;
    }
    found->size = (size_t)(from->at - found->at);
    return 1;
}

/* The place of the next key of a map among `names`; -1 if it is none of them or was there before. `next` is the place where
 * it is if keys are in order. */
static int read_key(Cursor *from, const char *const *names, int count, uint32_t *seen, int next)
{
    Bytes key;
    if (!read_bytes_of(from, TEXT, &key))
        return -1;
    for (int tried = 0; tried < count; tried++) {
        int i = (next + tried) % count;
        if (is_text(key, names[i])) {
            if (*seen >> i & 1)
                return -1;
            *seen |= UINT32_C(1) << i;
            return i;
        }
    }
    return -1;
}

/* A time or a count, see schema._are_times. */
static int read_time(Cursor *from, int64_t *value)
{
    return read_integer(from, value) && *value >= 0 && (uint64_t)*value <= VALUE_MAX;
}

/* ---- The live part */

enum { NOW, LAST, PHASE, STEP_NEXT, STEPS_DONE, RANK_SAMPLES, ALIVE, ENDED, END_NS, PHASE_TOTALS, COST, DROPS, UNMEASURED,
       LOADER, HARDWARE, LIVE_FIELDS };
static const char *const live_names[] = {"now_ns", "last_ns", "phase", "step_next", "steps_done", "samples", "alive", "ended",
                                         "end_ns", "totals", "cost_ns", "drops", "unmeasured", "loader", "hardware"};
enum { LIVE_REQUIRED = (1 << COST) - 1 };

/* Names with times, at most `most`; names of printable ASCII. NULL without an exception for anything else. */
static PyObject *read_figures(Cursor *from, size_t most)
{
    size_t count;
    if (!read_size(from, MAP, &count) || count > most)
        return NULL;
    PyObject *found = PyDict_New();
    for (size_t i = 0; found != NULL && i < count; i++) {
        Bytes name;
        int64_t value;
        int is_right = read_bytes_of(from, TEXT, &name) && name.size <= NAME_CHARS_MAX && read_time(from, &value);
        for (size_t j = 0; is_right && j < name.size; j++)
            is_right = name.at[j] >= 0x20 && name.at[j] < 0x7f;
        if (!is_right) {
            Py_CLEAR(found);
            break;
        }
        PyObject *key = PyUnicode_FromStringAndSize((const char *)name.at, (Py_ssize_t)name.size);
        PyObject *number = PyLong_FromLongLong(value);
        if (key != NULL)
            PyUnicode_InternInPlace(&key);
        if (key == NULL || number == NULL || PyDict_SetItem(found, key, number) < 0)
            Py_CLEAR(found);
        Py_XDECREF(key);
        Py_XDECREF(number);
    }
    if (found != NULL && (size_t)PyDict_Size(found) != count)
        Py_CLEAR(found);
    return found;
}

/* The one of these texts that follows; NULL without an exception for any other. */
static PyObject *read_one_of(Cursor *from, PyObject *texts)
{
    Bytes text;
    if (!read_bytes_of(from, TEXT, &text))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(texts); i++) {
        Py_ssize_t size;
        const char *own = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(texts, i), &size);
        if (own == NULL)
            return NULL;
        if ((size_t)size == text.size && memcmp(own, text.at, text.size) == 0)
            return Py_NewRef(PyTuple_GetItem(texts, i));
    }
    return NULL;
}

static PyObject *read_totals(Cursor *from, Py_ssize_t width)
{
    size_t count;
    int64_t value;
    if (!read_size(from, ARRAY, &count) || count != (size_t)width)
        return NULL;
    PyObject *found = PyTuple_New(width);
    for (Py_ssize_t i = 0; found != NULL && i < width; i++) {
        PyObject *number = read_time(from, &value) ? PyLong_FromLongLong(value) : NULL;
        if (number == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SetItem(found, i, number);
    }
    return found;
}

static PyObject *read_live_field(Cursor *from, int field, PyObject *phases, PyObject *ends)
{
    int64_t value;
    switch (field) {
    case PHASE:
        return read_one_of(from, phases);
    case ENDED:
        return read_one_of(from, ends);
    case ALIVE:
        if (from->at >= from->end || (*from->at != 0xc2 && *from->at != 0xc3))
            return NULL;
        return PyBool_FromLong(*from->at++ == 0xc3);
    case PHASE_TOTALS:
        return read_totals(from, PyTuple_Size(phases));
    case DROPS:
        return read_figures(from, DROPS_MAX);
    case LOADER:
        return read_figures(from, LOADER_MAX);
    case HARDWARE:
        return read_figures(from, HARDWARE_MAX);
    case STEP_NEXT: /* -1 before the first step */
        if (!read_integer(from, &value) || value < -1 || value >= (int64_t)VALUE_MAX)
            return NULL;
        return PyLong_FromLongLong(value);
    default:
        return read_time(from, &value) ? PyLong_FromLongLong(value) : NULL;
    }
}

/* A schema.Live; NULL without an exception where it has other fields, or one is out of its bounds. */
static PyObject *read_live(Bytes bytes, PyObject *type, PyObject *phases, PyObject *ends)
{
    Cursor from = {bytes.at, bytes.at + bytes.size};
    PyObject *fields[LIVE_FIELDS] = {NULL}, *found = NULL;
    uint32_t seen = 0;
    size_t count;
    int is_right = read_size(&from, MAP, &count);
    for (int field = -1; is_right && count; count--) {
        field = read_key(&from, live_names, LIVE_FIELDS, &seen, field + 1);
        is_right = field >= 0 && (fields[field] = read_live_field(&from, field, phases, ends)) != NULL;
    }
    if (is_right && (seen & LIVE_REQUIRED) == LIVE_REQUIRED) {
        for (int field = COST; field < LIVE_FIELDS; field++)
            if (fields[field] == NULL)
                fields[field] = field == COST || field == UNMEASURED ? PyLong_FromLong(0) : PyDict_New();
        for (int field = COST; field < LIVE_FIELDS; field++)
            is_right = is_right && fields[field] != NULL;
        found = is_right ? PyObject_Vectorcall(type, fields, LIVE_FIELDS, NULL) : NULL;
    }
    for (int field = 0; field < LIVE_FIELDS; field++)
        Py_XDECREF(fields[field]);
    return found;
}

/* ---- Steps */

static int read_numbers(Cursor *from, int64_t *into, Py_ssize_t used)
{
    size_t count;
    if (!read_size(from, ARRAY, &count) || count != (size_t)used)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!read_integer(from, &into[i]))
            return 0;
    return 1;
}

/* A step block that can be decoded into `columns`, with `rows_max` rows at most. */
static int read_block(Bytes bytes, Py_ssize_t columns, int64_t rows_max, Block *block)
{
    Cursor from = {bytes.at, bytes.at + bytes.size};
    Bytes used, widths, cells;
    size_t fields;
    int64_t count;
    if (!read_size(&from, ARRAY, &fields) || fields != 6 || !read_integer(&from, &count) || count < 1 || count > rows_max ||
        !read_bytes_of(&from, BINARY, &used) || used.size > COLUMNS_MAX ||
        !read_numbers(&from, block->numbers, (Py_ssize_t)used.size) ||
        !read_numbers(&from, block->numbers + used.size, (Py_ssize_t)used.size) ||
        !read_bytes_of(&from, BINARY, &widths) || !read_bytes_of(&from, BINARY, &cells) || from.at != from.end)
        return 0;
    block->columns = used.at;
    block->widths = widths.at;
    block->cells = cells.at;
    block->count = count;
    block->used = (Py_ssize_t)used.size;
    block->cell_bytes = (Py_ssize_t)cells.size;
    return block_fits(block, columns, (Py_ssize_t)widths.size) && block_is_accepted(block, rows_max);
}

int block_of_bytes(const char *at, Py_ssize_t size, Py_ssize_t columns, Block *block)
{
    return read_block((Bytes){(const uint8_t *)at, (size_t)size}, columns, COUNT_MAX, block);
}

/* What is read of a rank's steps; without rows the objects are NULL. */
typedef struct {
    Py_ssize_t rows;
    Heads heads;
    PyObject *values, *last, *block; /* All columns, those of the last row, and the step block in MessagePack. */
} Steps;

/* The last row of `rows`. */
static PyObject *last_row(PyObject *values, Py_ssize_t columns, Py_ssize_t rows)
{
    PyObject *found = PyBytes_FromStringAndSize(NULL, columns * CELL_BYTES_MAX);
    const char *from = PyBytes_AsString(values) + (rows - 1) * CELL_BYTES_MAX;
    char *to = found == NULL ? NULL : PyBytes_AsString(found);
    for (Py_ssize_t column = 0; found != NULL && column < columns; column++)
        memcpy(to + column * CELL_BYTES_MAX, from + column * rows * CELL_BYTES_MAX, CELL_BYTES_MAX);
    return found;
}

/* 0 where they are not one block of rows that are right, or none, perhaps with an exception. */
static int read_steps(Bytes bytes, Py_ssize_t width, int64_t rows_max, Steps *steps)
{
    Cursor from = {bytes.at, bytes.at + bytes.size};
    int64_t numbers[2 * COLUMNS_MAX];
    uint64_t few[SUMS_ON_STACK], *sums = few;
    Block block = {.numbers = numbers};
    Bytes own;
    size_t blocks = 0;
    Py_ssize_t columns = TOTALS + 2 * width;
    if (bytes.size && !read_size(&from, ARRAY, &blocks))
        return 0;
    if (blocks == 0)
        return 1;
    if (blocks > 1 || !read_any(&from, &own) || !read_block(own, columns, rows_max, &block))
        return 0;
    if (block.count > SUMS_ON_STACK && (sums = PyMem_Malloc(sizeof(uint64_t) * (size_t)block.count)) == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    steps->rows = block.count;
    steps->values = PyBytes_FromStringAndSize(NULL, CELL_BYTES_MAX * columns * block.count);
    if (steps->values != NULL)
        block_decode(&block, (uint64_t *)PyBytes_AsString(steps->values), columns, block.count, 0, sums, &steps->heads);
    if (sums != few)
        PyMem_Free(sums);
    if (steps->values == NULL || steps->heads.wrong)
        return 0;
    steps->last = last_row(steps->values, columns, block.count);
    steps->block = PyBytes_FromStringAndSize((const char *)own.at, (Py_ssize_t)own.size);
    return steps->last != NULL && steps->block != NULL;
}

/* ---- Ranks */

/* What a pass over one rank needs. */
typedef struct {
    PyObject *known, *live_type, *ends;
    int64_t rows_left;
    Py_ssize_t unknown, bytes; /* How many ranks are not known; the bytes of all columns. */
} Pass;

enum { IDENTITY, SEQUENCE, PHASES, LIVE, STATES, STEPS, EVENTS, BLOCKS, RANK_FIELDS };
static const char *const rank_names[] = {"identity", "sequence", "phases",  "live",
                                         "phase_states", "steps", "events", "blocks"};
/* Of an entry of `known`: the bytes of the phases and of their states, and the names of the phases. */
enum { ENTRY_PHASES, ENTRY_STATES, ENTRY_NAMES, ENTRY_FIELDS = 6 };
enum { RANK_REQUIRED = 1 << IDENTITY | 1 << SEQUENCE | 1 << PHASES | 1 << LIVE };

static PyObject *new_bytes(Bytes bytes)
{
    return PyBytes_FromStringAndSize((const char *)bytes.at, (Py_ssize_t)bytes.size);
}

static int is_same(PyObject *own, Bytes bytes)
{
    return PyBytes_Check(own) && (size_t)PyBytes_Size(own) == bytes.size &&
           memcmp(PyBytes_AsString(own), bytes.at, bytes.size) == 0;
}

/* The entry of a rank in `known`, a new reference, or the bytes that it would have there; NULL with an exception. */
static PyObject *find_known(PyObject *known, const Bytes *parts, int *is_known)
{
    PyObject *key = new_bytes(parts[IDENTITY]);
    PyObject *entry = key == NULL ? NULL : PyDict_GetItemWithError(known, key);
    *is_known = entry != NULL && PyTuple_Check(entry) && PyTuple_Size(entry) == ENTRY_FIELDS &&
                is_same(PyTuple_GetItem(entry, ENTRY_PHASES), parts[PHASES]) &&
                is_same(PyTuple_GetItem(entry, ENTRY_STATES), parts[STATES]) &&
                PyTuple_Check(PyTuple_GetItem(entry, ENTRY_NAMES));
    if (*is_known || PyErr_Occurred()) {
        Py_XDECREF(key);
        return PyErr_Occurred() ? NULL : Py_NewRef(entry);
    }
    return Py_BuildValue("(Ny#y#)", key, (const char *)parts[PHASES].at, (Py_ssize_t)parts[PHASES].size,
                         (const char *)parts[STATES].at, (Py_ssize_t)parts[STATES].size);
}

/* A tuple of `count` objects, which are given up; NULL where one of them is. */
static PyObject *pack_objects(PyObject **objects, Py_ssize_t count)
{
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (objects[i] == NULL)
            Py_CLEAR(found);
        if (found != NULL)
            PyTuple_SetItem(found, i, objects[i]);
        else
            Py_XDECREF(objects[i]);
    }
    return found;
}

/* A known rank as in known_ranks.Rank, an unknown one as (bytes of its identity, phases and states,); NULL without an
 * exception where it is not plain. */
static PyObject *read_rank(Cursor *from, Pass *pass)
{
    Bytes parts[RANK_FIELDS] = {{from->at, 0}};
    uint32_t seen = 0;
    size_t count;
    int64_t sequence;
    int is_known;
    for (int field = 0; field < RANK_FIELDS; field++)
        parts[field] = (Bytes){from->at, 0};
    if (!read_size(from, MAP, &count))
        return NULL;
    for (int field = -1; count; count--) {
        field = read_key(from, rank_names, RANK_FIELDS, &seen, field + 1);
        if (field < 0 || !read_any(from, &parts[field]))
            return NULL;
    }
    Cursor number = {parts[SEQUENCE].at, parts[SEQUENCE].at + parts[SEQUENCE].size};
    if ((seen & RANK_REQUIRED) != RANK_REQUIRED || seen & (1 << STEPS | 1 << EVENTS) || !read_time(&number, &sequence))
        return NULL;
    PyObject *entry = find_known(pass->known, parts, &is_known);
    pass->unknown += !is_known;
    if (entry == NULL || !is_known)
        return entry == NULL ? NULL : Py_BuildValue("(N)", entry);
    PyObject *phases = PyTuple_GetItem(entry, ENTRY_NAMES), *live;
    Py_ssize_t width = PyTuple_Size(phases);
    Steps steps = {0};
    if (width < 1 || width > PHASES_MAX) {
        Py_DECREF(entry);
        return NULL;
    }
    live = read_live(parts[LIVE], pass->live_type, phases, pass->ends);
    if (live == NULL && !PyErr_Occurred())
        live = new_bytes(parts[LIVE]);
    if (live == NULL || !read_steps(parts[BLOCKS], width, pass->rows_left, &steps)) {
        PyObject *held[] = {entry, live, steps.values, steps.last, steps.block};
        for (size_t i = 0; i < sizeof held / sizeof *held; i++)
            Py_XDECREF(held[i]);
        return NULL;
    }
    pass->rows_left -= steps.rows;
    pass->bytes += steps.rows ? PyBytes_Size(steps.values) : 0;
    Heads *heads = &steps.heads;
    PyObject *found[] = {
        entry, PyLong_FromLongLong(sequence), live, PyLong_FromSsize_t(steps.rows),
        PyLong_FromUnsignedLongLong(heads->first), PyLong_FromUnsignedLongLong(heads->last),
        PyLong_FromUnsignedLongLong(heads->step), PyLong_FromUnsignedLongLong(heads->start),
        PyLong_FromUnsignedLongLong(heads->end), steps.rows ? steps.values : Py_NewRef(Py_None),
        steps.rows ? steps.last : Py_NewRef(Py_None), steps.rows ? steps.block : Py_NewRef(Py_None),
    };
    return pack_objects(found, sizeof found / sizeof *found);
}

static PyObject *read_ranks(Cursor *from, Pass *pass)
{
    size_t count;
    if (!read_size(from, ARRAY, &count) || count > RANKS_MAX)
        return NULL;
    PyObject *found = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; found != NULL && i < count; i++) {
        PyObject *rank = read_rank(from, pass);
        if (rank == NULL)
            Py_CLEAR(found);
        else
            PyList_SetItem(found, (Py_ssize_t)i, rank);
    }
    return found;
}

/* ---- The push */

enum { NODE, SENT, RANKS, VERSION, STACKS, HEALTH, PREVIOUS_SENT, PREVIOUS_TOOK, AGENT, PUSH_FIELDS };
static const char *const push_names[] = {"node", "sent_ns", "ranks", "version", "stacks",
                                         "health", "previous_sent_ns", "previous_took_ns", "agent"};
enum { PUSH_REQUIRED = 1 << NODE | 1 << SENT | 1 << RANKS | 1 << VERSION, VERSION_OF_BLOCKS = 2 };

/* A field of a push; NULL, perhaps without an exception, where it is not plain. */
static PyObject *read_push_field(Cursor *from, int field, Pass *pass)
{
    Bytes text;
    int64_t value;
    size_t count;
    switch (field) {
    case NODE:
    case AGENT:
        return read_bytes_of(from, TEXT, &text) ? PyUnicode_DecodeUTF8((const char *)text.at, (Py_ssize_t)text.size, NULL) : NULL;
    case RANKS:
        return read_ranks(from, pass);
    case STACKS:
    case HEALTH:
        return read_size(from, ARRAY, &count) && count == 0 ? Py_NewRef(Py_None) : NULL;
    default:
        if (!read_integer(from, &value) || (field == VERSION && value != VERSION_OF_BLOCKS))
            return NULL;
        return PyLong_FromLongLong(value);
    }
}

PyObject *known_ranks(PyObject *self, PyObject *arguments)
{
    Py_buffer body;
    Pass pass;
    long long rows_max;
    if (!PyArg_ParseTuple(arguments, "y*O!OO!L", &body, &PyDict_Type, &pass.known, &pass.live_type, &PyTuple_Type, &pass.ends,
                          &rows_max))
        return NULL;
    pass.rows_left = rows_max;
    pass.unknown = pass.bytes = 0;
    Cursor from = {body.buf, (const uint8_t *)body.buf + body.len};
    PyObject *fields[PUSH_FIELDS] = {NULL}, *found = NULL;
    uint32_t seen = 0;
    size_t count;
    int is_right = read_size(&from, MAP, &count);
    for (int field = -1; is_right && count; count--) {
        field = read_key(&from, push_names, PUSH_FIELDS, &seen, field + 1);
        is_right = field >= 0 && (fields[field] = read_push_field(&from, field, &pass)) != NULL;
    }
    if (is_right && from.at == from.end && (seen & PUSH_REQUIRED) == PUSH_REQUIRED) {
        for (int field = 0; field < PUSH_FIELDS; field++)
            if (fields[field] == NULL)
                fields[field] = Py_NewRef(Py_None);
        found = Py_BuildValue("(OOOOOOnLn)", fields[NODE], fields[SENT], fields[RANKS], fields[PREVIOUS_SENT],
                              fields[PREVIOUS_TOOK], fields[AGENT], pass.unknown, rows_max - pass.rows_left, pass.bytes);
    }
    for (int field = 0; field < PUSH_FIELDS; field++)
        Py_XDECREF(fields[field]);
    PyBuffer_Release(&body);
    if (found != NULL || (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)))
        return found;
    PyErr_Clear(); /* Such as of a name that is no UTF-8. */
    Py_RETURN_NONE;
}
