/* Closed-form power and energy, a counter that steps with jitter, and a clock that is real or one per thread. */
#define _GNU_SOURCE
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct machine machine;

/* Virtual time is one per thread: a meter with one thread per GPU is then as deterministic as one GPU alone. */
static volatile int64_t virtual_generation = 1;
static __thread int64_t virtual_ns, virtual_seen;

int64_t now_ns(void) {
    if (!machine.virtual_clock) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    }
    if (virtual_seen != virtual_generation) {
        virtual_seen = virtual_generation;
        virtual_ns = machine.origin_ns;
    }
    return virtual_ns;
}

void pass_ns(int64_t ns) {
    if (ns <= 0) return;
    if (machine.virtual_clock) {
        now_ns();
        virtual_ns += ns;
        return;
    }
    struct timespec ts = {ns / 1000000000, ns % 1000000000};
    nanosleep(&ts, NULL);
}

double seconds(int64_t ns) { return (double)(ns - machine.origin_ns) * 1e-9; }

/* splitmix64: random access, so that any thread or process sees the same ticks. */
static double hashed(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0x9E3779B97F4A7C15ull + index * 0xD1B54A32D192ED03ull + 0x632BE59BD9B4E019ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

double draw(struct gpu *gpu) { return hashed(gpu->seed ^ 0xC0FFEE, __sync_add_and_fetch(&gpu->calls, 1)); }

static double segment_power(const struct segment *s, double t) {
    switch (s->shape) {
    case CONSTANT: return s->p[0];
    case RAMP: return s->p[0] + (s->p[1] - s->p[0]) * t / s->duration_s;
    case SINE: return s->p[0] + s->p[1] * sin(2 * M_PI * t / s->p[2] + s->p[3]);
    default: {
        double x = (t + s->p[4]) / s->p[2];
        return x - floor(x) < s->p[3] ? s->p[1] : s->p[0];
    }
    }
}

/* Integral of a square wave of unit height from x = 0, x in periods. */
static double square_area(double x, double duty) {
    double part = x - floor(x);
    return floor(x) * duty + (part < duty ? part : duty);
}

static double segment_energy(const struct segment *s, double t) {
    switch (s->shape) {
    case CONSTANT: return s->p[0] * t;
    case RAMP: return s->p[0] * t + (s->p[1] - s->p[0]) * t * t / (2 * s->duration_s);
    case SINE: {
        double omega = 2 * M_PI / s->p[2];
        return s->p[0] * t + s->p[1] / omega * (cos(s->p[3]) - cos(omega * t + s->p[3]));
    }
    default: {
        double area = square_area((t + s->p[4]) / s->p[2], s->p[3]) - square_area(s->p[4] / s->p[2], s->p[3]);
        return s->p[0] * t + (s->p[1] - s->p[0]) * s->p[2] * area;
    }
    }
}

double power_w(const struct gpu *gpu, double t) {
    if (t < 0) t = 0;
    for (int i = 0; i < gpu->segment_count; i++) {
        const struct segment *s = &gpu->segments[i];
        if (t < s->duration_s) return segment_power(s, t);
        t -= s->duration_s;
    }
    const struct segment *last = &gpu->segments[gpu->segment_count - 1];
    return segment_power(last, last->duration_s);
}

double energy_j(const struct gpu *gpu, double t) {
    if (t < 0) return power_w(gpu, 0) * t;
    double total = 0;
    for (int i = 0; i < gpu->segment_count; i++) {
        const struct segment *s = &gpu->segments[i];
        if (t < s->duration_s) return total + segment_energy(s, t);
        total += segment_energy(s, s->duration_s);
        t -= s->duration_s;
    }
    return total + power_w(gpu, 1e300) * t;
}

/* What the counter has counted. */
static double counted_j(const struct gpu *gpu, double t) { return energy_j(gpu, t) + (gpu->counts_module ? gpu->module_w * t : 0); }

static double tick_s(const struct gpu *gpu, int64_t k) {
    double nominal = gpu->phase_s + (double)k * gpu->period_s;
    double jitter = power_w(gpu, nominal) > gpu->load_w ? gpu->jitter_load_s : gpu->jitter_idle_s;
    return nominal + jitter * (2 * hashed(gpu->seed, (uint64_t)k) - 1);
}

static int dropped(const struct gpu *gpu, int64_t k) {
    return hashed(gpu->seed ^ 0xD20D, (uint64_t)k) < gpu->drop_probability;
}

double counter_mj(const struct gpu *gpu, double t) {
    if (t > gpu->frozen_at_s) {
        struct gpu sound = *gpu;
        sound.frozen_at_s = HUGE_VAL;
        double lost_mj = t < gpu->thaws_at_s ? 0 : counter_mj(&sound, gpu->thaws_at_s) - counter_mj(gpu, gpu->frozen_at_s);
        return counter_mj(&sound, t < gpu->thaws_at_s ? gpu->frozen_at_s : t) - lost_mj;
    }
    int64_t k = (int64_t)floor((t - gpu->phase_s) / gpu->period_s) + 1;
    while (tick_s(gpu, k) > t || dropped(gpu, k)) k--;
    double seen = tick_s(gpu, k), mj = gpu->counter_offset_mj + 1000 * counted_j(gpu, seen - gpu->lag_s);
    if (seen >= gpu->jumps_at_s && seen < gpu->jumps_until_s) mj = fmax(0, mj + gpu->jump_mj);
    if (seen >= gpu->reset_at_s) mj = 1000 * (counted_j(gpu, seen - gpu->lag_s) - counted_j(gpu, gpu->reset_at_s - gpu->lag_s));
    return floor(mj / gpu->counter_step_mj) * gpu->counter_step_mj;
}

/* The time of day, in seconds since 1970; on the virtual clock the one at its origin is arbitrary. */
double wall_s(double t) {
    struct timespec day = {1700000000, 0}, up = {(time_t)(machine.origin_ns / 1000000000), machine.origin_ns % 1000000000};
    if (!machine.virtual_clock) {
        clock_gettime(CLOCK_REALTIME, &day);
        clock_gettime(CLOCK_MONOTONIC, &up);
    }
    double origin_s = (double)day.tv_sec + day.tv_nsec * 1e-9 - seconds(up.tv_sec * 1000000000ll + up.tv_nsec);
    return origin_s + t + (t >= machine.wall_steps_at_s ? machine.wall_step_s : 0);
}

/* Where a sample's mean ends. */
static double sample_end_s(const struct gpu *gpu, int64_t index) {
    return (double)index * gpu->sample_period_s + gpu->sample_jitter_s * (2 * hashed(gpu->seed ^ 0x5A, (uint64_t)index) - 1);
}

double sample_at_s(const struct gpu *gpu, int64_t index) { return sample_end_s(gpu, index) + gpu->sample_lag_s; }

int sample_exists(const struct gpu *gpu, int64_t index) {
    double at_s = sample_at_s(gpu, index);
    if (at_s >= gpu->sample_gap_from_s && at_s < gpu->sample_gap_until_s) return 0;
    return hashed(gpu->seed ^ 0xD05, (uint64_t)index) >= gpu->sample_drop_probability;
}

double sample_w(const struct gpu *gpu, int64_t index) {
    double end_s = sample_end_s(gpu, index);
    return (energy_j(gpu, end_s) - energy_j(gpu, end_s - gpu->sample_width_s)) / gpu->sample_width_s * gpu->power_reading_factor;
}

static void defaults(struct gpu *gpu) {
    memset(gpu, 0, sizeof *gpu);
    gpu->period_s = 0.1;
    gpu->counter_step_mj = 1;
    gpu->reset_at_s = gpu->failing_from_s = gpu->failing_until_s = gpu->lost_at_s = gpu->frozen_at_s = gpu->thaws_at_s = gpu->jumps_at_s = gpu->jumps_until_s = gpu->power_limit_changes_at_s = gpu->throttle_above_w = gpu->thermal_above_w = gpu->load_w = gpu->sample_gap_from_s = gpu->sample_gap_until_s = HUGE_VAL;
    gpu->power_reading_factor = 1;
    gpu->power_smoothing = -1;
}

static int shape_of(const char *word) {
    static const char *names[] = {"constant", "ramp", "sine", "square"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(word, names[i])) return i;
    return -1;
}

static int read_segment(struct gpu *gpu, const char *text) {
    char word[16];
    struct segment *s = &gpu->segments[gpu->segment_count];
    if (gpu->segment_count == MAX_SEGMENTS) return -1;
    memset(s, 0, sizeof *s);
    if (sscanf(text, "%lf %15s %lf %lf %lf %lf %lf", &s->duration_s, word, s->p, s->p + 1, s->p + 2, s->p + 3, s->p + 4) < 3)
        return -1;
    if (shape_of(word) < 0) return -1;
    s->shape = (enum shape)shape_of(word);
    gpu->segment_count++;
    return 0;
}

static int read_process(struct gpu *gpu, const char *text) {
    struct process *p = &gpu->processes[gpu->process_count];
    if (gpu->process_count == MAX_PROCESSES) return -1;
    if (sscanf(text, "%u %c %lu %d %lf %lf", &p->pid, &p->kind, &p->memory_bytes, &p->beside_runner, &p->from_s, &p->until_s) != 6) return -1;
    gpu->process_count++;
    return 0;
}

static int read_peers(struct gpu *gpu, const char *text) {
    int taken;
    for (gpu->nvlink_count = 0; sscanf(text, "%d%n", &gpu->nvlink_peers[gpu->nvlink_count], &taken) == 1; text += taken)
        if (++gpu->nvlink_count == MAX_LINKS) break;
    return 0;
}

static int read_profiles(struct profiles *profiles, const char *text) {
    int taken;
    unsigned bit;
    for (profiles->known = 1; sscanf(text, "%u%n", &bit, &taken) == 1; text += taken) {
        if (bit >= 255) return -1;
        profiles->mask[bit / 32] |= 1u << bit % 32;
    }
    return 0;
}

static int read_gpu_key(struct gpu *gpu, const char *key, const char *text) {
#define WORDS(field) if (!strcmp(key, #field)) { snprintf(gpu->field, sizeof gpu->field, "%s", text); return 0; }
#define REAL(field) if (!strcmp(key, #field)) { gpu->field = atof(text); return 0; }
#define COUNT(field) if (!strcmp(key, #field)) { gpu->field = strtoull(text, NULL, 10); return 0; }
    if (!strcmp(key, "segment")) return read_segment(gpu, text);
    if (!strcmp(key, "nvlink_peers")) return read_peers(gpu, text);
    if (!strcmp(key, "process")) return read_process(gpu, text);
    if (!strcmp(key, "power_profiles_requested")) return read_profiles(&gpu->requested, text);
    if (!strcmp(key, "power_profiles")) return read_profiles(&gpu->enforced, text);
    WORDS(vbios) WORDS(uuid) WORDS(name) WORDS(unsupported) WORDS(failing)
    COUNT(seed) COUNT(memory_total_bytes) COUNT(memory_used_bytes) COUNT(memory_reserved_bytes) COUNT(sm_clock_mhz) COUNT(sm_clock_max_mhz)
    COUNT(memory_clock_mhz) COUNT(memory_clock_max_mhz) COUNT(ecc) COUNT(mig) COUNT(persistence) COUNT(compute_major)
    COUNT(compute_minor) COUNT(architecture) COUNT(transient_error_every) COUNT(utilization_percent) COUNT(mig_slices)
    COUNT(nvlink_version) COUNT(pcie_generation) COUNT(pcie_generation_max) COUNT(pcie_width) COUNT(pcie_width_max)
    COUNT(power_smoothing) COUNT(counts_module) COUNT(power_smoothing_profile) COUNT(clocks_limited) COUNT(numa_node) COUNT(pcie_switch)
    REAL(module_w) REAL(counter_offset_mj) REAL(counter_step_mj) REAL(period_s) REAL(phase_s) REAL(jitter_idle_s) REAL(jitter_load_s)
    REAL(load_w) REAL(drop_probability) REAL(lag_s) REAL(power_lag_s) REAL(read_cost_s) REAL(slow_cost_s)
    REAL(slow_probability) REAL(process_cost_s) REAL(reset_at_s) REAL(lost_at_s) REAL(failing_from_s)
    REAL(failing_until_s) REAL(frozen_at_s) REAL(thaws_at_s) REAL(jumps_at_s) REAL(jumps_until_s) REAL(jump_mj) REAL(power_limit_w) REAL(power_limit_changes_at_s) REAL(power_limit_then_w)
    REAL(power_limit_default_w) REAL(throttle_above_w) REAL(thermal_above_w) REAL(power_reading_factor) REAL(sample_period_s) REAL(sample_width_s) REAL(sample_jitter_s)
    REAL(sample_lag_s) REAL(sample_drop_probability) REAL(sample_gap_from_s) REAL(sample_gap_until_s) REAL(hbm_share) REAL(temperature_c) REAL(memory_temperature_c)
    return -1;
}

static int read_machine_key(const char *key, const char *text) {
    if (!strcmp(key, "clock")) machine.virtual_clock = !strcmp(text, "virtual");
    else if (!strcmp(key, "origin_ns")) machine.origin_ns = strtoll(text, NULL, 10);
    else if (!strcmp(key, "wall_steps_at_s")) machine.wall_steps_at_s = atof(text);
    else if (!strcmp(key, "wall_step_s")) machine.wall_step_s = atof(text);
    else if (!strcmp(key, "init_error")) machine.init_error = atoi(text);
    else if (!strcmp(key, "count_error")) machine.count_error = atoi(text);
    else if (!strcmp(key, "shutdown_error")) machine.shutdown_error = atoi(text);
    else if (!strcmp(key, "cuda_driver")) machine.cuda_driver = atoi(text);
    else if (!strcmp(key, "driver")) snprintf(machine.driver, TEXT, "%s", text);
    else if (!strcmp(key, "nvml")) snprintf(machine.nvml, TEXT, "%s", text);
    else return -1;
    return 0;
}

/* 0, or the number of the first line that could not be read; -1 without a file. */
int load_config(const char *path) {
    char line[512], key[64], text[448];
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    memset(&machine, 0, sizeof machine);
    int number = 0, bad = 0;
    while (!bad && fgets(line, sizeof line, file)) {
        number++;
        text[0] = 0;
        if (sscanf(line, "%63s %447[^\n]", key, text) < 1) continue;
        if (!strcmp(key, "gpu")) {
            if (machine.gpu_count == MAX_GPUS) bad = number;
            else defaults(&machine.gpus[machine.gpu_count++]);
        } else if ((machine.gpu_count ? read_gpu_key(&machine.gpus[machine.gpu_count - 1], key, text) : read_machine_key(key, text)))
            bad = number;
    }
    fclose(file);
    virtual_generation++;
    return bad;
}
