/* A stand-in for libamd_smi.so: the functions that goodput's AMD driver calls, answered from a text file.
 *
 * The file is named by GOODPUT_AMDSMI_STUB and read at every call. A line is `key value`; keys are
 *   version              numbers of amdsmi_version_t as this release writes them, such as `24 7 1 0` or `26 0 2`
 *   count                how many GPUs, each a socket of its own
 *   D.bdf                PCI address of GPU D, such as 0000:1b:00.0
 *   D.FUNCTION           its numbers in the order of the structure, or its text; D may be * for all
 *   D.FUNCTION.ARGUMENT  the same for one argument: a block of error counts
 *   D.metrics.FIELD      numbers of a field of amdsmi_gpu_metrics_t; the others are all ones
 *   event.N              `D number`: notification N, counted from 1; of a process other than the caller, if number is 1
 * An answer `!10` is the status 10, and what has no line is not supported (2). Structures are those of amdsmi.h; what a
 * function returns is written in full, with padding and reserved words as 0xA5.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, NOT_INITIALIZED = 32, NO_DATA = 40, GPUS = 16 };

typedef struct { int number; } Processor;
static Processor processors[GPUS];
static int initialized, taken_events, watched;

/* The value of the line with this key in `text`, 0 where there is none. */
static int value_of(const char *key, char text[4096]) {
  char line[4300];
  size_t length = strlen(key);
  int found = 0;
  const char *path = getenv("GOODPUT_AMDSMI_STUB");
  FILE *file = path ? fopen(path, "r") : 0;
  if (!file) abort();
  while (!found && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, key, length) && line[length] == ' ') {
      strcpy(text, line + length + 1);
      found = 1;
    }
  }
  fclose(file);
  return found;
}

static int ask(const Processor *processor, const char *function, long argument, char text[4096]) {
  char key[160];
  if (!initialized) return NOT_INITIALIZED;
  if (processor < processors || processor >= processors + GPUS) return INVALID;
  snprintf(key, sizeof key, "%d.*", processor->number);
  if (!value_of(key, text)) {
    snprintf(key, sizeof key, "%d.%s.%ld", processor->number, function, argument);
    if (!value_of(key, text)) {
      snprintf(key, sizeof key, "%d.%s", processor->number, function);
      if (!value_of(key, text)) {
        snprintf(key, sizeof key, "*.%s", function);
        if (!value_of(key, text)) return NOT_SUPPORTED;
      }
    }
  }
  return *text == '!' ? atoi(text + 1) : SUCCESS;
}

static int count_of(void) {
  char text[4096];
  return value_of("count", text) ? atoi(text) : 0;
}

typedef struct { uint32_t major, minor, release; const char *build; } Version;
typedef struct { uint32_t year, major, minor, release; const char *build; } VersionWithYear;

/* Works before amdsmi_init, as the library's does. */
int amdsmi_get_lib_version(void *version) {
  char text[4096];
  uint32_t numbers[4] = {0};
  if (!value_of("version", text)) abort();
  int count = sscanf(text, "%u %u %u %u", &numbers[0], &numbers[1], &numbers[2], &numbers[3]);
  if (count == 3) *(Version *)version = (Version){numbers[0], numbers[1], numbers[2], "stub"};
  else *(VersionWithYear *)version = (VersionWithYear){numbers[0], numbers[1], numbers[2], numbers[3], "stub"};
  return SUCCESS;
}

int amdsmi_init(uint64_t flags) {
  char text[4096];
  if (flags != 2) return INVALID;
  if (value_of("init", text)) return atoi(text + 1);
  initialized++;
  for (int i = 0; i < GPUS; i++) processors[i].number = i;
  return SUCCESS;
}

int amdsmi_shut_down(void) {
  if (!initialized) return NOT_INITIALIZED;
  initialized--;
  return SUCCESS;
}

/* For tests: amdsmi_init without amdsmi_shut_down, and notifications that were begun and not ended. */
int stub_initialized(void) { return initialized; }
int stub_watched(void) { return watched; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
  if (!initialized) return NOT_INITIALIZED;
  if (sockets)
    for (uint32_t i = 0; i < *count; i++) sockets[i] = &processors[i];
  else *count = count_of();
  return SUCCESS;
}

int amdsmi_get_processor_handles(void *sock, uint32_t *count, void **handles) {
  *count = 1;
  if (handles) handles[0] = sock;
  return SUCCESS;
}

int amdsmi_get_gpu_device_bdf(Processor *processor, uint64_t *bdf) {
  char text[4096];
  unsigned domain, bus, device, function;
  int status = ask(processor, "bdf", 0, text);
  if (status) return status;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) abort();
  *bdf = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
  return SUCCESS;
}

static int ask_numbers(Processor *processor, const char *function, long argument, uint64_t *numbers, int count) {
  char text[4096], *rest = text;
  int status = ask(processor, function, argument, text);
  for (int i = 0; !status && i < count; i++) numbers[i] = strtoull(rest, &rest, 0);
  return status;
}

int amdsmi_get_gpu_ecc_enabled(Processor *processor, uint64_t *blocks) {
  return ask_numbers(processor, "amdsmi_get_gpu_ecc_enabled", 0, blocks, 1);
}

/* Type 0 is the GPU's own memory. */
#define MEMORY(function)                                         \
  int function(Processor *processor, int type, uint64_t *bytes) { \
    return type ? INVALID : ask_numbers(processor, #function, 0, bytes, 1); \
  }
MEMORY(amdsmi_get_gpu_memory_total)
MEMORY(amdsmi_get_gpu_memory_usage)

typedef struct { uint64_t correctable, uncorrectable, deferred, reserved[5]; } Errors;
_Static_assert(sizeof(Errors) == 64, "amdsmi_error_count_t");

int amdsmi_get_gpu_ecc_count(Processor *processor, uint64_t block, Errors *errors) {
  memset(errors, 0xA5, sizeof *errors);
  return ask_numbers(processor, "amdsmi_get_gpu_ecc_count", block, &errors->correctable, 3);
}

typedef struct { char market_name[256]; char rest[640]; } Asic;
_Static_assert(sizeof(Asic) == 896, "amdsmi_asic_info_t");

int amdsmi_get_gpu_asic_info(Processor *processor, Asic *asic) {
  char text[4096];
  int status = ask(processor, "amdsmi_get_gpu_asic_info", 0, text);
  memset(asic, 0xA5, sizeof *asic);
  if (!status) snprintf(asic->market_name, sizeof asic->market_name, "%.255s", text);
  return status;
}

typedef struct { uint32_t total, status[8], padding; uint64_t reserved[7]; } LinkStatus;
_Static_assert(sizeof(LinkStatus) == 96, "amdsmi_xgmi_link_status_t");

int amdsmi_get_gpu_xgmi_link_status(Processor *processor, LinkStatus *links) {
  uint64_t numbers[9];
  memset(links, 0xA5, sizeof *links);
  int status = ask_numbers(processor, "amdsmi_get_gpu_xgmi_link_status", 0, numbers, 9);
  if (status) return status;
  links->total = numbers[0];
  for (int i = 0; i < 8; i++) links->status[i] = numbers[i + 1];
  return SUCCESS;
}

typedef struct { uint64_t address, size; uint32_t status; } Page;
_Static_assert(sizeof(Page) == 24, "amdsmi_retired_page_record_t");

/* The answer is the status of each page. */
int amdsmi_get_gpu_bad_page_info(Processor *processor, uint32_t *count, Page *pages) {
  char text[4096], *rest = text, *end;
  uint32_t found = 0;
  int status = ask(processor, "amdsmi_get_gpu_bad_page_info", 0, text);
  if (status) return status;
  for (;; rest = end, found++) {
    long page = strtol(rest, &end, 10);
    if (end == rest) break;
    if (pages && found < *count) pages[found] = (Page){0x1000 * found, 4096, page};
  }
  *count = found;
  return SUCCESS;
}

#define LINKS 8
typedef struct {
  uint16_t structure_size;
  uint8_t format_revision, content_revision;
  uint16_t temperature_edge, temperature_hotspot, temperature_mem, temperature_vrgfx, temperature_vrsoc, temperature_vrmem;
  uint16_t average_gfx_activity, average_umc_activity, average_mm_activity, average_socket_power;
  uint64_t energy_accumulator, system_clock_counter;
  uint16_t average_clocks[7], current_gfxclk, current_socclk, current_uclk, current_video_clocks[4];
  uint32_t throttle_status;
  uint16_t current_fan_speed, pcie_link_width, pcie_link_speed;
  uint32_t gfx_activity_acc, mem_activity_acc;
  uint16_t temperature_hbm[4];
  uint64_t firmware_timestamp;
  uint16_t voltage_soc, voltage_gfx, voltage_mem;
  uint64_t indep_throttle_status;
  uint16_t current_socket_power, vcn_activity[4];
  uint32_t gfxclk_lock_status;
  uint16_t xgmi_link_width, xgmi_link_speed;
  uint64_t pcie_bandwidth_acc, pcie_bandwidth_inst, pcie_l0_to_recov_count_acc, pcie_replay_count_acc, pcie_replay_rover_count_acc;
  uint64_t xgmi_read_data_acc[LINKS], xgmi_write_data_acc[LINKS];
  uint16_t current_gfxclks[8], current_socclks[4], current_vclk0s[4], current_dclk0s[4], jpeg_activity[32];
  uint32_t pcie_nak_sent_count_acc, pcie_nak_rcvd_count_acc;
  uint64_t accumulation_counter, prochot_residency_acc, ppt_residency_acc, socket_thm_residency_acc, vr_thm_residency_acc,
      hbm_thm_residency_acc;
  uint16_t num_partition;
  char rest[4062];
} Metrics;
_Static_assert(offsetof(Metrics, indep_throttle_status) == 112, "amdsmi_gpu_metrics_t");
_Static_assert(offsetof(Metrics, xgmi_read_data_acc) == 184, "amdsmi_gpu_metrics_t");
_Static_assert(offsetof(Metrics, accumulation_counter) == 424, "amdsmi_gpu_metrics_t");
_Static_assert(sizeof(Metrics) == 4536 || sizeof(Metrics) == 4544, "amdsmi_gpu_metrics_t");

#define FIELD(name, index) {#name, offsetof(Metrics, name), sizeof(((Metrics *)0)->name), sizeof(((Metrics *)0)->name index)}
static const struct { const char *name; size_t offset, size, each; } fields[] = {
    FIELD(temperature_edge, ),       FIELD(temperature_hotspot, ),     FIELD(temperature_mem, ),
    FIELD(average_gfx_activity, ),   FIELD(average_umc_activity, ),    FIELD(average_socket_power, ),
    FIELD(energy_accumulator, ),     FIELD(current_gfxclk, ),          FIELD(current_uclk, ),
    FIELD(pcie_link_width, ),        FIELD(pcie_link_speed, ),         FIELD(indep_throttle_status, ),
    FIELD(current_socket_power, ),   FIELD(pcie_replay_count_acc, ),   FIELD(xgmi_read_data_acc, [0]),
    FIELD(xgmi_write_data_acc, [0]), FIELD(current_gfxclks, [0]),      FIELD(accumulation_counter, ),
    FIELD(prochot_residency_acc, ),  FIELD(ppt_residency_acc, ),       FIELD(socket_thm_residency_acc, ),
    FIELD(vr_thm_residency_acc, ),   FIELD(hbm_thm_residency_acc, ),   FIELD(pcie_l0_to_recov_count_acc, ),
    FIELD(pcie_nak_sent_count_acc, ), FIELD(pcie_nak_rcvd_count_acc, ), FIELD(average_mm_activity, ),
    FIELD(vcn_activity, [0]),        FIELD(jpeg_activity, [0]),
};

int amdsmi_get_gpu_metrics_info(Processor *processor, Metrics *metrics) {
  char text[4096] = "", key[64];
  int status = ask(processor, "amdsmi_get_gpu_metrics_info", 0, text);
  if (status && (status != NOT_SUPPORTED || *text == '!')) return status;
  memset(metrics, 0xFF, sizeof *metrics);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    char *rest = text;
    snprintf(key, sizeof key, "%d.metrics.%s", processor->number, fields[i].name);
    if (!value_of(key, text)) continue;
    for (size_t at = 0; at < fields[i].size && *rest; at += fields[i].each) {
      uint64_t number = strtoull(rest, &rest, 0);
      memcpy((char *)metrics + fields[i].offset + at, &number, fields[i].each);
    }
  }
  return SUCCESS;
}

/* Events: amdsmi_evt_notification_data_t has texts of 64 to 256 characters, by release. */
typedef struct { Processor *processor; uint32_t event; char message[256]; } Notification;
_Static_assert(sizeof(Notification) == 272, "amdsmi_evt_notification_data_t");

int amdsmi_init_gpu_event_notification(Processor *processor) {
  char text[4096];
  int status = ask(processor, "amdsmi_init_gpu_event_notification", 0, text);
  if (!status) watched++;
  return status;
}

/* The kernel sends only the events whose bits are set, and of other processes only with bit 64. */
static uint64_t masks[GPUS];

int amdsmi_set_gpu_event_notification_mask(Processor *processor, uint64_t mask) {
  char text[4096];
  int status = ask(processor, "amdsmi_set_gpu_event_notification_mask", 0, text);
  if (status && status != NOT_SUPPORTED) return status;
  if (!mask) return INVALID;
  masks[processor->number] = mask;
  return SUCCESS;
}

int amdsmi_stop_gpu_event_notification(Processor *processor) {
  if (!processor || !watched) return INVALID;
  watched--;
  return SUCCESS;
}

int amdsmi_get_gpu_event_notification(int timeout_ms, uint32_t *count, Notification *notification) {
  char text[4096], key[32];
  unsigned gpu, event;
  if (timeout_ms || *count != 1) abort();
  do {
    snprintf(key, sizeof key, "event.%d", taken_events + 1);
    if (!value_of(key, text)) return *count = 0, NO_DATA;
    taken_events++;
    if (sscanf(text, "%u %u", &gpu, &event) != 2 || gpu >= GPUS || !event || event > 63) abort();
  } while (!(masks[gpu] >> (event - 1) & 1) || (event == 1 && !(masks[gpu] >> 63)));
  memset(notification, 0xA5, sizeof *notification);
  notification->processor = &processors[gpu];
  notification->event = event;
  strcpy(notification->message, "stub");
  return SUCCESS;
}
