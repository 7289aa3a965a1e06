/* The part of NVML's interface that a meter and an inventory use, answered by the simulated GPUs of model.c.
 * Structures and numbers follow NVML's public interface as nvidia-ml-py declares it. */
#define _GNU_SOURCE
#include "model.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999,
    UINT = 1, ULONGLONG = 3,
};

typedef struct gpu *device;
typedef int result;

static int initialized, configured;

/* Configuration: FAKE_NVML_CONFIG, else fake_nvml.conf beside this library. */
static result initialize(void) {
    char path[4096];
    const char *chosen = getenv("FAKE_NVML_CONFIG");
    if (!configured) {
        Dl_info info;
        if (!chosen && dladdr((void *)initialize, &info)) {
            snprintf(path, sizeof path, "%s", info.dli_fname);
            char *slash = strrchr(path, '/');
            snprintf(slash ? slash + 1 : path, sizeof path - (size_t)(slash ? slash + 1 - path : 0), "fake_nvml.conf");
            chosen = path;
        }
        int bad = load_config(chosen ? chosen : "fake_nvml.conf");
        if (bad) {
            fprintf(stderr, "fake_nvml: %s: line %d\n", chosen ? chosen : "fake_nvml.conf", bad);
            return UNKNOWN;
        }
        configured = 1;
    }
    if (machine.init_error) return machine.init_error;
    __sync_add_and_fetch(&initialized, 1);
    return OK;
}

/* For tests in the same process. */
int fake_nvml_configure(const char *path) {
    initialized = 0;
    configured = 1;
    return load_config(path);
}
int64_t fake_nvml_now_ns(void) { return now_ns(); }
int64_t fake_nvml_wall_ns(void) { return (int64_t)(wall_s(seconds(now_ns())) * 1e9); }
void fake_nvml_pass_ns(int64_t ns) { pass_ns(ns); }
double fake_nvml_power_w(int index, int64_t at_ns) { return index >= machine.gpu_count ? NAN : power_w(&machine.gpus[index], seconds(at_ns)); }
double fake_nvml_energy_j(int index, int64_t at_ns) { return index >= machine.gpu_count ? NAN : energy_j(&machine.gpus[index], seconds(at_ns)); }
double fake_nvml_counter_mj(int index, int64_t at_ns) { return index >= machine.gpu_count ? NAN : counter_mj(&machine.gpus[index], seconds(at_ns)); }

static int is_among(const char *words, const char *what) {
    size_t n = strlen(what);
    for (const char *at = words; (at = strstr(at, what)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return 1;
    return 0;
}

static int unsupported(device gpu, const char *what) { return is_among(gpu->unsupported, what); }

static int failing(device gpu, const char *what, double at_s) {
    if (at_s < gpu->failing_from_s || at_s >= gpu->failing_until_s) return 0;
    return !*gpu->failing || is_among(gpu->failing, what);
}

/* One call: it takes `cost`, and what it returns was true at a random instant inside it. */
static result call(device gpu, const char *what, double cost_s, double *at_s) {
    if (!initialized) return UNINITIALIZED;
    if (!gpu) return INVALID;
    double part = draw(gpu);
    pass_ns((int64_t)(cost_s * part * 1e9));
    *at_s = seconds(now_ns());
    pass_ns((int64_t)(cost_s * (1 - part) * 1e9));
    if (*at_s >= gpu->lost_at_s) return LOST;
    if (failing(gpu, what, *at_s)) return UNKNOWN;
    if (gpu->transient_error_every && gpu->calls % gpu->transient_error_every == 0) return UNKNOWN;
    return unsupported(gpu, what) ? NOT_SUPPORTED : OK;
}

#define BEGIN(what, cost) double t; result status = call(gpu, what, cost, &t); (void)t; if (status) return status
#define CHEAP 2e-6
#define USUAL 20e-6

static double read_cost(device gpu) {
    if (draw(gpu) < gpu->slow_probability) return gpu->slow_cost_s * (0.5 + 0.5 * draw(gpu));
    return gpu->read_cost_s * (0.8 + 0.4 * draw(gpu));
}

result nvmlInit_v2(void) { return initialize(); }
result nvmlInitWithFlags(unsigned flags) { (void)flags; return initialize(); }
result nvmlShutdown(void) { return initialized ? (__sync_sub_and_fetch(&initialized, 1), machine.shutdown_error) : UNINITIALIZED; }

const char *nvmlErrorString(result status) {
    switch (status) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case SMALL: return "Insufficient Size";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static result text(char *to, unsigned size, const char *from) {
    return (unsigned)snprintf(to, size, "%s", from) < size ? OK : SMALL;
}

result nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, machine.driver); }
result nvmlSystemGetNVMLVersion(char *to, unsigned size) { return text(to, size, machine.nvml); }
result nvmlSystemGetCudaDriverVersion(int *version) { *version = machine.cuda_driver; return OK; }
result nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = machine.cuda_driver; return OK; }
result nvmlSystemGetProcessName(unsigned pid, char *to, unsigned size) { (void)pid; return text(to, size, "process"); }

result nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    *count = (unsigned)machine.gpu_count;
    return machine.count_error;
}

result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu) {
    if (!initialized) return UNINITIALIZED;
    if (index >= (unsigned)machine.gpu_count) return INVALID;
    *gpu = &machine.gpus[index];
    return seconds(now_ns()) >= (*gpu)->lost_at_s ? LOST : OK;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, device *gpu) {
    for (int i = 0; i < machine.gpu_count; i++)
        if (!strcmp(machine.gpus[i].uuid, uuid)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, gpu);
    return NOT_FOUND;
}

result nvmlDeviceGetIndex(device gpu, unsigned *index) { BEGIN("index", CHEAP); *index = (unsigned)(gpu - machine.gpus); return OK; }
result nvmlDeviceGetMinorNumber(device gpu, unsigned *minor) { BEGIN("minor", CHEAP); *minor = (unsigned)(gpu - machine.gpus); return OK; }
result nvmlDeviceGetName(device gpu, char *to, unsigned size) { BEGIN("name", CHEAP); return text(to, size, gpu->name); }
result nvmlDeviceGetVbiosVersion(device gpu, char *to, unsigned size) { BEGIN("vbios", CHEAP); return text(to, size, gpu->vbios); }
result nvmlDeviceGetUUID(device gpu, char *to, unsigned size) { BEGIN("uuid", CHEAP); return text(to, size, gpu->uuid); }
result nvmlDeviceGetArchitecture(device gpu, unsigned *a) { BEGIN("architecture", CHEAP); *a = gpu->architecture; return OK; }

/* Whether CPU and GPU are linked chip to chip, which Zeus once took for a Grace Hopper; no simulated GPU answers. */
result nvmlDeviceGetC2cModeInfoV(device gpu, void *info) { (void)info; BEGIN("c2c", CHEAP); return NOT_SUPPORTED; }

static int there(const struct process *p, double t) { return t >= p->from_s && t < p->until_s; }

/* The GPU's own, and that of processes which no list shows or which come and go. */
static unsigned long long used_bytes(device gpu, double t) {
    unsigned long long used = gpu->memory_used_bytes;
    for (int i = 0; i < gpu->process_count; i++) {
        const struct process *p = &gpu->processes[i];
        if ((p->kind == 'h' || p->from_s > 0 || p->until_s < HUGE_VAL) && there(p, t)) used += p->memory_bytes;
    }
    return used;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

result nvmlDeviceGetMemoryInfo(device gpu, struct memory *m) {
    BEGIN("memory", USUAL);
    unsigned long long used = used_bytes(gpu, t) + gpu->memory_reserved_bytes;
    *m = (struct memory){gpu->memory_total_bytes, gpu->memory_total_bytes - used, used};
    return OK;
}

result nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *m) {
    BEGIN("memory", USUAL);
    if (unsupported(gpu, "memory_v2")) return VERSION_MISMATCH;
    unsigned long long used = used_bytes(gpu, t), free = gpu->memory_total_bytes - used - gpu->memory_reserved_bytes;
    *m = (struct memory_v2){m->version, gpu->memory_total_bytes, gpu->memory_reserved_bytes, free, used};
    return OK;
}

result nvmlDeviceGetTotalEnergyConsumption(device gpu, unsigned long long *mj) {
    BEGIN("energy", read_cost(gpu));
    *mj = (unsigned long long)counter_mj(gpu, t);
    return OK;
}

static double mean_power_w(device gpu, double t) { return energy_j(gpu, t) - energy_j(gpu, t - 1.0); }

result nvmlDeviceGetPowerUsage(device gpu, unsigned *mw) {
    BEGIN("power", CHEAP);
    *mw = (unsigned)(1000 * mean_power_w(gpu, t));
    return OK;
}

struct sample { unsigned long long at_us; union { double d; unsigned ui; unsigned long long ull; } value; };

/* Power only, of which the driver keeps the latest SAMPLES; those after `seen_us` are given, the oldest first. */
result nvmlDeviceGetSamples(device gpu, int type, unsigned long long seen_us, unsigned *value_type, unsigned *count, struct sample *to) {
    BEGIN("samples", 150e-6);
    /* 0 is the GPU's power, 7 the module's. */
    if (type == 7 && !gpu->module_w) return INVALID;
    if ((type && type != 7) || (!type && unsupported(gpu, "gpu_power"))) return NOT_SUPPORTED;
    *value_type = UINT;
    if (!to) { *count = SAMPLES; return OK; }
    int64_t last = (int64_t)floor(t / gpu->sample_period_s) + 1;
    while (sample_at_s(gpu, last) > t) last--;
    unsigned given = 0;
    for (int64_t k = last - SAMPLES + 1; k <= last && given < *count; k++) {
        unsigned long long at_us = (unsigned long long)(wall_s(sample_at_s(gpu, k)) * 1e6);
        if (!sample_exists(gpu, k) || at_us <= seen_us) continue;
        to[given].at_us = at_us;
        to[given++].value.ui = (unsigned)(1000 * (sample_w(gpu, k) + (type ? gpu->module_w : 0)) + 0.5);
    }
    *count = given;
    return given ? OK : NOT_FOUND;
}

struct field {
    unsigned id, scope;
    long long timestamp_us, latency_us;
    unsigned type;
    result status;
    union { double d; unsigned ui; unsigned long long ull; } value;
};

/* Power of a scope, of which the GPU draws `gpu_w`: 0 is the GPU, 1 the module, 2 the memory. */
static result scoped(device gpu, const struct field *f, const char *word, double gpu_w, double *watts) {
    double shares[] = {1, 1, gpu->hbm_share};
    if (f->scope > 2 || unsupported(gpu, f->scope == 2 ? "hbm_power" : word)) return f->scope > 2 ? INVALID : NOT_SUPPORTED;
    if ((f->scope == 1 && !gpu->module_w) || (!f->scope && unsupported(gpu, "gpu_power"))) return NOT_SUPPORTED;
    *watts = shares[f->scope] * gpu_w + (f->scope == 1 ? gpu->module_w : 0);
    return OK;
}

static void field_value(device gpu, struct field *f, double t) {
    double watts = 0;
    f->status = OK;
    f->type = UINT;
    switch (f->id) {
    case 82: f->status = unsupported(gpu, "memory_temperature") ? NOT_SUPPORTED : OK; f->value.ui = (unsigned)gpu->memory_temperature_c; break;
    case 83: f->status = unsupported(gpu, "energy") ? NOT_SUPPORTED : OK; f->type = ULONGLONG; f->value.ull = (unsigned long long)counter_mj(gpu, t); break;
    case 185: f->status = scoped(gpu, f, "power_average", mean_power_w(gpu, t), &watts); f->value.ui = (unsigned)(1000 * watts); break;
    case 186:
        /* The memory's power is a mean only. */
        f->status = f->scope == 2 ? NOT_SUPPORTED : scoped(gpu, f, "power_instant", power_w(gpu, t - gpu->power_lag_s), &watts);
        f->value.ui = (unsigned)(1000 * gpu->power_reading_factor * watts);
        break;
    case 251: f->status = gpu->power_smoothing < 0 ? NOT_SUPPORTED : OK; f->value.ui = (unsigned)gpu->power_smoothing; break;
    case 264: f->status = gpu->power_smoothing < 0 ? NOT_SUPPORTED : OK; f->value.ui = gpu->power_smoothing_profile; break;
    default: f->status = NOT_SUPPORTED;
    }
}

result nvmlDeviceGetFieldValues(device gpu, int count, struct field *fields) {
    /* That a GPU has no module, an H200's driver knows without a look at the GPU: it answers in less than 0.01 ms. */
    if (gpu && count == 1 && fields->scope == 1 && !gpu->module_w) return fields->status = NOT_SUPPORTED, OK;
    BEGIN("fields", USUAL);
    for (int i = 0; i < count; i++) field_value(gpu, &fields[i], t);
    return OK;
}

struct current_profiles { unsigned version, valid[8], requested[8], enforced[8]; };

result nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(device gpu, struct current_profiles *p) {
    BEGIN("power_profiles", USUAL);
    if (!gpu->requested.known || !gpu->enforced.known) return NOT_SUPPORTED;
    if (p->version != (sizeof *p | 1u << 24)) return VERSION_MISMATCH;
    memset(p->valid, 0xff, sizeof p->valid);
    memcpy(p->requested, gpu->requested.mask, sizeof p->requested);
    memcpy(p->enforced, gpu->enforced.mask, sizeof p->enforced);
    return OK;
}

struct temperature { unsigned version, sensor; int celsius; };

result nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *celsius) {
    BEGIN("temperature", USUAL);
    if (sensor) return INVALID;
    *celsius = (unsigned)gpu->temperature_c;
    return OK;
}

result nvmlDeviceGetTemperatureV(device gpu, struct temperature *x) {
    BEGIN("temperature", USUAL);
    x->celsius = (int)gpu->temperature_c;
    return OK;
}

static unsigned clock_of(device gpu, unsigned kind, int max) {
    if (kind == 2) return max ? gpu->memory_clock_max_mhz : gpu->memory_clock_mhz;
    return max ? gpu->sm_clock_max_mhz : gpu->sm_clock_mhz;
}

result nvmlDeviceGetClockInfo(device gpu, unsigned kind, unsigned *mhz) { BEGIN("clocks", USUAL); *mhz = clock_of(gpu, kind, 0); return OK; }
result nvmlDeviceGetMaxClockInfo(device gpu, unsigned kind, unsigned *mhz) { BEGIN("clocks", USUAL); *mhz = clock_of(gpu, kind, 1); return OK; }
result nvmlDeviceGetPerformanceState(device gpu, unsigned *state) { BEGIN("pstate", USUAL); *state = 0; return OK; }

struct violation { unsigned long long reference_us, violation_ns; };

/* Time above `throttle_above_w` (power) or `thermal_above_w`, counted in steps of 10 ms: a figure that grows, not a model. */
result nvmlDeviceGetViolationStatus(device gpu, unsigned policy, struct violation *v) {
    BEGIN("violation", USUAL);
    v->reference_us = (unsigned long long)(t > 0 ? t * 1e6 : 0);
    v->violation_ns = 0;
    double above_w = policy == 0 ? gpu->throttle_above_w : policy == 1 ? gpu->thermal_above_w : HUGE_VAL;
    for (double at = 0; above_w < HUGE_VAL && at < t; at += 0.01)
        if (power_w(gpu, at) > above_w) v->violation_ns += 10000000;
    return OK;
}

struct utilization { unsigned gpu, memory; };

result nvmlDeviceGetUtilizationRates(device gpu, struct utilization *u) {
    BEGIN("utilization", USUAL);
    *u = (struct utilization){gpu->utilization_percent ? gpu->utilization_percent : power_w(gpu, t) > gpu->load_w ? 100 : 0, 0};
    return OK;
}

result nvmlDeviceGetEnforcedPowerLimit(device gpu, unsigned *mw) { BEGIN("power_limit", USUAL); *mw = (unsigned)(1000 * (t < gpu->power_limit_changes_at_s ? gpu->power_limit_w : gpu->power_limit_then_w)); return OK; }
result nvmlDeviceGetPowerManagementLimit(device gpu, unsigned *mw) { return nvmlDeviceGetEnforcedPowerLimit(gpu, mw); }
result nvmlDeviceGetPowerManagementDefaultLimit(device gpu, unsigned *mw) { BEGIN("power_limit", USUAL); *mw = (unsigned)(1000 * gpu->power_limit_default_w); return OK; }
result nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *bits) { BEGIN("reasons", USUAL); *bits = (power_w(gpu, t) > gpu->throttle_above_w ? 4u : 0) | (gpu->clocks_limited ? 2u : 0); return OK; }
result nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *bits) { return nvmlDeviceGetCurrentClocksEventReasons(gpu, bits); }
result nvmlDeviceGetPersistenceMode(device gpu, unsigned *on) { BEGIN("persistence", USUAL); *on = gpu->persistence; return OK; }
result nvmlDeviceGetEccMode(device gpu, unsigned *now, unsigned *next) { BEGIN("ecc", USUAL); *now = *next = gpu->ecc; return OK; }
result nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *next) { BEGIN("mig", USUAL); *now = *next = gpu->mig; return OK; }

result nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    BEGIN("compute_capability", CHEAP);
    *major = (int)gpu->compute_major;
    *minor = (int)gpu->compute_minor;
    return OK;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

result nvmlDeviceGetPciInfo_v3(device gpu, struct pci *p) {
    BEGIN("pci", USUAL);
    memset(p, 0, sizeof *p);
    p->bus = 0x10 + (unsigned)(gpu - machine.gpus);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus);
    return OK;
}

static int index_of(device gpu) { return (int)(gpu - machine.gpus); }

/* Links between two GPUs: direct ones, or as many as both have to a switch. */
static int links_between(device a, device b) {
    int direct = 0, a_switch = 0, b_switch = 0;
    for (int i = 0; i < a->nvlink_count; i++) {
        direct += a->nvlink_peers[i] == index_of(b);
        a_switch += a->nvlink_peers[i] < 0;
    }
    for (int i = 0; i < b->nvlink_count; i++) b_switch += b->nvlink_peers[i] < 0;
    return direct ? direct : a_switch < b_switch ? a_switch : b_switch;
}

#define LINK(what) BEGIN(what, USUAL); if (link >= MAX_LINKS) return INVALID; if (!gpu->nvlink_count) return NOT_SUPPORTED

result nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *on) { LINK("nvlink"); *on = link < (unsigned)gpu->nvlink_count; return OK; }
result nvmlDeviceGetNvLinkVersion(device gpu, unsigned link, unsigned *version) { LINK("nvlink"); *version = gpu->nvlink_version; return OK; }

result nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, struct pci *p) {
    LINK("nvlink_remote");
    if (link >= (unsigned)gpu->nvlink_count) return INVALID;
    if (gpu->nvlink_peers[link] >= 0) return nvmlDeviceGetPciInfo_v3(&machine.gpus[gpu->nvlink_peers[link]], p);
    memset(p, 0, sizeof *p);
    p->bus = 0xA0;
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:A0:00.0");
    return OK;
}

result nvmlDeviceGetTopologyCommonAncestor(device gpu, device other, int *level) {
    BEGIN("topology", USUAL);
    *level = gpu->numa_node != other->numa_node ? 50 : gpu->pcie_switch != other->pcie_switch ? 40 : 10;
    return OK;
}

/* 2 is NVLink, 0 reading; 5 is "not supported". */
result nvmlDeviceGetP2PStatus(device gpu, device other, int what, int *answer) {
    BEGIN("p2p", USUAL);
    int linked = links_between(gpu, other) > 0, near = gpu->numa_node == other->numa_node && gpu->pcie_switch == other->pcie_switch;
    *answer = linked || (what != 2 && near) ? 0 : 5;
    return OK;
}

result nvmlDeviceGetCurrPcieLinkGeneration(device gpu, unsigned *g) { BEGIN("pcie", USUAL); *g = gpu->pcie_generation; return OK; }
result nvmlDeviceGetMaxPcieLinkGeneration(device gpu, unsigned *g) { BEGIN("pcie", USUAL); *g = gpu->pcie_generation_max; return OK; }
result nvmlDeviceGetCurrPcieLinkWidth(device gpu, unsigned *w) { BEGIN("pcie", USUAL); *w = gpu->pcie_width; return OK; }
result nvmlDeviceGetMaxPcieLinkWidth(device gpu, unsigned *w) { BEGIN("pcie", USUAL); *w = gpu->pcie_width_max; return OK; }

result nvmlDeviceGetMemoryAffinity(device gpu, unsigned size, unsigned long *nodes, unsigned scope) {
    BEGIN("affinity", USUAL);
    (void)scope;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[gpu->numa_node / 64] = 1ul << (gpu->numa_node % 64);
    return OK;
}

static struct gpu slices[MAX_GPUS][MAX_SLICES];

result nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *n) { BEGIN("mig", USUAL); *n = gpu->mig ? MAX_SLICES : 0; return OK; }

result nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *slice) {
    BEGIN("mig", USUAL);
    if (index >= gpu->mig_slices) return NOT_FOUND;
    *slice = &slices[index_of(gpu)][index];
    **slice = *gpu;
    snprintf((*slice)->uuid, TEXT, "MIG-%d%u", index_of(gpu), index);
    snprintf((*slice)->name, TEXT, "%.80s MIG 1g", gpu->name);
    return OK;
}

struct process_v3 { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

/* The first child of a process, 0 without one. */
static unsigned child_of(unsigned pid) {
    char path[64];
    unsigned child = 0;
    snprintf(path, sizeof path, "/proc/%u/task/%u/children", pid, pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%u", &child) != 1) child = 0;
    fclose(file);
    return child;
}

/* The process whose second word is this, 0 without one. */
static unsigned running(const char *script) {
    unsigned found = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && !found && (entry = readdir(all));) {
        char path[300], line[4096] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = isdigit(entry->d_name[0]) ? fopen(path, "r") : NULL;
        if (file && fread(line, 1, sizeof line - 2, file) && !strcmp(line + strlen(line) + 1, script)) found = (unsigned)atoi(entry->d_name);
        if (file) fclose(file);
    }
    if (all) closedir(all);
    return found;
}

/* The runner of the coordinator that asks: its keeper's child, or in a container the script that a variable names. */
static unsigned runner(void) {
    const char *script = getenv("FAKE_NVML_RUNNER");
    if (script) return running(script);
    unsigned keeper = child_of((unsigned)getpid());
    return keeper ? child_of(keeper) : 0;
}

static result processes(device gpu, unsigned *count, struct process_v3 *to, char kind) {
    BEGIN("processes", gpu->process_cost_s);
    unsigned found = 0;
    for (int i = 0; i < gpu->process_count; i++) {
        const struct process *p = &gpu->processes[i];
        unsigned pid = p->pid ? p->pid : runner();
        if (p->kind != kind || !pid || !there(p, t) || (p->beside_runner && !runner())) continue;
        if (to && found < *count)
            to[found] = (struct process_v3){pid, p->memory_bytes, ~0u, ~0u};
        found++;
    }
    result answer = found > *count || (found && !to) ? SMALL : OK;
    *count = found;
    return answer;
}

/* The structure is that of v3. */
result nvmlDeviceGetComputeRunningProcesses_v2(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'c'); }
result nvmlDeviceGetGraphicsRunningProcesses_v2(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'g'); }
result nvmlDeviceGetMPSComputeRunningProcesses_v2(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'm'); }
result nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'c'); }
result nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'g'); }
result nvmlDeviceGetMPSComputeRunningProcesses_v3(device gpu, unsigned *n, struct process_v3 *to) { return processes(gpu, n, to, 'm'); }
