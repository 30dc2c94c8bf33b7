// An open functional simulator and checker of the command streams of Arm Ethos-U55, Ethos-U65 and Ethos-U85.
//
// It computes what the NPU would compute, byte for byte, and refuses what no correct stream does: an access outside its
// region, a read of bytes that nobody wrote, an unknown register, transfers and operations that overlap without a wait.
// Every refusal is a sentence that names the command, its offset in the stream and the operation.
//
// No dependency but the C++17 library. Not thread-safe per simulator; several simulators may run on several threads.
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
  ETHOSU_SIM_INVALID = 1, // the stream does what no correct stream does
  ETHOSU_SIM_NOT_MODELLED = 2, // the stream may be right, but the simulator cannot compute it
  ETHOSU_SIM_BAD_ARGUMENT = 3, // the caller's mistake
  ETHOSU_SIM_TOO_MUCH_WORK = 4, // more than ethosu_sim_set_work_limit() allows
  ETHOSU_SIM_TOO_EARLY = 5, // invalid: an operation reads what the one before it has not written yet
};

enum ethosu_sim_region_kind {
  ETHOSU_SIM_CONSTANT = 0, // holds what the NPU only reads; a write is an error
  ETHOSU_SIM_SCRATCH = 1, // unknown until written: by the stream, or by the caller as its ranges say
  ETHOSU_SIM_MEMORY = 2, // all of it may be read and written
};

// What a base pointer of the stream points at. Regions may lie inside each other (then they share what was written).
typedef struct {
  void* data;
  uint64_t size; // bytes; 0: the region is not there, and a stream that uses it is refused
  int32_t kind;
} ethosu_sim_region;

// Bytes of a region: of a scratch region those that the caller has filled, for instance with the inputs; of an operation
// those that it reads or writes.
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
  uint32_t index; // of the operation in the stream, from 0; transfers and operations count alike
  uint64_t offset; // bytes from the first command to the one that starts it
  uint32_t opcode; // low 10 bits of the command
  uint32_t parameter; // high 16 bits of the command
  const char* name; // "convolution", "max pool", "transfer"
  uint64_t work; // multiplications and bytes moved
  ethosu_sim_feature_map ofm; // all zero for a transfer
  uint64_t source_region, source_address, destination_region, destination_address, length; // of a transfer
  // Every byte that it has read and written, in order of regions and addresses, gaps left out. Of regions inside another
  // it is the outer one; region 8 is the table memory inside the NPU.
  const ethosu_sim_range *reads, *writes;
  uint64_t num_reads, num_writes;
} ethosu_sim_operation;

// Called after each operation; memory holds its result. A value other than 0 stops the run with ETHOSU_SIM_BAD_ARGUMENT.
typedef int32_t (*ethosu_sim_callback)(void* user, const ethosu_sim_operation* operation);

// ETHOSU_SIM_VERSION of the library.
ETHOSU_SIM_API int32_t ethosu_sim_version(void);

// A simulator of an accelerator: family 55 (macs 32, 64, 128, 256), 65 (256, 512) or 85 (128, 256, 512, 1024, 2048).
// NULL for any other.
ETHOSU_SIM_API ethosu_sim* ethosu_sim_create(int32_t family, int32_t macs);
ETHOSU_SIM_API void ethosu_sim_destroy(ethosu_sim* sim);

// Forgets registers, tables, decoded weights and the last error.
ETHOSU_SIM_API void ethosu_sim_reset(ethosu_sim* sim);

ETHOSU_SIM_API void ethosu_sim_set_callback(ethosu_sim* sim, ethosu_sim_callback callback, void* user);

// The most multiplications (and bytes moved) one run may ask for; 0, the default, is no limit.
ETHOSU_SIM_API void ethosu_sim_set_work_limit(ethosu_sim* sim, uint64_t limit);

// The most bytes of decoded weights that stay from one operation, and one run, to the next; 256 MiB unless set.
ETHOSU_SIM_API void ethosu_sim_set_weight_limit(ethosu_sim* sim, uint64_t bytes);

// Name of the command that a word of a stream is, such as "NPU_SET_IFM_REGION"; NULL if the accelerator has none.
ETHOSU_SIM_API const char* ethosu_sim_command_name(const ethosu_sim* sim, uint32_t word);

// Runs a stream of driver actions ("COP1" or "COP2" and what follows) to its NPU_OP_STOP.
// Returns an ethosu_sim_status; on anything but ETHOSU_SIM_OK, ethosu_sim_error() says why.
ETHOSU_SIM_API int32_t ethosu_sim_run(
    ethosu_sim* sim,
    const void* commands,
    uint64_t commands_size,
    const ethosu_sim_region* regions,
    int32_t num_regions,
    const ethosu_sim_range* ranges,
    int32_t num_ranges);

// After a run: the first byte of [offset, offset + size) of a scratch region that neither the stream nor the caller's
// ranges have written, UINT64_MAX if there is none. An output with such a byte is not computed.
ETHOSU_SIM_API uint64_t ethosu_sim_unwritten(const ethosu_sim* sim, uint32_t region, uint64_t offset, uint64_t size);

// Decodes a compressed weight stream of the standard format by itself, into at most `capacity` weights; the number of
// weights, or -1 if the stream is damaged or has more.
ETHOSU_SIM_API int64_t ethosu_sim_decode_weights(const void* stream, uint64_t size, int16_t* weights, uint64_t capacity);

// The last run's error as a sentence, "" if it had none. Valid until the next call with the same simulator.
ETHOSU_SIM_API const char* ethosu_sim_error(const ethosu_sim* sim);

// Where the last error was found: bytes from the first command, index of the operation. UINT64_MAX: in no command.
ETHOSU_SIM_API uint64_t ethosu_sim_error_offset(const ethosu_sim* sim);
ETHOSU_SIM_API uint64_t ethosu_sim_error_operation(const ethosu_sim* sim);

#ifdef __cplusplus
} // extern "C"
#endif
