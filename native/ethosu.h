// Reader of the Ethos-U payload, as strict as the board's: see src/micronpu/targets/ethosu/payload.py, which writes it.
#pragma once

#include "payload.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace micronpu {

struct EthosUBorder {
  size_t num_inputs = 0;
  size_t num_outputs = 0;
};

// Checks the blocks of a payload; on any result but ok, `error` is a message.
PayloadStatus check_ethosu_payload(const uint8_t* data, size_t size, EthosUBorder& border, std::string& error);

// Copies a payload that check_ethosu_payload() accepted and inlines its externally stored blocks. `find` returns the
// content of a key, or false if it has none. Returns false, with a message in `error`, if a block is missing.
bool inline_blocks(
    const uint8_t* data,
    size_t size,
    const std::function<bool(const std::string& key, std::vector<uint8_t>& content)>& find,
    std::vector<uint8_t>& whole,
    std::string& error);

// Name under which the integer graph of a payload is stored as named data. It is derived from the payload's bytes,
// so that a payload does not run another payload's graph.
std::string host_graph_key(const uint8_t* data, size_t size);

} // namespace micronpu
