// Registration of a backend's delegate with the plug-in. Each backend defines a `Registration` in one file; nothing
// else names it. Each file has its own namespace: several files are compiled as one, so that headers are read once.
#pragma once

#include "payload.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/freeable_buffer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace micronpu {

// The program that a delegate passes to its executor. The members keep alive what they point at.
struct Source {
  Payload payload; // an open container: the delegate's own, or that of the graph in its program
  bool is_own = false; // true: the backend's own executor takes `content`, and tensors in their memory layout
  std::vector<uint8_t> content;
  std::optional<executorch::runtime::FreeableBuffer> graph;
};

// Reads and verifies `processed`; on any result but ok, `error` is a message. `mode` is the thread's mode.
using Loader = PayloadStatus (*)(
    executorch::runtime::BackendInitContext& context,
    const executorch::runtime::FreeableBuffer& processed,
    int32_t mode,
    Source& source,
    std::string& error);

struct Family {
  const char* backend; // name of the delegate
  Loader load;
  bool any_type; // true: takes any element type by its size; false: integers of up to 32 bits and bool
  bool is_strict; // true: compares the tensor's dim order; false: its memory layout
};

// All registered backends, in no particular order.
const std::vector<Family>& families();

struct Registration {
  explicit Registration(const Family& family);
};

} // namespace micronpu
