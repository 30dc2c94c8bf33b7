// Reader of a payload's published header and of our open reference container behind it.
//
// The layout is described in src/micronpu/container/payload.py and converter.py, which write it. Nothing here depends on
// ExecuTorch. Every offset is checked: a payload comes from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace micronpu {

struct TensorSlot {
  uint8_t index; // delegate argument of an input, delegate output of an output
  bool channels_last; // the NPU needs C last where the program's last three axes are C, H, W
};

struct Payload {
  std::vector<TensorSlot> inputs;
  std::vector<TensorSlot> outputs;
  size_t num_arguments = 0;
  uint32_t num_operators = 0;
  const uint8_t* model = nullptr; // LiteRT flatbuffer, inside the parsed bytes
  size_t model_size = 0;
};

enum class PayloadStatus {
  ok,
  malformed, // truncated or corrupted
  incompatible, // another version, or a program for silicon
};

constexpr char kCompileAgain[] = " Try: compile the model again with this version of micronpu.";

// Sets `error` to what is wrong, followed by what to try.
inline PayloadStatus malformed(const std::string& what, std::string& error) {
  error = what + kCompileAgain;
  return PayloadStatus::malformed;
}

// zlib's CRC-32.
uint32_t crc32(const uint8_t* data, size_t size);

// Reads and verifies `data`; on any result but ok, `error` is a message. `payload.model` points into `data`.
PayloadStatus parse_payload(const uint8_t* data, size_t size, Payload& payload, std::string& error);

} // namespace micronpu
