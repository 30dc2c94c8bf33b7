// The delegates of all families (`family.h`) for the host.
//
// The computation is done by an executor that the loader installs through C function pointers (Python installs LiteRT's
// interpreter and the backends' simulators, see src/micronpu/runtime/plugin.py). This file reads the payload, checks
// tensors, converts their layouts like the board's runtime, and reports profiling events.
#pragma once

#include <executorch/runtime/core/error.h>

#include <cstdint>

extern "C" {

// One tensor of the NPU program. `scalar_type` is ExecuTorch's number of the element type.
struct micronpu_tensor {
  void* data;
  uint64_t size; // bytes
  int32_t scalar_type;
  int32_t rank; // of `shape`; tensors passed to the executor have rank 0 and no shape
  const int32_t* shape;
};

// Called by a traced run after each operator. `outputs` have the layouts of the LiteRT program.
typedef void (*micronpu_trace_sink)(
    void* context,
    int32_t operator_index,
    const char* operator_name,
    uint64_t nanoseconds,
    const micronpu_tensor* outputs,
    int32_t num_outputs);

// Bits of `mode`. TRACED: runs will be traced, so preparation for it happens at load time, outside the first run.
// GRAPH: execute the integer graph that the program carries instead of the NPU's command stream.
enum { MICRONPU_MODE_FAST = 1, MICRONPU_MODE_TRACED = 2, MICRONPU_MODE_GRAPH = 4 };

// The executor. A function that fails sets a message with micronpu_set_error() and returns 0 (create) or non-zero.
// `model` is a LiteRT or TOSA flatbuffer and `backend` is "", or `model` is a payload for the executor of the delegate
// `backend` and `graph` is the flatbuffer that it was compiled from, null if the program does not carry it.
typedef int64_t (*micronpu_create)(
    const char* backend,
    const void* model,
    uint64_t size,
    const void* graph,
    uint64_t graph_size,
    int32_t mode,
    int32_t num_inputs,
    int32_t num_outputs);
// A run with a `sink` is traced operator by operator.
typedef int32_t (*micronpu_run)(
    int64_t handle,
    const micronpu_tensor* inputs,
    int32_t num_inputs,
    const micronpu_tensor* outputs,
    int32_t num_outputs,
    micronpu_trace_sink sink,
    void* context);
typedef void (*micronpu_destroy)(int64_t handle);

} // extern "C"

namespace micronpu {

struct Executor {
  micronpu_create create = nullptr;
  micronpu_run run = nullptr;
  micronpu_destroy destroy = nullptr;
};

// Replaces the executor of programs loaded from now on; an empty one detaches Python at exit.
void set_executor(const Executor& executor);

// Sets the `mode` passed to the executor's create() for programs that this thread loads from now on.
void set_mode(int32_t mode);

// Registers the delegates once; a second call is Ok and does nothing.
executorch::runtime::Error register_backends();

} // namespace micronpu
