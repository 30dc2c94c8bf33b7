// Functional simulator and checker of command streams for Arm Ethos-U55, Ethos-U65 and Ethos-U85.
//
// It computes the NPU's results bit-exactly and refuses invalid streams: accesses outside a region, reads of unwritten
// bytes, unknown registers, transfers and operations that overlap without a wait. Each error message names the command,
// its offset in the stream and the operation.
//
// Depends on the C++17 standard library only. A simulator is not thread-safe; different threads may use different
// simulators.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ETHOSU_SIM_VERSION 4

#ifndef ETHOSU_SIM_API
#define ETHOSU_SIM_API __attribute__((visibility("default")))
#endif

typedef struct ethosu_sim ethosu_sim;

enum ethosu_sim_status {
  ETHOSU_SIM_OK = 0,
  ETHOSU_SIM_INVALID = 1, // the stream does something that no correct stream does
  ETHOSU_SIM_NOT_MODELLED = 2, // the stream may be right, but the simulator cannot compute it
  ETHOSU_SIM_BAD_ARGUMENT = 3, // error of the caller
  ETHOSU_SIM_TOO_MUCH_WORK = 4, // more than ethosu_sim_set_work_limit() allows
  ETHOSU_SIM_TOO_EARLY = 5, // invalid: an operation reads what the one before it has not written yet
};

enum ethosu_sim_region_kind {
  ETHOSU_SIM_CONSTANT = 0, // holds what the NPU only reads; a write is an error
  ETHOSU_SIM_SCRATCH = 1, // unwritten until the stream writes it or the caller's ranges include it
  ETHOSU_SIM_MEMORY = 2, // all bytes are readable and writable
};

// Memory behind a base pointer of the stream. Regions may be nested; nested regions share their written flags.
typedef struct {
  void* data;
  uint64_t size; // bytes; 0: the region is absent, and a stream that uses it is refused
  int32_t kind;
} ethosu_sim_region;

// Bytes of a region: those of a scratch region that the caller has filled, for instance with inputs, or those that an
// operation reads or writes.
typedef struct {
  uint32_t region;
  uint64_t offset;
  uint64_t size;
} ethosu_sim_range;

// A feature map as registers describe it.
typedef struct {
  int32_t region; // -1: the values stay inside the NPU (chained operations of U85)
  uint64_t address; // of the first tile
  int32_t shape[3]; // height, width, depth
  int64_t stride[3]; // bytes from row to row, column to column, and brick to brick (NHCWB16 only)
  int32_t element_bytes;
  int32_t is_signed;
  int32_t is_bricks; // 1: NHCWB16, 0: NHWC
  int32_t zero_point;
} ethosu_sim_feature_map;

// One operation that the stream has started and finished.
typedef struct {
  uint32_t index; // index of the operation in the stream, from 0; transfers count too
  uint64_t offset; // bytes from the first command to the one that starts it
  uint32_t opcode; // low 10 bits of the command
  uint32_t parameter; // high 16 bits of the command
  const char* name; // "convolution", "max pool", "transfer"
  uint64_t work; // multiplications and bytes moved
  ethosu_sim_feature_map ofm; // all zero for a transfer
  uint64_t source_region, source_address, destination_region, destination_address, length; // of a transfer
  // Every byte that it reads and writes, sorted by region and address. Nested regions are reported as their outermost
  // region; region 8 is the NPU's internal table memory.
  const ethosu_sim_range *reads, *writes;
  uint64_t num_reads, num_writes;
} ethosu_sim_operation;

// Called after each operation, with its result in memory. A return value other than 0 stops the run with
// ETHOSU_SIM_BAD_ARGUMENT.
typedef int32_t (*ethosu_sim_callback)(void* user, const ethosu_sim_operation* operation);

// ETHOSU_SIM_VERSION of the library.
ETHOSU_SIM_API int32_t ethosu_sim_version(void);

// Creates a simulator: family 55 (macs 32, 64, 128, 256), 65 (256, 512) or 85 (128, 256, 512, 1024, 2048). Returns NULL
// for any other.
ETHOSU_SIM_API ethosu_sim* ethosu_sim_create(int32_t family, int32_t macs);
ETHOSU_SIM_API void ethosu_sim_destroy(ethosu_sim* sim);

// Clears registers, tables, decoded weights and the last error.
ETHOSU_SIM_API void ethosu_sim_reset(ethosu_sim* sim);

ETHOSU_SIM_API void ethosu_sim_set_callback(ethosu_sim* sim, ethosu_sim_callback callback, void* user);

// Sets the maximum of multiplications plus bytes moved per run; 0, the default, means no limit.
ETHOSU_SIM_API void ethosu_sim_set_work_limit(ethosu_sim* sim, uint64_t limit);

// Sets the maximum size in bytes of the cache of decoded weights, which is kept across runs; default 256 MiB.
ETHOSU_SIM_API void ethosu_sim_set_weight_limit(ethosu_sim* sim, uint64_t bytes);

// Returns the name of the command in a word of a stream, such as "NPU_SET_IFM_REGION"; NULL if the accelerator has
// none.
ETHOSU_SIM_API const char* ethosu_sim_command_name(const ethosu_sim* sim, uint32_t word);

// Runs a stream of driver actions ("COP1" or "COP2" and the following words) to its NPU_OP_STOP. Returns an
// ethosu_sim_status; on any but ETHOSU_SIM_OK, ethosu_sim_error() returns the message.
ETHOSU_SIM_API int32_t ethosu_sim_run(
    ethosu_sim* sim,
    const void* commands,
    uint64_t commands_size,
    const ethosu_sim_region* regions,
    int32_t num_regions,
    const ethosu_sim_range* ranges,
    int32_t num_ranges);

// After a run: returns the first byte of [offset, offset + size) of a scratch region that neither the stream nor the
// caller's ranges have written, or UINT64_MAX. An output with such a byte is incomplete.
ETHOSU_SIM_API uint64_t ethosu_sim_unwritten(const ethosu_sim* sim, uint32_t region, uint64_t offset, uint64_t size);

// Decodes a compressed weight stream of the standard format into at most `capacity` weights. Returns the number of
// weights, or -1 if the stream is damaged or has more.
ETHOSU_SIM_API int64_t ethosu_sim_decode_weights(const void* stream, uint64_t size, int16_t* weights, uint64_t capacity);

// Message of the last run's error, "" if it had none. Valid until the next call with the same simulator.
ETHOSU_SIM_API const char* ethosu_sim_error(const ethosu_sim* sim);

// Position of the last error: bytes from the first command, index of the operation. UINT64_MAX if it is not at a
// command.
ETHOSU_SIM_API uint64_t ethosu_sim_error_offset(const ethosu_sim* sim);
ETHOSU_SIM_API uint64_t ethosu_sim_error_operation(const ethosu_sim* sim);

#ifdef __cplusplus
} // extern "C"
#endif
