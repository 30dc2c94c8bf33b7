// The weights of Ethos-U85: the order in which the NPU reads them, and its fast format.
#pragma once

#include "weights.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ethosu::u85 {

enum class Traversal { depth_first, part_kernel, depthwise };

// Parameters that decide the order of a layer's weights.
struct WeightLayout {
  int64_t ofm_depth = 1, kernel_height = 1, kernel_width = 1, ifm_depth = 1; // taps; depthwise: ifm_depth 1
  int64_t stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1;
  int64_t ofm_block_depth = 16; // OFM_BLK_DEPTH
  int64_t microblock_depth = 8;
  Traversal traversal = Traversal::depth_first;
  unsigned ifm_bits = 8;
  bool sparse = false, fast = false;
  int32_t macs = 256;

  int64_t ifm_block_depth() const; // derived: no register holds it
  size_t count() const {
    return static_cast<size_t>(ofm_depth * kernel_height * kernel_width * ifm_depth);
  }
  std::string key() const; // of the weight cache
};

int64_t cores(int32_t macs);

// [ofm][kernel y][kernel x][ifm], depthwise [kernel y][kernel x][ofm]. `streams`: the encoded bytes, one per core (empty:
// none), or a single one in the fast format. Throws on a stream that is shorter than the layer asks for.
std::vector<int16_t> decode_weights(
    const WeightLayout& layout, const std::vector<std::pair<const uint8_t*, size_t>>& streams);

// `count` weights of the fast format: a header of 256 bits, then 8, 4 or 2 bits each.
std::vector<int16_t> decode_fast(const uint8_t* data, size_t size, size_t count);

} // namespace ethosu::u85
