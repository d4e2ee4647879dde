"""The rank page: one memory-mapped file per rank process, written by the SDK and read by anyone. Layout and writer.

Every counter is an aligned 64-bit word that only grows, so a reader never sees a total decrease, and a SIGKILL between
any two stores leaves a readable page. A step record carries the *cumulative* totals at its end and is sealed by its
last word: sums stay exact when the ring has overtaken a reader, and a half-written record is recognised. A page is
15 MiB of address space; memory is used only where it was written, about 0.7 MiB plus 8 KiB for each octave of time
that a histogram has seen.

    words = Writer(directory, identity).words; words[W_TOTALS + 3] += 1_500_000    # 1.5 ms of "forward"
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from time import monotonic_ns

from goodput.user_exceptions import reraise_from_handler

MAGIC = int.from_bytes(b"GOODPUT\0", "little")
VERSION = 5

# Index 0 is time in no phase; a user's own phases follow the built-in ones.
PHASES = (
    *("none", "loader", "h2d", "forward", "backward", "optimizer", "communication"),
    *("checkpoint", "restore", "evaluation", "compile", "rollout"),
)
USER_PHASES_MAX = 16
PHASE_SLOTS = len(PHASES) + USER_PHASES_MAX
NAME_BYTES_MAX = 31
# States of the account that a user's phase may stand for.
USER_STATES = (
    "productive",
    "loader",
    "h2d",
    "communication",
    "checkpoint",
    "restore",
    "evaluation",
    "rollout",
    "compile",
    "startup",
    "unattributed",
)

# Word offsets of the header. The magic is written last: until then the file is not a page.
W_MAGIC, W_VERSION, W_SIZE, W_IDENTITY_BYTES = 0, 1, 2, 3
IDENTITY_OFFSET, IDENTITY_BYTES_MAX = 64, 4032
# Declared fields of the identity may change: odd revisions lie in the second place, even ones in the first. The writer
# fills the place not in use, then stores W_REVISION, so a reader has a whole identity if W_REVISION is the same after
# reading. W_REVISION is the revision's number above the identity's length in bytes; 0 is the identity at the start.
IDENTITY_PLACES = ((IDENTITY_OFFSET, IDENTITY_BYTES_MAX), (9216, 3072))
REVISION_SHIFT = 12

# Word offsets of the live state (second 4 KiB).
LIVE = 512
(
    W_LAST,  # monotonic ns of the last phase or step boundary, which is also the last beat
    W_PHASE,  # index of the phase the step thread is in
    W_STEPS,  # steps completed
    W_EVENTS,  # events written
    W_STEP_NEXT,  # index that the running or next step has, plus 2**63 so that -1 fits
    W_STEP_START,  # monotonic ns at which the running step began, 0 between steps
    W_ENDED,  # 0 no, else an index into END_REASONS
    W_END,  # monotonic ns of the end
    W_COST,  # ns that the SDK itself has used, as it measured
    W_USER_PHASES,  # user phases defined
    W_BACKGROUND,  # phases recorded by other threads
    W_SAMPLES,  # samples of completed steps
    W_REVISION,  # of the declared fields
) = range(LIVE, LIVE + 13)
DROPS = ("phase", "step", "event", "background", "error", "claim", "checkpoint")
W_DROPS = LIVE + 32
W_TOTALS = LIVE + 64  # ns per phase, the step thread's, inside and outside steps
W_OUTSIDE = W_TOTALS + 32  # the part of W_TOTALS that lay outside steps, as of the last step's start
W_BACKGROUND_TOTALS = W_OUTSIDE + 32  # ns per phase of all other threads
W_LOADER = LIVE + 160  # 32 words of what the step thread sees of its loader
W_DEVICE = LIVE + 192  # 32 words of the device clock
W_SAMPLING = LIVE + 224  # 16 words, SAMPLING: what the overhead budget has left out, and what makes up a step
# Whether phases are measured now, steps that were counted and timed without them, the budget in parts per million,
# backward passes, steps that mixed precision skipped, compilations.
SAMPLING = (
    *("phases_measured", "unmeasured_steps", "budget_ppm"),
    *("micro_batches", "skipped_steps", "compilations"),
)
END_REASONS = ("", "finished", "failed", "resumed")
STEP_BIAS = 1 << 63

# User phases: NAME_BYTES_MAX + 1 bytes of name, then NAME_BYTES_MAX + 1 bytes of state.
USER_OFFSET = 8192
USER_ENTRY_BYTES = 64

# Events: word 0 number, 1 kind, 2 monotonic ns, 3 step + STEP_BIAS, then text, and the seal. A writer breaks the seal, stores the content, then the number, then the seal; a reader copies upwards. So a copy whose number
# and seal agree is whole, however the two interleave.
# `restored` is a load of a checkpoint whose step is unknown. It and `checkpoint_committed` may have the fingerprint of
# the file as text. `failed` has the exception that ended the process, in the step that was running or next.
EVENT_KINDS = ("", "checkpoint_begun", "checkpoint_committed", "resumed", "mark", "restored", "failed")
W_EVENT_RING = 1536
EVENT_RING, EVENT_WORDS = 128, 32
E_TEXT, E_SEAL = 4, EVENT_WORDS - 1
EVENT_TEXT_BYTES = 8 * (E_SEAL - E_TEXT)

# Steps: word 0 number (from 1), 1 step + STEP_BIAS, 2 start ns, 3 end ns, 4 samples so far, then the
# cumulative totals and the cumulative outside part at the step's end, and the seal.
W_STEP_RING = W_EVENT_RING + EVENT_RING * EVENT_WORDS
STEP_RING, STEP_WORDS = 1024, 64
R_NUMBER, R_STEP, R_START, R_END, R_SAMPLES, R_TOTALS = 0, 1, 2, 3, 4, 5
R_OUTSIDE = R_TOTALS + PHASE_SLOTS
R_SEAL = STEP_WORDS - 1

# Steps on the device clock, sealed like steps: word 0 number, 1 device ns so far, then the cumulative totals with
# each step split by the device's clock. They come some steps after the step's own record.
W_DEVICE_RING = W_STEP_RING + STEP_RING * STEP_WORDS
DEVICE_RING, DEVICE_WORDS = 256, 32
D_NUMBER, D_DEVICE_NS, D_TOTALS, D_SEAL = 0, 1, 2, DEVICE_WORDS - 1
# The clock's live words: indices into DEVICE_STATES and DEVICE_WHYS, the last step before the ring's first one (up to
# it both clocks agree), the newest in the ring, steps split by it, ns it has cost.
W_DEVICE_STATE, W_DEVICE_WHY, W_DEVICE_BASE, W_DEVICE_DONE = range(W_DEVICE, W_DEVICE + 4)
W_DEVICE_STEPS, W_DEVICE_COST = W_DEVICE + 4, W_DEVICE + 5
DEVICE_STATES = ("", "host", "active", "gave up")
DEVICE_WHYS = ("", "no device", "unused", "error")
DEVICE_WAIT_STEPS = 64  # a step that is so many behind the newest has the host's split

# The loader's workers: one slot for each, written by the worker process, but for what the trainer waited for it.
W_WORKERS = W_DEVICE_RING + DEVICE_RING * DEVICE_WORDS
WORKERS_MAX, WORKER_WORDS = 64, 16

# Histograms of u64 counts: slot 0 is step length, the others one per phase, then the background ones.
# fp16 has 31 octaves of 1024 bins; the 32nd block begins with the overflow bin.
HISTOGRAM_WORDS = 32 * 1024
HISTOGRAMS = 2 * PHASE_SLOTS
W_HISTOGRAMS = -(-(W_WORKERS + WORKERS_MAX * WORKER_WORDS) // 1024) * 1024

# Collectives: the format is in collective_records.py. Memory is allocated when the first process group is seen.
W_COLLECTIVES = W_HISTOGRAMS + HISTOGRAMS * HISTOGRAM_WORDS
COLLECTIVES_WORDS = 25 * 1024
FILE_BYTES = 8 * (W_COLLECTIVES + COLLECTIVES_WORDS)

SUFFIX = ".page"
ALIAS = "~"  # before the user's number, in the name of a page whose own name another user's file has
PLUGIN_SUFFIX = ".nccl"  # of the file that NCCL's profiler plugin writes, laid out as a page (nccl/)
SYSTEM_DIRECTORY = "/run/goodput"
SHARED_DIRECTORY = "/dev/shm/goodput"
ATTEMPT_MAX = 1 << 20
# Of a file of a process in procfs, of which what is read is in the first lines.
PROCESS_BYTES_MAX = 1 << 14
NS_MAX = 1 << 62


class PageError(Exception):
    """A page that cannot be used; `reason` is one word for a counter, the text says what and where."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


def default_directory(environ=os.environ) -> str:
    """`$GOODPUT_DIR`, else /run/goodput where root has made it, else /dev/shm/goodput, else the temp directory's.

    Only root can make a directory in /run; in the others any user may have been the first.
    """
    if environ.get("GOODPUT_DIR"):
        return environ["GOODPUT_DIR"]
    if os.access(SYSTEM_DIRECTORY, os.W_OK | os.X_OK):
        return SYSTEM_DIRECTORY
    if os.access(os.path.dirname(SHARED_DIRECTORY), os.W_OK):
        return SHARED_DIRECTORY
    return _temporary_directory(environ)


def existing_directories(environ=os.environ) -> list[str]:
    """The folders in which this machine's pages may lie, the default first: processes that began before root made
    /run/goodput, or may not write there, use another one. Only the default where $GOODPUT_DIR says so or none exists.
    """
    default = default_directory(environ)
    others = () if environ.get("GOODPUT_DIR") else default_directories(environ)
    found = [one for one in others if one != default and os.access(one, os.R_OK | os.X_OK)]
    return [*([default] if os.path.isdir(default) or not found else []), *found]


def default_directories(environ=os.environ) -> list[str]:
    """The folders in which pages may lie without $GOODPUT_DIR."""
    return list(dict.fromkeys((SYSTEM_DIRECTORY, SHARED_DIRECTORY, _temporary_directory(environ))))


def _temporary_directory(environ) -> str:
    return os.path.join(environ.get("TMPDIR") or "/tmp", "goodput")


def file_name(run: str, rank: int, attempt: int) -> str:
    """A page's file name. Distinct runs give distinct names, whatever bytes the run's name has."""
    return f"{file_prefix(run)}{rank}.{attempt}{SUFFIX}"


def file_prefix(run: str) -> str:
    """What the names of a run's pages begin with, and no other's."""
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "_-" else f"%{ord(c):x}," for c in run)
    if len(safe) > 160:
        from hashlib import blake2b  # Here, since such names are rare and the import is not cheap.

        safe = f"{safe[:120]}~{blake2b(safe.encode(), digest_size=16).hexdigest()}"
    return f"{safe}."


# ---------------------------------------------------------------------------------------------- writing


class Claimed(PageError):
    """Another live process already owns the page of this run, rank and attempt."""

    def __init__(self, path: str):
        super().__init__("claim", f"{path}: a live process already writes this rank's page")
        self.path = path


class Writer:
    """The owner's side: `words` is the page as a memoryview of u64.

    The file appears under its name only when complete. The owner holds a POSIX lock on it, which the kernel releases
    when the process dies, however it dies, and which a reader in another container can test. Without a directory the
    page is in memory, readable by its own process only (through `fd`).
    """

    def __init__(self, directory: str | None, identity: dict):
        if directory is None:
            self.path, self.fd = None, os.memfd_create("goodput")
            os.ftruncate(self.fd, FILE_BYTES)
            self._map(identity)
            return
        name = file_name(identity["run"], identity["rank"], identity["attempt"])
        self.path = os.path.join(directory, name)
        # Pids come back, in containers at every start, and what a killed process left may still lie there.
        draft = os.path.join(directory, f".{os.getpid()}.{monotonic_ns():x}.{name}")
        self.fd = -1
        try:
            self.fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            os.ftruncate(self.fd, FILE_BYTES)
            if not reserve(self.fd, 0, 8 * W_HISTOGRAMS):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._map(identity)
            self.path = publish(draft, self.path)
            _remove(draft)
        except BaseException:
            self.discard()
            _remove(draft)
            raise

    def _map(self, identity: dict) -> None:
        self._mapping = mmap.mmap(self.fd, FILE_BYTES)
        try:  # MADV_POPULATE_WRITE, of Linux 5.14: a step's first store into each of its 4 KiB would take 1 to 20 us.
            self._mapping.madvise(23, 0, 8 * W_DEVICE_RING)
        except (OSError, ValueError) as error:
            reraise_from_handler(error)
        self.words = memoryview(self._mapping).cast("Q")
        _write_identity(self._mapping, self.words, identity)

    def close(self) -> None:
        """Close the file, which releases the owner's lock. The mapping stays as long as `words` is referenced."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        """Close the file and remove it, as if it had not been made."""
        try:
            if self.path is not None and os.path.samestat(os.fstat(self.fd), os.lstat(self.path)):
                os.unlink(self.path)
        except OSError as error:
            reraise_from_handler(error)  # Else it has no name yet, or is another's.
        self.close()


def reserve(fd: int, offset: int, length: int) -> bool:
    """Allocate the memory of a part of a page; False if there is none left.

    Without it, a store into a hole of a full /dev/shm raises SIGBUS, which would kill the training.
    """
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        reraise_from_handler(error)
        return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
    return True


def private_words() -> memoryview:
    """Words of a page without readers; memory is used only where it is written."""
    return memoryview(mmap.mmap(-1, FILE_BYTES)).cast("Q")


def make_directory(path: str) -> None:
    """Create the page directory, open to all users like /tmp if it is ours to create."""
    try:
        os.makedirs(path)
    except FileExistsError:
        return
    os.chmod(path, 0o1777)


def is_of_user(path: str, user: int) -> bool:
    """Whether it is a regular file of this user; links are not followed."""
    try:
        info = os.lstat(path)
    except OSError as error:
        reraise_from_handler(error)
        return False
    return info.st_uid == user and stat.S_ISREG(info.st_mode)


def rewrite_identity(words: memoryview, identity: dict) -> None:
    """Publish changed declared fields. Raises PageError if the identity is too long; the old one then stays."""
    number = (words[W_REVISION] >> REVISION_SHIFT) + 1
    offset, most = IDENTITY_PLACES[number % 2]
    blob = _encoded(identity, most)
    words.cast("B")[offset : offset + len(blob)] = blob
    words[W_REVISION] = number << REVISION_SHIFT | len(blob)


def identity_of(words: memoryview) -> dict:
    """The identity in a page of our own that no other process writes."""
    import json

    number, length = divmod(words[W_REVISION], 1 << REVISION_SHIFT)
    offset, _ = IDENTITY_PLACES[number % 2]
    length = length if words[W_REVISION] else words[W_IDENTITY_BYTES]
    return json.loads(bytes(words.cast("B")[offset : offset + length]))


def _encoded(identity: dict, most: int) -> bytes:
    import json  # Here, since it is most of this module's import time and a reader never comes this way.

    blob = json.dumps(identity, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
    if len(blob) > most:
        raise PageError("identity", f"identity is {len(blob)} bytes, {most} at most")
    return blob


def _write_identity(mapping, words, identity: dict) -> None:
    blob = _encoded(identity, IDENTITY_BYTES_MAX)
    mapping[IDENTITY_OFFSET : IDENTITY_OFFSET + len(blob)] = blob
    words[W_VERSION], words[W_SIZE], words[W_IDENTITY_BYTES] = VERSION, FILE_BYTES, len(blob)
    words[W_STEP_NEXT] = STEP_BIAS
    words[W_LAST] = identity["start_mono_ns"]
    words[W_MAGIC] = MAGIC


def publish(draft: str, path: str) -> str:
    """Give the draft its final name, which is returned. The page of a dead owner is replaced; that of a live one raises
    Claimed.

    In a shared folder another user's file under that name stays, and the page gets a name with this user's number.
    """
    user, stem = os.stat(draft).st_uid, path.removesuffix(SUFFIX)
    own = f"{stem}{ALIAS}{user}"
    for name in (path, f"{own}{SUFFIX}"):
        if _rename(draft, name, user):
            return name
    last = f"{own}-{os.urandom(8).hex()}{SUFFIX}"
    os.link(draft, last)
    return last


def _rename(draft: str, path: str, user: int) -> bool:
    """False if another user's file, or one that is no regular file, is there."""
    try:
        os.link(draft, path)
        return True
    except FileExistsError:
        pass
    if not is_of_user(path, user):
        return False
    if is_locked(path):
        raise Claimed(path)
    os.replace(draft, path)
    os.link(path, draft)
    return True


def _remove(draft: str) -> None:
    try:
        os.unlink(draft)
    except FileNotFoundError:
        pass  # The agent's sweep has removed it.


def bump_drop(path: str, what: str) -> None:
    """Count something dropped in a page that this process does not own (a second claim on a rank)."""
    offset = 8 * (W_DROPS + DROPS.index(what))
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Another kind of file may lie under that name; the magic protects it.
        if os.pread(fd, 8, 8 * W_MAGIC) == struct.pack("<Q", MAGIC) and os.fstat(fd).st_size == FILE_BYTES:
            (count,) = struct.unpack("<Q", os.pread(fd, 8, offset))
            os.pwrite(fd, struct.pack("<Q", min(count + 1, NS_MAX - 1)), offset)
    finally:
        os.close(fd)


def write_user_phase(words: memoryview, index: int, name: bytes, state: bytes) -> None:
    """Enter the index-th user phase (from 0) in the table; the count is raised last."""
    raw = words.cast("B")
    at = USER_OFFSET + index * USER_ENTRY_BYTES
    raw[at : at + USER_ENTRY_BYTES] = name.ljust(32, b"\0") + state.ljust(32, b"\0")
    words[W_USER_PHASES] = index + 1


def write_event(words: memoryview, kind: str, time_ns: int, step: int, text: bytes) -> None:
    """Append an event. Text is cut between two characters."""
    padded = memoryview(_event_text(text)).cast("Q")
    kind_index = EVENT_KINDS.index(kind)
    # From here on no call, so that a signal handler's event comes before or after this one (sdk/recorder/plain.py).
    number = words[W_EVENTS] + 1
    at = W_EVENT_RING + (number - 1) % EVENT_RING * EVENT_WORDS
    words[at + E_SEAL] = 0
    words[at + 1], words[at + 2], words[at + 3] = kind_index, time_ns, step + STEP_BIAS
    words[at + E_TEXT : at + E_SEAL] = padded
    words[at] = words[at + E_SEAL] = number
    words[W_EVENTS] = number


def next_event(words: memoryview, kind: str, time_ns: int, step: int, text: bytes) -> tuple[int, bytes]:
    """The next event's first word in the page, and its words as bytes, for another to write; nothing is written."""
    number = words[W_EVENTS] + 1
    head = struct.pack("=4Q", number, EVENT_KINDS.index(kind), time_ns, step + STEP_BIAS)
    at = W_EVENT_RING + (number - 1) % EVENT_RING * EVENT_WORDS
    return at, head + _event_text(text) + struct.pack("=Q", number)


def _event_text(text: bytes) -> bytes:
    """The text as an event has it: cut between two characters, filled with zeros."""
    if len(text) > EVENT_TEXT_BYTES:
        text = text[:EVENT_TEXT_BYTES].decode("utf-8", "ignore").encode()
    return text.ljust(EVENT_TEXT_BYTES, b"\0")


# ---------------------------------------------------------------------------------------------- liveness


def is_locked(path: str) -> bool:
    """True while another process holds the owner's lock on the page (never true for one's own)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reraise_from_handler(error)
        return False
    try:
        return owner_is_locking(fd)
    finally:
        os.close(fd)


def owner_is_locking(fd: int) -> bool:
    """True while another process holds the owner's lock on this open page. Not true for one's own lock."""
    probe = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, probe)
    except OSError as error:
        reraise_from_handler(error)
        return False  # A file system without locks; the pid remains.
    return struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK


def open_now(path: str, flags: int) -> int:
    """An opener that does not wait for the writer of a FIFO, as one may lie in a procfs of --procfs."""
    return os.open(path, flags | os.O_NONBLOCK)


def process_start_ticks(pid: int | str = "self", procfs: str = "/proc") -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), /proc/pid/stat field 22), or None.

    None also for a zombie, which keeps its entry until its parent has waited for it.
    """
    try:
        # A signal handler that raises between an opener's return and the file's making would leave the file open.
        opener = None if procfs == "/proc" else open_now
        with open(f"{procfs}/{pid}/stat", "rb", opener=opener) as file:
            fields = file.read(PROCESS_BYTES_MAX).rsplit(b")", 1)[1].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError) as error:
        reraise_from_handler(error)
        return None
