// Weights: the compressed stream that the NPU reads, and its order.
#pragma once

#include "fault.h"
#include "memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ethosu {

// Decodes a standard ("mlw") stream of U55, U65 and U85: all slices, up to its end marker or the end of the bytes.
// Calls invalid() for a truncated or impossible stream, or for more than `limit` weights.
void decode_mlw(const uint8_t* data, size_t size, size_t limit, std::vector<int16_t>& weights);

// A decoded layer, [ofm][kernel y][kernel x][ifm].
using Weights = std::shared_ptr<const std::vector<int16_t>>;

// Cache of decoded layers across runs, keyed by parameters and the encoded bytes (compared in full, so that a hash
// collision is harmless).
class WeightCache {
 public:
  // `key`: all other parameters of the result, as text. `streams`: the encoded bytes, one per core.
  Weights get(
      const std::string& key, const std::vector<std::pair<const uint8_t*, size_t>>& streams,
      const std::function<std::vector<int16_t>()>& decode);
  void clear();

  // Sets the maximum size in bytes.
  void set_limit(size_t bytes);

 private:
  struct Entry {
    std::string key;
    std::vector<uint8_t> bytes;
    Weights weights;
  };
  std::unordered_multimap<uint64_t, Entry> entries_;
  size_t held_ = 0, limit_ = size_t{1} << 28; // bytes; the cache is cleared when it would exceed the limit
};

} // namespace ethosu
