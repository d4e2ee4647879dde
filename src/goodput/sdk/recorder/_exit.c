/* What is done with the exit status of the process. Python's own exit functions run before the status is passed on:
 * SystemExit is no longer there to be looked at. The GNU C library gives it to functions that on_exit() registers. */
#include "_fast.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN_MAX = 8, EVENT_WORDS_MAX = 64, STEP_AT = 3, TEXT_AT = 4 };

static struct {
    pid_t process; /* The process that asked for it, no fork of it; 0 once it is done. */
    uint64_t *words;
    size_t ended;
    uint64_t finished, failed;
    size_t events, event_at, event_words;  /* the word that counts events, the next event's first, and how many it has */
    uint64_t event[EVENT_WORDS_MAX], next_step;
    int status; /* to which the event's step and text belong */
    int count, inputs[CHILDREN_MAX];
    pid_t children[CHILDREN_MAX];
} at_end;

#ifdef __GLIBC__
/* Write the event; where it is of another status, with the step at the exit and the status as text. Its words come in the
 * order in which a reader can tell a torn one: no seal, the content, the number, the seal, and then the count of events. */
static void write_event(int status)
{
    size_t last = at_end.event_words - 1;
    char *text = (char *)(at_end.event + TEXT_AT);
    volatile uint64_t *words = at_end.words + at_end.event_at;
    if (status != at_end.status) {
        memset(text, 0, (last - TEXT_AT) * sizeof(uint64_t));
        at_end.event[STEP_AT] = at_end.next_step;
    }
    if (!*text)
        snprintf(text, (last - TEXT_AT) * sizeof(uint64_t), "exit status %d", status);
    words[last] = 0;
    for (size_t i = 1; i < last; i++)
        words[i] = at_end.event[i];
    words[0] = at_end.event[0];
    words[last] = at_end.event[last];
    at_end.words[at_end.events] = at_end.event[0];
}

static void process_exits(int status, void *unused)
{
    if (at_end.process != getpid())
        return;
    at_end.process = 0;
    if ((status & 0xff) != 0 && at_end.words[at_end.ended] == at_end.finished) {
        write_event(status & 0xff);
        at_end.words[at_end.ended] = at_end.failed;
    }
    for (int i = 0; i < at_end.count; i++) {
        close(at_end.inputs[i]);
        while (waitpid(at_end.children[i], NULL, 0) < 0 && errno == EINTR)
            ;
    }
}
#endif

/* fail_by_status(fd, bytes, word, finished, failed, events, at, event, status, next_step): if the process exits with
 * another status than 0, write the event (bytes) from word `at` on, with its number in the word `events`, and replace
 * `finished` by `failed` in a word of the file, of which this keeps a mapping of its own. The event's step and text are
 * those of `status`; with another one it has `next_step`, and the status as text. False where that is not possible. */
PyObject *goodput_fail_by_status(PyObject *module, PyObject *args)
{
#ifdef __GLIBC__
    static int is_registered;
    int fd;
    Py_ssize_t bytes, word, events, at, length;
    unsigned long long finished, failed, next_step;
    int expected;
    const char *event;
    void *mapped;
    if (!PyArg_ParseTuple(args, "innKKnny#iK", &fd, &bytes, &word, &finished, &failed, &events, &at, &event, &length,
                          &expected, &next_step))
        return NULL;
    if (length % 8 != 0 || length < 8 * (TEXT_AT + 4) || length > 8 * EVENT_WORDS_MAX || 8 * at + length > bytes)
        Py_RETURN_FALSE;
    mapped = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        Py_RETURN_FALSE;
    if (!is_registered && on_exit(process_exits, NULL) != 0) {
        munmap(mapped, (size_t)bytes);
        Py_RETURN_FALSE;
    }
    is_registered = 1;
    at_end.process = getpid();
    at_end.words = mapped;
    at_end.ended = (size_t)word;
    at_end.finished = finished;
    at_end.failed = failed;
    at_end.events = (size_t)events;
    at_end.event_at = (size_t)at;
    at_end.event_words = (size_t)length / 8;
    memcpy(at_end.event, event, (size_t)length);
    at_end.status = expected;
    at_end.next_step = next_step;
    at_end.count = 0;
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

/* wait_at_exit(pid, fd): after that close `fd`, the input of this child process, and wait for the child. False if this
 * process asked for no status, or for too many children. */
PyObject *goodput_wait_at_exit(PyObject *module, PyObject *args)
{
    int fd, child;
    if (!PyArg_ParseTuple(args, "ii", &child, &fd))
        return NULL;
    if (at_end.process != getpid() || at_end.count == CHILDREN_MAX)
        Py_RETURN_FALSE;
    at_end.inputs[at_end.count] = fd;
    at_end.children[at_end.count++] = child;
    Py_RETURN_TRUE;
}
