// The weights of Ethos-U55 and Ethos-U65: the order in which the NPU reads them.
#pragma once

#include "weights.h"

namespace ethosu::u55 {

// One layer as the registers describe it.
struct WeightLayout {
  int64_t ofm_depth = 0, ifm_depth = 0; // depthwise: ifm_depth 1
  int64_t kernel_height = 0, kernel_width = 0; // taps
  int64_t block_depth = 0; // of the OFM block
  int64_t sub_height = 8, sub_width = 8; // maximum taps of one sub-kernel
  bool depthwise = false, part_kernel = false, ifm_16_bit = false;
  int64_t ofm_ublock = 8; // channels that the MAC unit computes at once
  int64_t cores = 1; // core k has the OFM channels k, k + cores, ..
};

// Decodes the streams of all cores. Conv: [ofm][kernel y][kernel x][ifm], depthwise: [kernel y][kernel x][ofm].
std::vector<int16_t> decode_layer(
    const WeightLayout& layout, const std::vector<std::pair<const uint8_t*, size_t>>& streams);

// Text key of the fields that decide a layout.
std::string key_of(const WeightLayout& layout);

} // namespace ethosu::u55
