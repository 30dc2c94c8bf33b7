// NXP eIQ Neutron: the payload is our open container, which holds a LiteRT program; microcode is refused.
#include "family.h"

namespace micronpu::neutron {
namespace {

PayloadStatus load(
    executorch::runtime::BackendInitContext&,
    const executorch::runtime::FreeableBuffer& processed,
    int32_t,
    Source& source,
    std::string& error) {
  return parse_payload(static_cast<const uint8_t*>(processed.data()), processed.size(), source.payload, error);
}

const Registration registration({"NeutronBackend", load, true, true});

} // namespace
} // namespace micronpu::neutron
