/* The identity of this process from the launcher's environment, as sdk/startup/resolve_identity.py resolves it.
 *
 * Where no launcher names a rank, the rank is that in the first communicator, and its hash the name of the run. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "identity.h"

#define ROLE "nccl-profiler" /* account/collective_verdict.py: a rank whose steps are not recorded */
#define STARTUP_SECONDS_MAX 900.0

static const struct {
    const char *name, *rank, *world_size, *local_rank;
} launchers[] = {
    {"goodput", "GOODPUT_RANK", "GOODPUT_WORLD_SIZE", "GOODPUT_LOCAL_RANK"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""},
};

static int64_t number(const char *variable, int64_t least, int64_t most, int64_t otherwise) {
    const char *text = *variable ? getenv(variable) : NULL;
    size_t length = text ? strlen(text) : 0;
    if (!length || length > 8 || strspn(text, "0123456789") != length) return otherwise;
    int64_t value = atoll(text);
    return least <= value && value <= most ? value : otherwise;
}

/* Printable ASCII; the rest of a text is "?". */
static void clean(char *into, const char *text, size_t most) {
    size_t i = 0;
    for (; text[i] && i < most; i++) into[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    into[i] = '\0';
}

static void escape(char *into, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') *into++ = '\\';
        *into++ = *text;
    }
    *into = '\0';
}

static void name_run(char *run, uint64_t hash) {
    static const char *const variables[] = {"GOODPUT_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
                                            "JOB_NAME", "PBS_JOBID", "LSB_JOBID"};
    for (unsigned i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]), *port = getenv("MASTER_PORT");
        if (!text || !*text) continue;
        if (i == 1 && !strcmp(text, "none")) snprintf(run, 129, "torchrun-%.20s", port ? port : "0");
        else clean(run, text, 128);
        return;
    }
    snprintf(run, 129, "nccl-%016llx", (unsigned long long)hash);
}

static int64_t attempt(void) {
    int64_t given = number("GOODPUT_ATTEMPT", 1, 1 << 20, 0);
    int64_t restarts = number("TORCHELASTIC_RESTART_COUNT", 0, (1 << 20) - 1, -1);
    if (given) return given;
    return (restarts >= 0 ? restarts : number("SLURM_RESTART_COUNT", 0, (1 << 20) - 1, 0)) + 1;
}

/* The file name that page.file_name gives, up to the rank. */
static void name_file(char *stem, size_t bytes, const char *run, int64_t rank) {
    char safe[700] = "";
    size_t length = 0;
    for (; *run; run++) {
        bool is_plain = (*run >= '0' && *run <= '9') || (*run >= 'A' && *run <= 'Z') || (*run >= 'a' && *run <= 'z') ||
                        *run == '_' || *run == '-';
        length += (size_t)snprintf(safe + length, sizeof safe - length, is_plain ? "%c" : "%%%x,", *run);
    }
    if (length > 160) {
        uint64_t digest = 14695981039346656037ull; /* FNV-1a */
        for (size_t i = 0; i < length; i++) digest = (digest ^ (unsigned char)safe[i]) * 1099511628211ull;
        snprintf(safe + 120, sizeof safe - 120, "~%016llx", (unsigned long long)digest);
    }
    snprintf(stem, bytes, "%s.%lld", safe, (long long)rank);
}

static void find_directory(char *directory, size_t bytes) {
    const char *given = getenv("GOODPUT_DIR"), *temporary = getenv("TMPDIR");
    if (given && *given) snprintf(directory, bytes, "%s", strlen(given) < bytes ? given : "");
    else if (!access("/run/goodput", W_OK | X_OK)) snprintf(directory, bytes, "/run/goodput");
    else if (!access("/dev/shm", W_OK)) snprintf(directory, bytes, "/dev/shm/goodput");
    else snprintf(directory, bytes, "%s/goodput", temporary && *temporary ? temporary : "/tmp");
}

static unsigned long long start_ticks(void) {
    char text[1024];
    unsigned long long ticks = 0;
    FILE *file = fopen("/proc/self/stat", "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = '\0';
    char *field = strrchr(text, ')');
    for (int i = 0; field && i < 20; i++) field = strchr(field + 1, ' ');
    if (field) sscanf(field, "%llu", &ticks);
    return ticks;
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

struct parts {
    char run[260], host[520];
    const char *launcher;
    int64_t rank, local_rank;
};
static struct parts parts; /* of the one identity of this process, under the lock of its page */

void resolve_identity(struct identity *identity, int rank, int size, uint64_t hash) {
    struct utsname about = {0};
    char run[129], host[256];
    parts.rank = -1;
    parts.local_rank = 0;
    identity->world_size = 0;
    parts.launcher = "none";
    for (unsigned i = 0; i < sizeof launchers / sizeof *launchers && parts.rank < 0; i++) {
        parts.rank = number(launchers[i].rank, 0, (1 << 24) - 1, -1);
        if (parts.rank < 0) continue;
        parts.launcher = launchers[i].name;
        identity->world_size = number(launchers[i].world_size, 1, 1 << 24, 1);
        parts.local_rank = number(launchers[i].local_rank, 0, 1 << 16, 0);
    }
    if (parts.rank < 0) parts.rank = rank, identity->world_size = size;
    if (identity->world_size <= parts.rank) identity->world_size = parts.rank + 1;
    identity->attempt = attempt();
    name_run(run, hash);
    uname(&about);
    clean(host, about.nodename, 255);
    escape(parts.run, run);
    escape(parts.host, host);
    name_file(identity->stem, sizeof identity->stem, run, parts.rank);
    find_directory(identity->directory, sizeof identity->directory);
}

/* The identity as JSON, with the attempt that it has by now. */
void write_identity(struct identity *identity) {
    unsigned long long ticks = start_ticks();
    uint64_t unix_ns = clock_ns(CLOCK_REALTIME), mono_ns = clock_ns(CLOCK_MONOTONIC);
    double age = (double)clock_ns(CLOCK_BOOTTIME) / 1e9 - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    if (ticks && age >= 0 && age <= STARTUP_SECONDS_MAX) {
        unix_ns -= (uint64_t)(age * 1e9);
        mono_ns -= mono_ns > (uint64_t)(age * 1e9) ? (uint64_t)(age * 1e9) : 0;
    }
    identity->start_ns = mono_ns;
    int length = snprintf(
        identity->text, sizeof identity->text,
        "{\"run\":\"%s\",\"rank\":%lld,\"world_size\":%lld,\"attempt\":%lld,\"local_rank\":%lld,\"launcher\":\"%s\","
        "\"host\":\"%s\",\"pid\":%d,\"pid_start_ticks\":%llu,\"devices\":1,\"group\":\"\",\"role\":\"" ROLE "\","
        "\"device\":\"\",\"device_uuid\":\"\",\"dtype\":\"\",\"start_unix_ns\":%llu,\"start_mono_ns\":%llu}",
        parts.run, (long long)parts.rank, (long long)identity->world_size, (long long)identity->attempt,
        (long long)parts.local_rank, parts.launcher, parts.host, (int)getpid(), ticks, (unsigned long long)unix_ns,
        (unsigned long long)mono_ns);
    identity->length = length > 0 && (size_t)length < sizeof identity->text ? (size_t)length : 0;
}
