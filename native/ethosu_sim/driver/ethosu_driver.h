// The documented interface of Arm's core driver for Ethos-U, implemented by the simulator. Firmware that is built for a
// host, or for an emulated core, links it instead of the driver and runs without the chip.
//
// The simulated accelerator is the one named in the command stream.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ethosu_driver;

enum ethosu_job_result { ETHOSU_JOB_RESULT_OK = 0, ETHOSU_JOB_RESULT_TIMEOUT = 1, ETHOSU_JOB_RESULT_ERROR = 2 };

struct ethosu_driver_version {
  uint8_t major, minor, patch;
};

// Initializes a driver; `fast_memory` replaces base address 2. Other arguments are ignored.
int ethosu_init(
    struct ethosu_driver* driver, const void* base_address, const void* fast_memory, size_t fast_memory_size,
    uint32_t secure_enable, uint32_t privilege_enable);
void ethosu_deinit(struct ethosu_driver* driver);
void ethosu_get_driver_version(struct ethosu_driver_version* version);

// The one driver of this process (per thread); never NULL.
struct ethosu_driver* ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver* driver);

// Runs a command stream with its driver actions. Base addresses are multiples of 16: 0 the constants, 1 the scratch
// memory, 2 the fast scratch memory, and so on; each is `base_addr_size` bytes. Returns 0, or -1 with a message in
// ethosu_sim_driver_error() and on stderr.
int ethosu_invoke_v3(
    struct ethosu_driver* driver, const void* custom_data_ptr, const int custom_data_size, uint64_t* const base_addr,
    const size_t* base_addr_size, const int num_base_addr, void* user_arg);

#define ethosu_invoke(driver, custom_data_ptr, custom_data_size, base_addr, base_addr_size, num_base_addr) \
  ethosu_invoke_v3(driver, custom_data_ptr, custom_data_size, base_addr, base_addr_size, num_base_addr, 0)

// The same in two steps; the first one computes everything. ethosu_wait() returns 0, -1 if the job failed, -2 without
// one.
int ethosu_invoke_async(
    struct ethosu_driver* driver, const void* custom_data_ptr, const int custom_data_size, uint64_t* const base_addr,
    const size_t* base_addr_size, const int num_base_addr, void* user_arg);
int ethosu_wait(struct ethosu_driver* driver, bool block);

// Called around every job; weak symbols that an application may override.
void ethosu_inference_begin(struct ethosu_driver* driver, void* user_arg);
void ethosu_inference_end(struct ethosu_driver* driver, void* user_arg);

// Message of the last failed job, "" if it succeeded. Not part of the driver's interface.
const char* ethosu_sim_driver_error(const struct ethosu_driver* driver);

#ifdef __cplusplus
} // extern "C"
#endif
