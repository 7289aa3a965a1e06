/* The simulated GPUs: their power, their energy counter, their clock. Knows nothing of NVML's structures. */
#ifndef FAKE_NVML_MODEL_H
#define FAKE_NVML_MODEL_H

#include <stdint.h>

#define MAX_GPUS 16
#define MAX_SEGMENTS 256
#define MAX_PROCESSES 16
#define TEXT 96
#define MAX_LINKS 18
#define MAX_SLICES 7
/* As many power samples as an H200's driver keeps. */
#define SAMPLES 119

enum shape { CONSTANT, RAMP, SINE, SQUARE };

struct segment {
    double duration_s;
    enum shape shape;
    /* constant: W | ramp: from W, to W | sine: mean W, amplitude W, period s, phase rad
     * square: low W, high W, period s, duty, phase s */
    double p[5];
};

struct process {
    unsigned pid;
    char kind; /* c, g or m */
    uint64_t memory_bytes;
    int beside_runner;
    double from_s, until_s;
};

struct gpu {
    char uuid[TEXT], name[TEXT], unsupported[256], failing[256];
    struct segment segments[MAX_SEGMENTS];
    int segment_count;
    struct process processes[MAX_PROCESSES];
    int process_count;
    uint64_t seed, memory_total_bytes, memory_used_bytes, memory_reserved_bytes;
    double counter_offset_mj, counter_step_mj, period_s, phase_s, jitter_idle_s, jitter_load_s, load_w;
    double drop_probability, lag_s, power_lag_s;
    /* The driver's buffer of power samples. */
    double sample_period_s, sample_width_s, sample_jitter_s, sample_lag_s, sample_drop_probability, sample_gap_from_s, sample_gap_until_s;
    /* Of the power, drawn by the memory. */
    double hbm_share;
    double read_cost_s, slow_cost_s, slow_probability, process_cost_s;
    double reset_at_s, lost_at_s, frozen_at_s, thaws_at_s, jumps_at_s, jumps_until_s, jump_mj, failing_from_s, failing_until_s, power_limit_w, power_limit_default_w;
    double power_limit_changes_at_s, power_limit_then_w;
    double throttle_above_w, thermal_above_w, power_reading_factor, temperature_c, memory_temperature_c;
    unsigned sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz, ecc, mig, persistence;
    unsigned compute_major, compute_minor, architecture, transient_error_every, utilization_percent, mig_slices;
    unsigned nvlink_version, pcie_generation, pcie_generation_max, pcie_width, pcie_width_max;
    int clocks_limited, numa_node, pcie_switch;
    /* Index of the GPU at the other end of each active link; -1 for an NVSwitch. */
    int nvlink_peers[MAX_LINKS], nvlink_count;
    char vbios[TEXT];
    /* NVML's masks of workload power profiles. */
    struct profiles { int known; unsigned mask[8]; } requested, enforced;
    /* Of CPU and memory on a superchip's module, and whether the counter covers the module. */
    double module_w;
    int counts_module;
    int power_smoothing;
    unsigned power_smoothing_profile;
    uint64_t calls;
};

struct machine {
    int virtual_clock, init_error, count_error, shutdown_error, gpu_count;
    int64_t origin_ns;
    /* From when on the time of day is a number of seconds ahead of what it was. */
    double wall_steps_at_s, wall_step_s;
    char driver[TEXT], nvml[TEXT];
    int cuda_driver;
    struct gpu gpus[MAX_GPUS];
};

extern struct machine machine;

int load_config(const char *path);
int64_t now_ns(void);
void pass_ns(int64_t ns);
double seconds(int64_t ns);
double power_w(const struct gpu *gpu, double t_s);
double energy_j(const struct gpu *gpu, double t_s);
double counter_mj(const struct gpu *gpu, double t_s);
double wall_s(double t_s);
double sample_at_s(const struct gpu *gpu, int64_t index);
int sample_exists(const struct gpu *gpu, int64_t index);
double sample_w(const struct gpu *gpu, int64_t index);
double draw(struct gpu *gpu);

#endif
