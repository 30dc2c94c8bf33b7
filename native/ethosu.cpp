#include "ethosu.h"

#include "payload.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

namespace micronpu {
namespace {

constexpr size_t kHeader = 32;
constexpr size_t kName = 16;
constexpr size_t kBorder = 36; // nine 32-bit numbers per tensor
constexpr std::array<const char*, 7> kBlocks = {
    "vela_bin_stream", "cmd_data", "weight_data", "scratch_size", "inputs", "outputs", "vela_end_stream"};

uint32_t word(const uint8_t* b) {
  return uint32_t{b[0]} | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

bool count_tensors(const uint8_t* data, size_t size, size_t& count) {
  if (size < 4) {
    return false;
  }
  count = word(data);
  return count <= size / kBorder && size == 4 + count * kBorder;
}

} // namespace

PayloadStatus check_ethosu_payload(const uint8_t* data, size_t size, EthosUBorder& border, std::string& error) {
  std::vector<std::string> seen;
  size_t offset = 0;
  while (offset < size) {
    if (size - offset < kHeader) {
      return malformed("The Ethos-U payload is truncated in a block header.", error);
    }
    const auto* text = reinterpret_cast<const char*>(data + offset);
    const std::string name(text, strnlen(text, kName));
    const size_t length = word(data + offset + kName);
    const uint8_t* content = data + offset + kHeader;
    if (size - offset - kHeader < length) {
      return malformed("The Ethos-U payload is truncated in the block " + name + ".", error);
    }
    bool known = false;
    for (const char* block : kBlocks) {
      known = known || name == block;
    }
    if (!known) {
      return malformed("The Ethos-U payload has an unknown block " + name + ".", error);
    }
    const bool is_external = data[offset + kName + 4] != 0;
    if (name == "cmd_data" && !is_external &&
        (length < 4 || (std::memcmp(content, "COP1", 4) != 0 && std::memcmp(content, "COP2", 4) != 0))) {
      return malformed("The Ethos-U command stream does not begin with COP1 or COP2.", error);
    }
    if ((name == "inputs" && !count_tensors(content, length, border.num_inputs)) ||
        (name == "outputs" && !count_tensors(content, length, border.num_outputs))) {
      return malformed("The block " + name + " of the Ethos-U payload has an impossible size.", error);
    }
    seen.push_back(name);
    const size_t padded = (length + 15) & ~size_t{15};
    offset += kHeader + (padded <= size - offset - kHeader ? padded : length);
  }
  if (seen.size() != kBlocks.size() || seen.front() != kBlocks.front() || seen.back() != kBlocks.back()) {
    return malformed("The Ethos-U payload lacks blocks, or has one twice.", error);
  }
  return PayloadStatus::ok;
}

bool inline_blocks(
    const uint8_t* data,
    size_t size,
    const std::function<bool(const std::string&, std::vector<uint8_t>&)>& find,
    std::vector<uint8_t>& whole,
    std::string& error) {
  whole.clear();
  whole.reserve(size);
  for (size_t offset = 0; offset + kHeader <= size;) {
    const uint8_t* header = data + offset;
    const size_t length = word(header + kName);
    const uint8_t* content = header + kHeader;
    whole.insert(whole.end(), header, content);
    if (header[kName + 4] == 0) {
      whole.insert(whole.end(), content, content + length);
    } else {
      const std::string key(reinterpret_cast<const char*>(content), length);
      std::vector<uint8_t> found;
      if (!find(key, found) || found.size() > UINT32_MAX) {
        const auto* name = reinterpret_cast<const char*>(header);
        error = "The block " + std::string(name, strnlen(name, kName)) +
            " of the Ethos-U payload stands in a data file that the program was loaded without. "
            "Try: keep the data file beside the program, under the name that it was saved with.";
        return false;
      }
      uint8_t* written = whole.data() + whole.size() - kHeader;
      for (size_t i = 0; i < 4; ++i) {
        written[kName + i] = static_cast<uint8_t>(found.size() >> (8 * i));
      }
      written[kName + 4] = 0;
      whole.insert(whole.end(), found.begin(), found.end());
    }
    whole.resize((whole.size() + 15) & ~size_t{15});
    const size_t padded = (length + 15) & ~size_t{15};
    offset += kHeader + (padded <= size - offset - kHeader ? padded : length);
  }
  return true;
}

std::string host_graph_key(const uint8_t* data, size_t size) {
  // Identifies a graph; the graph's own checksum protects its content.
  char key[48];
  std::snprintf(key, sizeof(key), "micronpu_graph_%08" PRIx32 "_%zx", crc32(data, size), size);
  return key;
}

} // namespace micronpu
