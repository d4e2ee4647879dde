/* A stand-in for libnvidia-ml.so.1: the functions that goodput's NVML driver calls, answered from a text file.
 *
 * The file is named by GOODPUT_NVML_STUB and read again whenever it changed. A line is `key value`; keys are
 *   count, driver, init                    how many GPUs; the driver's version; an error of nvmlInitWithFlags
 *   D.uuid, D.name, D.pci                  of a device: D is 0, 1, ... for a GPU, 0m1 for place 1 of GPU 0's MIG instances
 *   D.gi                                   a MIG instance's GPU instance; without it there is none at that place
 *   D.FUNCTION, D.FUNCTION.ARGUMENT        the answer of a function for a device, or for one of its arguments
 *   *.FUNCTION                             the same for all devices
 *   D.*                                    the answer of every function for a device (an error)
 *   D.field.ID.SCOPE                       "value type" of nvmlDeviceGetFieldValues
 *   D.gpm.ID                               a GPM metric; D is 0g3 for GPU instance 3 of GPU 0
 *   xid.N                                  "gpu number instance": event N, counted from 1
 *   alias                                  events name the GPU by another handle than the one that was given out
 *   named                                  events name this GPU, whichever set they come in
 * An answer `!15` is the error 15, `block` never returns, and what has no line is not supported (3). Layouts and versions
 * are those of nvidia-ml-py's ctypes structures. An older driver is made by renaming functions: -DnvmlX=hidden_nvmlX.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GPUS = 64, PLACES = 16, LINES = 8192, METRICS = 4096 };
enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  TIMEOUT = 10,
  VERSION_MISMATCH = 25,
  UNKNOWN = 999
};

typedef struct {
  char name[16];
  int gpu;
} Device;
typedef struct {
  char *key, *value;
} Line;

static Device gpus[GPUS], aliases[GPUS], instances[GPUS][PLACES];
static char *body;
static Line lines[LINES];
static int line_count, initialized, live_samples, live_sets, calls;
static struct stat last;

static int by_key(const void *a, const void *b) { return strcmp(((const Line *)a)->key, ((const Line *)b)->key); }

/* Read the control file where it is another one than before. */
static void load(void) {
  struct stat now;
  const char *path = getenv("GOODPUT_NVML_STUB");
  if (!path || stat(path, &now)) abort();
  if (body && now.st_ino == last.st_ino && now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == last.st_mtim.tv_nsec)
    return;
  last = now;
  free(body);
  body = calloc(1, now.st_size + 1);
  FILE *file = fopen(path, "r");
  if (!file || fread(body, 1, now.st_size, file) != (size_t)now.st_size) abort();
  fclose(file);
  line_count = 0;
  for (char *rest = body, *text; (text = strsep(&rest, "\n"));) {
    if (!*text) continue;
    if (line_count == LINES) abort();
    char *value = strchr(text, ' ');
    if (value) *value++ = 0;
    lines[line_count++] = (Line){text, value ? value : text + strlen(text)};
  }
  qsort(lines, line_count, sizeof(Line), by_key);
}

static const char *value_of(const char *key) {
  Line wanted = {(char *)key, 0};
  Line *found = bsearch(&wanted, lines, line_count, sizeof(Line), by_key);
  return found ? found->value : 0;
}

/* An answer's error, 0 where it is a value; here a call blocks for ever if it is to. */
static int error_of(const char *value) {
  if (!value) return NOT_SUPPORTED;
  if (!strcmp(value, "block"))
    for (;;) pause();
  return *value == '!' ? atoi(value + 1) : SUCCESS;
}

/* The answer of a function for a device, by the most particular line there is. */
static int ask(const Device *device, const char *function, long argument, const char **value) {
  char key[160];
  calls++;
  if (!initialized) return UNINITIALIZED;
  if (!device) return INVALID_ARGUMENT;
  load();
  snprintf(key, sizeof key, "%d.*", device->gpu);
  if ((*value = value_of(key))) return error_of(*value);
  snprintf(key, sizeof key, "%s.%s.%ld", device->name, function, argument);
  if (!(*value = value_of(key))) {
    snprintf(key, sizeof key, "%s.%s", device->name, function);
    *value = value_of(key);
  }
  if (!*value) {
    snprintf(key, sizeof key, "*.%s", function);
    *value = value_of(key);
  }
  return error_of(*value);
}

static int ask_uint(const Device *device, const char *function, long argument, unsigned *answer) {
  const char *value;
  int error = ask(device, function, argument, &value);
  if (!error) *answer = strtoul(value, 0, 10);
  return error;
}

static int ask_text(const Device *device, const char *what, const char *function, char *text, unsigned size) {
  const char *value;
  char key[64];
  int error = ask(device, function, 0, &value);
  /* Names answer of themselves; only errors are given for their functions. */
  if (error && (error != NOT_SUPPORTED || value)) return error;
  snprintf(key, sizeof key, "%s.%s", device->name, what);
  value = value_of(key);
  if (!value) return NOT_SUPPORTED;
  snprintf(text, size, "%s", value);
  return SUCCESS;
}

/* For tests: what was allocated and not given back, and how often NVML was called. */
int stub_live_samples(void) { return live_samples; }
int stub_live_sets(void) { return live_sets; }
int stub_calls(void) { return calls; }

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  load();
  const char *value = value_of("init");
  int error = value ? error_of(value) : SUCCESS;
  if (!error) initialized++;
  for (int gpu = 0; gpu < GPUS; gpu++) {
    gpus[gpu].gpu = gpu;
    snprintf(gpus[gpu].name, sizeof gpus[gpu].name, "%d", gpu);
    aliases[gpu] = gpus[gpu];
    for (int place = 0; place < PLACES; place++) {
      instances[gpu][place].gpu = gpu;
      snprintf(instances[gpu][place].name, sizeof instances[gpu][place].name, "%dm%d", gpu, place);
    }
  }
  return error;
}

int nvmlShutdown(void) {
  if (!initialized) return UNINITIALIZED;
  initialized--;
  return SUCCESS;
}

const char *nvmlErrorString(int error) {
  static char text[32];
  snprintf(text, sizeof text, "error %d", error);
  return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  load();
  snprintf(text, size, "%s", value_of("driver") ? value_of("driver") : "");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  calls++;
  if (!initialized) return UNINITIALIZED;
  load();
  const char *value = value_of("count");
  int error = error_of(value);
  if (!error) *count = strtoul(value, 0, 10);
  return error;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
  const char *value;
  if (index >= GPUS) return INVALID_ARGUMENT;
  int error = ask(&gpus[index], "nvmlDeviceGetHandleByIndex", 0, &value);
  if (error && (error != NOT_SUPPORTED || value)) return error;
  *device = &gpus[index];
  return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
  return ask_text(device, "uuid", "nvmlDeviceGetUUID", text, size);
}

int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
  return ask_text(device, "name", "nvmlDeviceGetName", text, size);
}

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
  char text[64];
  int error = ask_text(device, "pci", "nvmlDeviceGetPciInfo", text, sizeof text);
  if (error) return error;
  memset(pci, 0, sizeof *pci);
  if (sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) abort();
  snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetUtilizationRates", 0, &value);
  if (!error && sscanf(value, "%u %u", &rates[0], &rates[1]) != 2) abort();
  return error;
}

#define NUMBER(function)                              \
  int function(Device *device, unsigned *answer) {    \
    return ask_uint(device, #function, 0, answer);    \
  }
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetPerformanceState)
NUMBER(nvmlDeviceGetFanSpeed)
NUMBER(nvmlDeviceGetPowerManagementLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)

/* Of one of several: clocks, sensors, limits, links. */
#define NUMBER_OF(function)                                            \
  int function(Device *device, unsigned which, unsigned *answer) {     \
    return ask_uint(device, #function, which, answer);                 \
  }
NUMBER_OF(nvmlDeviceGetClockInfo)
NUMBER_OF(nvmlDeviceGetMaxClockInfo)
NUMBER_OF(nvmlDeviceGetApplicationsClock)
NUMBER_OF(nvmlDeviceGetTemperature)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold)
NUMBER_OF(nvmlDeviceGetNvLinkState)
NUMBER_OF(nvmlDeviceGetPcieThroughput)

#define TWO_NUMBERS(function)                                              \
  int function(Device *device, unsigned *first, unsigned *second) {        \
    const char *value;                                                     \
    int error = ask(device, #function, 0, &value);                         \
    if (!error && sscanf(value, "%u %u", first, second) != 2) abort();     \
    return error;                                                          \
  }
TWO_NUMBERS(nvmlDeviceGetEncoderUtilization)
TWO_NUMBERS(nvmlDeviceGetDecoderUtilization)
TWO_NUMBERS(nvmlDeviceGetJpgUtilization)
TWO_NUMBERS(nvmlDeviceGetOfaUtilization)
TWO_NUMBERS(nvmlDeviceGetPowerManagementLimitConstraints)

typedef struct {
  unsigned version;
  int margin;
} Margin;

int nvmlDeviceGetMarginTemperature(Device *device, Margin *margin) {
  unsigned answer;
  if (margin->version != (sizeof *margin | 1 << 24)) return VERSION_MISMATCH;
  int error = ask_uint(device, "nvmlDeviceGetMarginTemperature", 0, &answer);
  if (!error) margin->margin = (int)answer;
  return error;
}

/* Of memory at BAR1, in all, free and used. */
int nvmlDeviceGetBAR1MemoryInfo(Device *device, unsigned long long bytes[3]) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetBAR1MemoryInfo", 0, &value);
  if (!error && sscanf(value, "%llu %llu %llu", &bytes[0], &bytes[1], &bytes[2]) != 3) abort();
  return error;
}

/* Banks with all, many, some, few and no spare rows. */
int nvmlDeviceGetRowRemapperHistogram(Device *device, unsigned banks[5]) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetRowRemapperHistogram", 0, &value);
  if (!error && sscanf(value, "%u %u %u %u %u", &banks[0], &banks[1], &banks[2], &banks[3], &banks[4]) != 5) abort();
  return error;
}

/* Asked with the error's type, the counter's type and the place in one number: hundreds, tens, ones. */
int nvmlDeviceGetMemoryErrorCounter(Device *device, unsigned error_type, unsigned counter, unsigned place,
                                    unsigned long long *answer) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetMemoryErrorCounter", 100 * error_type + 10 * counter + place, &value);
  if (!error) *answer = strtoull(value, 0, 10);
  return error;
}

typedef struct {
  unsigned version;
  unsigned long long counts[11];
  unsigned is_exceeded;
} SramStatus;

int nvmlDeviceGetSramEccErrorStatus(Device *device, SramStatus *status) {
  if (status->version != (sizeof *status | 1 << 24)) return VERSION_MISMATCH;
  return ask_uint(device, "nvmlDeviceGetSramEccErrorStatus", 0, &status->is_exceeded);
}

typedef struct {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique, state, health;
} Fabric;

int nvmlDeviceGetGpuFabricInfoV(Device *device, Fabric *fabric) {
  const char *value;
  if (fabric->version != (sizeof *fabric | 2 << 24)) return VERSION_MISMATCH;
  int error = ask(device, "nvmlDeviceGetGpuFabricInfoV", 0, &value);
  if (!error && sscanf(value, "%u %u %u", &fabric->state, &fabric->status, &fabric->health) != 3) abort();
  return error;
}

typedef struct {
  unsigned code, is_licensed;
  char license[128], product[128];
  unsigned is_enabled, expiry[4];
} LicensableFeature;
typedef struct {
  int is_supported;
  unsigned count;
  LicensableFeature features[3];
} LicensableFeatures;

int nvmlDeviceGetGridLicensableFeatures_v4(Device *device, LicensableFeatures *features) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetGridLicensableFeatures", 0, &value);
  if (error) return error;
  memset(features, 0, sizeof *features);
  /* Whether licences are supported, then whether each feature is licensed. */
  features->count = sscanf(value, "%d %u %u %u", &features->is_supported, &features->features[0].is_licensed,
                           &features->features[1].is_licensed, &features->features[2].is_licensed) - 1;
  return SUCCESS;
}

typedef struct {
  unsigned version, sensor;
  int temperature;
} Temperature;

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
  unsigned answer;
  if (temperature->version != (sizeof *temperature | 1 << 24)) return VERSION_MISMATCH;
  int error = ask_uint(device, "nvmlDeviceGetTemperatureV", temperature->sensor, &answer);
  if (!error) temperature->temperature = answer;
  return error;
}

#define WIDE_NUMBER(function)                                 \
  int function(Device *device, unsigned long long *answer) {  \
    const char *value;                                        \
    int error = ask(device, #function, 0, &value);            \
    if (!error) *answer = strtoull(value, 0, 10);             \
    return error;                                             \
  }
WIDE_NUMBER(nvmlDeviceGetTotalEnergyConsumption)
WIDE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons)
WIDE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons)

typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} MemoryV2;
typedef struct {
  unsigned long long total, free, used;
} Memory;

static int ask_memory(Device *device, MemoryV2 *memory) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetMemoryInfo", 0, &value);
  if (!error && sscanf(value, "%llu %llu %llu %llu", &memory->total, &memory->used, &memory->free, &memory->reserved) != 4)
    abort();
  return error;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
  if (memory->version != (sizeof *memory | 2 << 24)) return VERSION_MISMATCH;
  return ask_memory(device, memory);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
  MemoryV2 answer;
  int error = ask_memory(device, &answer);
  /* The first version counts what is reserved as used. */
  if (!error) *memory = (Memory){answer.total, answer.free, answer.used + answer.reserved};
  return error;
}

int nvmlDeviceGetViolationStatus(Device *device, unsigned policy, unsigned long long times[2]) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetViolationStatus", policy, &value);
  if (!error) times[0] = 1, times[1] = strtoull(value, 0, 10);
  return error;
}

typedef struct {
  unsigned id, scope;
  int64_t timestamp, latency_us;
  unsigned type, error;
  union {
    double d;
    unsigned u;
    unsigned long long w;
    long long s;
    int i;
    unsigned short h;
  } value;
} Field;

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
  const char *value;
  char name[64];
  int error = ask(device, "nvmlDeviceGetFieldValues", 0, &value);
  if (error && (error != NOT_SUPPORTED || value)) return error;
  for (int i = 0; i < count; i++) {
    Field *field = &fields[i];
    char number[64];
    snprintf(name, sizeof name, "%s.field.%u.%u", device->name, field->id, field->scope);
    value = value_of(name);
    field->error = error_of(value);
    memset(&field->value, 0xA5, sizeof field->value);
    if (field->error) continue;
    if (sscanf(value, "%63s %u", number, &field->type) != 2) abort();
    switch (field->type) {
      case 0: field->value.d = strtod(number, 0); break;
      case 1: field->value.u = strtoul(number, 0, 10); break;
      case 4: field->value.s = strtoll(number, 0, 10); break;
      case 5: field->value.i = atoi(number); break;
      case 6: field->value.h = atoi(number); break;
      default: field->value.w = strtoull(number, 0, 10);
    }
  }
  return SUCCESS;
}

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} Process;

static int ask_processes(Device *device, const char *function, unsigned *count, Process *processes) {
  const char *value;
  unsigned room = *count, found = 0;
  int error = ask(device, function, 0, &value);
  if (error) return error;
  for (char *end; *value; value = end) {
    unsigned long pid = strtoul(value, &end, 10);
    if (end == value) break;
    if (found < room && processes) processes[found] = (Process){pid, 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
    found++;
  }
  *count = found;
  return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(function, name) \
  int function(Device *device, unsigned *count, Process *processes) { return ask_processes(device, name, count, processes); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "nvmlDeviceGetComputeRunningProcesses")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "nvmlDeviceGetComputeRunningProcesses")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "nvmlDeviceGetGraphicsRunningProcesses")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "nvmlDeviceGetGraphicsRunningProcesses")

/* MIG */

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
  *pending = 0;
  return ask_uint(device, "nvmlDeviceGetMigMode", 0, current);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned place, Device **instance) {
  const char *value;
  char key[64];
  int error = ask(device, "nvmlDeviceGetMigDeviceHandleByIndex", place, &value);
  if (error && (error != NOT_SUPPORTED || value)) return error;
  if (place >= PLACES) return INVALID_ARGUMENT;
  snprintf(key, sizeof key, "%dm%u.gi", device->gpu, place);
  if (!value_of(key)) return NOT_FOUND;
  *instance = &instances[device->gpu][place];
  return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
  char text[32];
  int error = ask_text(device, "gi", "nvmlDeviceGetGpuInstanceId", text, sizeof text);
  if (!error) *id = strtoul(text, 0, 10);
  return error;
}

typedef struct {
  unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
  unsigned long long memory_mb;
} Attributes;

int nvmlDeviceGetAttributes_v2(Device *device, Attributes *attributes) {
  const char *value;
  int error = ask(device, "nvmlDeviceGetAttributes", 0, &value);
  memset(attributes, 0, sizeof *attributes);
  if (!error &&
      sscanf(value, "%u %u %llu", &attributes->gpu_slices, &attributes->compute_slices, &attributes->memory_mb) != 3)
    abort();
  return error;
}

/* GPM */

typedef struct {
  char device[24];
  int gpu, sequence;
} Sample;
typedef struct {
  unsigned id, error;
  double value;
  const char *names[3];
} Metric;
typedef struct {
  unsigned version, count;
  Sample *older, *newer;
  Metric metrics[METRICS];
} Metrics;
typedef struct {
  unsigned version, supported;
} Support;

int nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
  if (support->version != 1) return VERSION_MISMATCH;
  return ask_uint(device, "nvmlGpmQueryDeviceSupport", 0, &support->supported);
}

int nvmlGpmSampleAlloc(Sample **sample) {
  *sample = calloc(1, sizeof **sample);
  live_samples++;
  return SUCCESS;
}

int nvmlGpmSampleFree(Sample *sample) {
  free(sample);
  live_samples--;
  return SUCCESS;
}

static int take(Device *device, const char *function, const char *name, Sample *sample) {
  static int sequence;
  const char *value;
  int error = ask(device, function, 0, &value);
  if (error && (error != NOT_SUPPORTED || value)) return error;
  snprintf(sample->device, sizeof sample->device, "%s", name);
  sample->gpu = device->gpu;
  sample->sequence = ++sequence;
  return SUCCESS;
}

int nvmlGpmSampleGet(Device *device, Sample *sample) { return take(device, "nvmlGpmSampleGet", device->name, sample); }

int nvmlGpmMigSampleGet(Device *device, unsigned instance, Sample *sample) {
  char name[24];
  /* It wants the GPU and the number of its instance, not the MIG device. */
  if (device != &gpus[device->gpu]) return INVALID_ARGUMENT;
  snprintf(name, sizeof name, "%sg%u", device->name, instance);
  return take(device, "nvmlGpmMigSampleGet", name, sample);
}

int nvmlGpmMetricsGet(Metrics *request) {
  Sample *older = request->older, *newer = request->newer;
  const char *value;
  if (request->version != 1) return VERSION_MISMATCH;
  if (!older || !newer || older->sequence == 0 || older->sequence >= newer->sequence || strcmp(older->device, newer->device))
    return INVALID_ARGUMENT;
  int error = ask(&gpus[newer->gpu], "nvmlGpmMetricsGet", 0, &value);
  if (error && (error != NOT_SUPPORTED || value)) return error;
  for (unsigned i = 0; i < request->count && i < METRICS; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s.gpm.%u", newer->device, request->metrics[i].id);
    value = value_of(key);
    request->metrics[i].error = error_of(value);
    request->metrics[i].value = request->metrics[i].error ? 55 : strtod(value, 0);
  }
  return SUCCESS;
}

/* Events */

typedef struct {
  int fd;
  unsigned long long types[GPUS];
  long taken;
} Set;
typedef struct {
  Device *device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} EventData;

int nvmlEventSetCreate(Set **set) {
  char key[32];
  load();
  const char *value = value_of("*.nvmlEventSetCreate");
  if (value && error_of(value)) return error_of(value);
  *set = calloc(1, sizeof **set);
  (*set)->fd = eventfd(0, EFD_CLOEXEC);
  live_sets++;
  /* A set reports only what happens after it was made. */
  do snprintf(key, sizeof key, "xid.%ld", (*set)->taken + 1);
  while (value_of(key) && ++(*set)->taken);
  return SUCCESS;
}

int nvmlEventSetFree(Set *set) {
  close(set->fd);
  free(set);
  live_sets--;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, Set *set) {
  const char *value;
  int error = ask(device, "nvmlDeviceRegisterEvents", 0, &value);
  if (!error) set->types[device->gpu] |= types;
  return error;
}

/* The error of a GPU of this set that is lost, 0 for none. */
static int lost_of(const Set *set) {
  char key[32];
  for (int gpu = 0; gpu < GPUS; gpu++) {
    snprintf(key, sizeof key, "%d.*", gpu);
    const char *value = set->types[gpu] ? value_of(key) : 0;
    if (value && error_of(value)) return error_of(value);
  }
  return 0;
}

int nvmlEventSetWait_v2(Set *set, EventData *data, unsigned timeout_ms) {
  char key[32];
  const char *value;
  int error;
  calls++;
  if (!initialized) return UNINITIALIZED;
  load();
  if (timeout_ms) abort();
  value = value_of("*.nvmlEventSetWait");
  if (value && error_of(value)) return error_of(value);
  /* NVML's documentation has events that are ready returned before the call can fail. With lost_first it fails at once. */
  if (value_of("lost_first") && (error = lost_of(set))) return error;
  for (;;) {
    unsigned gpu, instance;
    unsigned long long number;
    snprintf(key, sizeof key, "xid.%ld", set->taken + 1);
    if (!(value = value_of(key))) return (error = lost_of(set)) ? error : TIMEOUT;
    set->taken++;
    if (sscanf(value, "%u %llu %u", &gpu, &number, &instance) != 3 || gpu >= GPUS) abort();
    if (!(set->types[gpu] & 8)) continue;
    Device *named = value_of("named") ? &gpus[atoi(value_of("named"))] : value_of("alias") ? &aliases[gpu] : &gpus[gpu];
    *data = (EventData){named, 8, number, instance, 0xFFFFFFFF};
    return SUCCESS;
  }
}
