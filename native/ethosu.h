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

// Checks the blocks of a payload; on anything but ok, `error` is a sentence.
PayloadStatus check_ethosu_payload(const uint8_t* data, size_t size, EthosUBorder& border, std::string& error);

// Copies a payload that check_ethosu_payload() took, with the blocks that stand elsewhere put in their places. `find`
// gives the content of a key, and false where nothing has it. False, with a sentence in `error`, where one is missing.
bool inline_blocks(
    const uint8_t* data,
    size_t size,
    const std::function<bool(const std::string& key, std::vector<uint8_t>& content)>& find,
    std::vector<uint8_t>& whole,
    std::string& error);

// Name under which the integer graph of a payload travels as named data: it depends on the payload's bytes, so that a
// graph cannot be taken for that of another payload.
std::string host_graph_key(const uint8_t* data, size_t size);

} // namespace micronpu
