#include "payload.h"

#include <array>

namespace micronpu {
namespace {

constexpr uint32_t kSiliconMagic = 0x64434D6E;
constexpr uint32_t kReferenceMagic = 0x52504E4D;
constexpr uint32_t kContainerVersion = 1;
constexpr uint8_t kLastPayloadVersion = 1;
constexpr size_t kRecordSize = 64;

size_t align16(size_t size) {
  return (size + 15) & ~size_t{15};
}

// The file is little-endian on every host.
uint32_t word(const uint8_t* bytes, size_t index) {
  const uint8_t* b = bytes + 4 * index;
  return uint32_t{b[0]} | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

PayloadStatus truncated(size_t found, size_t needed, std::string& error) {
  error = "The payload is truncated: it has " + std::to_string(found) + " bytes, but its header needs " +
      std::to_string(needed) + "." + kCompileAgain;
  return PayloadStatus::malformed;
}

PayloadStatus incompatible(const std::string& what, std::string& error) {
  error = what;
  return PayloadStatus::incompatible;
}

} // namespace

// Slicing-by-8: payloads have megabytes and are summed in full at each load. Words are assembled from bytes, which
// gives the same result on every host.
uint32_t crc32(const uint8_t* data, size_t size) {
  static const std::array<std::array<uint32_t, 256>, 8> tables = [] {
    std::array<std::array<uint32_t, 256>, 8> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ ((value & 1) ? 0xEDB88320u : 0u);
      }
      made[0][i] = value;
    }
    for (size_t distance = 1; distance < made.size(); ++distance) {
      for (size_t i = 0; i < 256; ++i) {
        const uint32_t before = made[distance - 1][i];
        made[distance][i] = (before >> 8) ^ made[0][before & 0xFF];
      }
    }
    return made;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (; size >= 8; data += 8, size -= 8) {
    const uint32_t first = crc ^ word(data, 0), last = word(data, 1);
    crc = tables[7][first & 0xFF] ^ tables[6][first >> 8 & 0xFF] ^ tables[5][first >> 16 & 0xFF] ^ tables[4][first >> 24] ^
        tables[3][last & 0xFF] ^ tables[2][last >> 8 & 0xFF] ^ tables[1][last >> 16 & 0xFF] ^ tables[0][last >> 24];
  }
  for (; size; ++data, --size) {
    crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xFF];
  }
  return ~crc;
}

PayloadStatus parse_payload(const uint8_t* data, size_t size, Payload& payload, std::string& error) {
  if (data == nullptr || size < 4) {
    return truncated(size, 4, error);
  }
  const size_t num_inputs = data[0], num_outputs = data[1], count = num_inputs + num_outputs;
  payload.num_arguments = data[2];
  const size_t header = align16(4 + 2 * count);
  if (size < header + kRecordSize) {
    return truncated(size, header + kRecordSize, error);
  }
  const uint8_t version = data[3 + 2 * count];
  if (version > kLastPayloadVersion) {
    return incompatible(
        "The payload has version " + std::to_string(version) +
            ", but this runtime knows versions 0 and 1. Try: update micronpu, or compile the model with this version.",
        error);
  }
  std::vector<bool> written(num_outputs, false);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t flag = data[3 + i], index = data[3 + count + i];
    if (flag > 1) {
      return malformed("Tensor " + std::to_string(i) + " of the payload has the unknown format " +
              std::to_string(flag) + ".", error);
    }
    if (i < num_inputs) {
      if (index >= payload.num_arguments) {
        return malformed("Input " + std::to_string(i) + " of the payload reads argument " +
                std::to_string(index) + " of " + std::to_string(payload.num_arguments) + ".", error);
      }
      payload.inputs.push_back({index, flag == 1});
    } else {
      if (index >= num_outputs || written[index]) {
        return malformed("Output " + std::to_string(i - num_inputs) + " of the payload writes delegate output " +
                std::to_string(index) + ", which does not exist or is written twice.", error);
      }
      written[index] = true;
      payload.outputs.push_back({index, flag == 1});
    }
  }

  const uint8_t* record = data + header;
  const uint32_t magic = word(record, 0);
  if (magic == kSiliconMagic) {
    return incompatible(
        "The payload holds microcode for a real chip, which the host cannot execute. "
        "Try: compile with the reference converter to run on the host, or run this program on the board.",
        error);
  }
  if (magic != kReferenceMagic) {
    return malformed("The program inside the payload is neither microcode of an NPU nor a micronpu reference "
                     "container.", error);
  }
  if (word(record, 1) != kContainerVersion) {
    return incompatible(
        "The reference container has format version " + std::to_string(word(record, 1)) +
            ", but this runtime reads version 1. Try: compile the model again with this version of micronpu.",
        error);
  }
  if (crc32(record, 32) != word(record, 8) || word(record, 6) != kRecordSize) {
    return malformed("The record of the reference container is corrupted: its checksum is wrong.", error);
  }
  if (word(record, 2) != num_inputs || word(record, 3) != num_outputs) {
    return malformed("The payload has " + std::to_string(num_inputs) + " inputs and " +
            std::to_string(num_outputs) + " outputs, but the program inside has " + std::to_string(word(record, 2)) +
            " and " + std::to_string(word(record, 3)) + ".", error);
  }
  const size_t model_start = header + kRecordSize, model_size = word(record, 7);
  if (model_size > size - model_start) {
    return truncated(size, model_start + model_size, error);
  }
  if (crc32(data + model_start, model_size) != word(record, 4)) {
    return malformed("The LiteRT model in the reference container is corrupted: its checksum is wrong.", error);
  }
  payload.num_operators = word(record, 5);
  payload.model = data + model_start;
  payload.model_size = model_size;
  return PayloadStatus::ok;
}

} // namespace micronpu
