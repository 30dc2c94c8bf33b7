// What a family tells the plug-in of its delegate.  One file per family defines a `Registration`; nothing else names it.
#pragma once

#include "payload.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/freeable_buffer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace micronpu {

// What a delegate computes, as its executor is given it. The members keep alive what they point at.
struct Source {
  Payload payload; // an open container: the delegate's own, or that of the graph which its program carries
  bool is_own = false; // the family's own executor takes `content`, and tensors as they lie in memory
  std::vector<uint8_t> content;
  std::optional<executorch::runtime::FreeableBuffer> graph;
};

// Reads and verifies `processed`; on anything but ok, `error` is a sentence. `mode` is that of the thread.
using Loader = PayloadStatus (*)(
    executorch::runtime::BackendInitContext& context,
    const executorch::runtime::FreeableBuffer& processed,
    int32_t mode,
    Source& source,
    std::string& error);

struct Family {
  const char* backend; // name of the delegate
  Loader load;
  bool any_type; // takes elements of any type by their size; else the integers of up to 32 bits and bool
  bool is_strict; // looks at the order of axes that a tensor names; else at what lies in memory
};

// All that are registered, in no order.
const std::vector<Family>& families();

struct Registration {
  explicit Registration(const Family& family);
};

} // namespace micronpu
