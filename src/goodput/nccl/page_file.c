/* The file that the plugin writes: laid out as a rank page, beside the page of the process's SDK if it has one.
 *
 * Its name ends in .nccl. It appears when it is complete, and its owner holds a POSIX lock on it, as in rank_page/page.py.
 * With an SDK in the process it has the identity of the SDK's page, which /proc/self/fd shows; the agent joins the two by
 * the process. The memory that is used, some 230 KiB, is allocated before: a store into a full /dev/shm would kill. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"
#include "page_file.h"

#define SUFFIX ".nccl"
#define ATTEMPTS_MAX 1024
#define HEAD_BYTES 8192

word *page, *collectives, *sdk_page;
_Atomic int is_recording;

/* -- the page of the SDK in this process */

/* The identity in an open page, NULL if it is none of this process. The descriptor is the SDK's, and stays open. */
static bool read_identity(int fd, struct identity *identity) {
    uint64_t head[4], revision;
    char own[40];
    if (pread(fd, head, sizeof head, 0) != sizeof head || head[W_MAGIC] != PAGE_MAGIC) return false;
    if (pread(fd, &revision, 8, 8 * W_REVISION) != 8) return false;
    uint64_t length = revision ? revision & ((1 << REVISION_SHIFT) - 1) : head[W_IDENTITY_BYTES];
    bool is_odd = revision >> REVISION_SHIFT & 1;
    if (!length || length > (is_odd ? IDENTITY_BYTES_ODD : IDENTITY_BYTES_MAX - 1)) return false;
    ssize_t got = pread(fd, identity->text, length, is_odd ? IDENTITY_OFFSET_ODD : IDENTITY_OFFSET);
    if (got != (ssize_t)length) return false;
    identity->text[length] = '\0';
    identity->length = length;
    snprintf(own, sizeof own, "\"pid\":%d,", (int)getpid());
    const char *start = strstr(identity->text, "\"start_mono_ns\":"), *world = strstr(identity->text, "\"world_size\":");
    identity->start_ns = start ? strtoull(start + 16, NULL, 10) : now_ns();
    identity->world_size = world ? strtoll(world + 13, NULL, 10) : 0;
    return strstr(identity->text, own) != NULL;
}

/* The folder and name of a page by the link of its descriptor, which may be the draft's, removed since: ".PID.TIME.NAME". */
static bool split_link(char *link, char **name) {
    static const char gone[] = " (deleted)", suffix[] = ".page";
    size_t length = strlen(link);
    if (length > sizeof gone && !strcmp(link + length - (sizeof gone - 1), gone)) link[length -= sizeof gone - 1] = '\0';
    if (length <= sizeof suffix || strcmp(link + length - (sizeof suffix - 1), suffix)) return false;
    link[length - (sizeof suffix - 1)] = '\0';
    char *at = strrchr(link, '/');
    if (!at) return false;
    *at++ = '\0';
    if (*at == '.') {
        at += 1 + strspn(at + 1, "0123456789");
        if (*at++ != '.') return false;
        at += strspn(at, "0123456789abcdef");
        if (*at++ != '.') return false;
    }
    *name = at;
    return *at != '\0';
}

/* Where the steps of the SDK are; a descriptor that is mapped may be closed, and its lock stays. */
static void map_head(int fd) {
    void *bytes = mmap(NULL, HEAD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    sdk_page = bytes == MAP_FAILED ? NULL : bytes;
}

/* The page that the SDK of this process has open: fills folder, stem and text. */
static bool find_sdk_page(struct identity *identity) {
    DIR *folder = opendir("/proc/self/fd");
    bool is_found = false;
    for (struct dirent *entry; folder && !is_found && (entry = readdir(folder));) {
        char link[PATH_MAX], *name;
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        if (length <= 0) continue;
        link[length] = '\0';
        if (!split_link(link, &name) || strlen(name) >= sizeof identity->stem) continue;
        if (strlen(link) >= sizeof identity->directory || !read_identity(atoi(entry->d_name), identity)) continue;
        snprintf(identity->directory, sizeof identity->directory, "%s", link);
        snprintf(identity->stem, sizeof identity->stem, "%s", name);
        map_head(atoi(entry->d_name));
        is_found = true;
    }
    if (folder) closedir(folder);
    return is_found;
}

/* -- the file */

static void make_directory(const char *path) {
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(part, 0777);
        *at = '/';
    }
    if (!mkdir(part, 0777)) chmod(part, 01777); /* as page.make_directory: open to all users */
}

/* What is under the name of a file: nothing, a file of another user's or of another kind (which in a shared folder stays),
 * this user's own that is no page, that of a process of this user's that is gone, or of one that lives. */
enum found { NOTHING, FOREIGN, NO_PAGE, GONE, LIVING };

static enum found look_at(const char *path) {
    struct stat info;
    uint64_t magic = 0;
    if (lstat(path, &info)) return errno == ENOENT ? NOTHING : FOREIGN;
    if (info.st_uid != geteuid() || !S_ISREG(info.st_mode)) return FOREIGN;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? NOTHING : FOREIGN;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    enum found found = NO_PAGE;
    if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) found = LIVING;
    else if (pread(fd, &magic, 8, 8 * W_MAGIC) == 8 && magic == PAGE_MAGIC) found = GONE;
    close(fd);
    return found;
}

/* Beyond the limit of a file's size the kernel would send SIGXFSZ. */
static bool may_be_so_large(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= FILE_BYTES;
}

static bool allocate(int fd) {
    int problem = posix_fallocate(fd, 0, LIVE_BYTES);
    if (!problem) problem = posix_fallocate(fd, 8 * W_COLLECTIVES, 8 * COLLECTIVES_WORDS);
    return problem != ENOSPC && problem != EDQUOT && problem != ENOMEM;
}

static void write_header(char *bytes, const struct identity *identity) {
    word *words = (word *)bytes;
    memcpy(bytes + IDENTITY_OFFSET, identity->text, identity->length);
    store(words + W_VERSION, PAGE_VERSION);
    store(words + W_SIZE, FILE_BYTES);
    store(words + W_IDENTITY_BYTES, identity->length);
    store(words + W_STEP_NEXT, STEP_BIAS);
    store(words + W_LAST, identity->start_ns);
    atomic_store_explicit(words + W_MAGIC, PAGE_MAGIC, memory_order_release);
}

/* The memory of a complete file under this name; its descriptor stays open for the lock. NULL with errno, also where
 * another process was first, unless it `replaces` what is there. */
static void *make_file(const struct identity *identity, const char *path, const char *draft, bool replaces) {
    void *bytes = MAP_FAILED;
    if (!may_be_so_large()) {
        errno = EFBIG;
        return NULL;
    }
    int fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644), problem = 0;
    if (fd < 0) return NULL;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (ftruncate(fd, FILE_BYTES) || fcntl(fd, F_SETLK, &lock)) problem = errno;
    else if (!allocate(fd)) problem = ENOSPC;
    else bytes = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes != MAP_FAILED) {
        write_header(bytes, identity);
        if (link(draft, path) && (errno != EEXIST || !replaces || rename(draft, path))) problem = errno;
        unlink(draft);
    } else if (!problem) {
        problem = errno;
    }
    if (!problem) return bytes;
    if (bytes != MAP_FAILED) munmap(bytes, FILE_BYTES);
    unlink(draft);
    close(fd);
    errno = problem;
    return NULL;
}

/* The name of the file: of the SDK's page, or with the next attempt after this user's own files of this rank. Where another
 * user's file has that name, one with this user's number. */
static bool choose_name(struct identity *identity, bool has_sdk, char *name, size_t bytes, char *reason, size_t most) {
    char path[2048], stem[480];
    int alias = 0;
    for (int i = 0; i < ATTEMPTS_MAX;) {
        if (has_sdk) snprintf(stem, sizeof stem, "%s", identity->stem);
        else snprintf(stem, sizeof stem, "%s.%lld", identity->stem, (long long)identity->attempt);
        if (alias == 0) snprintf(name, bytes, "%s" SUFFIX, stem);
        else if (alias == 1) snprintf(name, bytes, "%s~%u" SUFFIX, stem, (unsigned)geteuid());
        else snprintf(name, bytes, "%s~%u-%llx" SUFFIX, stem, (unsigned)geteuid(), (unsigned long long)now_ns());
        snprintf(path, sizeof path, "%s/%s", identity->directory, name);
        enum found found = look_at(path);
        if (found == LIVING) {
            snprintf(reason, most, "a living process writes %.120s", name);
            return false;
        }
        if (found == NOTHING || found == NO_PAGE || (has_sdk && found == GONE)) return true;
        if (found == FOREIGN && alias < 2) {
            alias++;
        } else {
            alias = 0;
            identity->attempt++;
            i++;
        }
    }
    snprintf(reason, most, "too many files of this rank");
    return false;
}

#ifdef __GLIBC__
static void at_exit(int status, void *argument) {
    (void)argument;
    if (!atomic_exchange_explicit(&is_recording, 0, memory_order_relaxed)) return; /* a forked child */
    store(page + W_END, now_ns());
    store(page + W_ENDED, status ? END_FAILED : END_FINISHED);
}
#endif

bool open_page(int rank, int size, uint64_t hash, int64_t *world_size, char *reason, size_t reason_bytes) {
    static struct identity identity;
    char name[512], path[2048], draft[2048];
    bool has_sdk = find_sdk_page(&identity);
    if (!has_sdk) {
        resolve_identity(&identity, rank, size, hash);
        make_directory(identity.directory);
    }
    if (!choose_name(&identity, has_sdk, name, sizeof name, reason, reason_bytes)) return false;
    if (!has_sdk) write_identity(&identity);
    if (!identity.length) {
        snprintf(reason, reason_bytes, "the identity is too long");
        return false;
    }
    snprintf(path, sizeof path, "%s/%s", identity.directory, name);
    snprintf(draft, sizeof draft, "%s/.%d.%llx.%s", identity.directory, (int)getpid(),
             (unsigned long long)now_ns(), name);
    page = make_file(&identity, path, draft, has_sdk || look_at(path) == NO_PAGE);
    if (!page) {
        snprintf(reason, reason_bytes, "cannot write in %.120s: %s", identity.directory, strerror(errno));
        return false;
    }
    collectives = page + W_COLLECTIVES;
    *world_size = identity.world_size;
#ifdef __GLIBC__
    on_exit(at_exit, NULL);
#endif
    return true;
}
