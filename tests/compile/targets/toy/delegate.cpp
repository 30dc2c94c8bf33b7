// The toy: the payload is a magic number and a table of 256 results.
#include "family.h"

#include <cstring>

namespace micronpu::toy {
namespace {

constexpr char kMagic[] = {'T', 'O', 'Y', '1'};
constexpr size_t kTable = 256;

PayloadStatus load(
    executorch::runtime::BackendInitContext&,
    const executorch::runtime::FreeableBuffer& processed,
    int32_t,
    Source& source,
    std::string& error) {
  const auto* data = static_cast<const uint8_t*>(processed.data());
  if (processed.size() != sizeof kMagic + kTable || std::memcmp(data, kMagic, sizeof kMagic) != 0) {
    error = "The payload is no toy. Try: compile the model again.";
    return PayloadStatus::malformed;
  }
  source.content.assign(data, data + processed.size());
  source.is_own = true;
  source.payload.inputs = {{0, false}};
  source.payload.outputs = {{0, false}};
  source.payload.num_arguments = 1;
  return PayloadStatus::ok;
}

const Registration registration({"ToyBackend", load, false, false});

} // namespace
} // namespace micronpu::toy
