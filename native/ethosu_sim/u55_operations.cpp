#include "u55_machine.h"
#include "u55_weights.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace ethosu::u55 {
namespace {

constexpr uint64_t kRecordBytes = 10; // bias (40 bits), scale (32), shift (6)
constexpr int64_t kMost32 = INT32_MAX, kMost40 = (int64_t{1} << 39) - 1;
constexpr int64_t kMaxWeights = int64_t{1} << 31;

void require_range(const int64_t* sums, int64_t count, int64_t most, const char* what) {
  const auto [least, greatest] = std::minmax_element(sums, sums + count);
  if (count && (*greatest > most || *least < -most - 1)) {
    not_modelled(std::string("a sum of the ") + what + " does not fit in its accumulator");
  }
}

} // namespace

std::vector<U55::Channel> U55::channels(int64_t depth, Rounding rounding) {
  const unsigned region = get(SCALE_REGION) & 7;
  const int64_t cores = shape_.cores > 1 && get(PARALLEL_MODE) == 1 ? 2 : 1;
  std::vector<Channel> result(static_cast<size_t>(depth));
  for (int64_t core = 0; core < cores; ++core) {
    const int64_t count = (depth - core + cores - 1) / cores;
    if (count <= 0) {
      continue;
    }
    const Cmd1 base = core ? SCALE1_BASE : SCALE_BASE, length = core ? SCALE1_LENGTH : SCALE_LENGTH;
    if (value(length) < kRecordBytes * static_cast<uint64_t>(count)) {
      invalid(
          std::string(name_of_cmd1(length)) + " is " + std::to_string(value(length)) + ", but " + std::to_string(count) +
          " channels need " + std::to_string(kRecordBytes * static_cast<uint64_t>(count)) + " bytes");
    }
    const uint8_t* record =
        memory.read(region, address(base), kRecordBytes * static_cast<uint64_t>(count), "scales and biases");
    for (int64_t i = 0; i < count; ++i, record += kRecordBytes) {
      Channel& channel = result[static_cast<size_t>(i * cores + core)];
      uint64_t bias = 0;
      std::memcpy(&bias, record, 5);
      channel.bias = static_cast<int64_t>(bias << 24) >> 24;
      std::memcpy(&channel.scale.scale, record + 5, 4);
      channel.scale.shift = record[9] & 63;
      channel.scale.rounding = rounding;
    }
  }
  return result;
}

template <class Sum>
void U55::scale_row(
    const std::vector<Channel>& channels, bool wide, int64_t width, int64_t depth, const Sum* sums, int64_t* out) const {
  for (int64_t x = 0; x < width; ++x, sums += depth, out += depth) {
    if (wide) {
      for (int64_t c = 0; c < depth; ++c) {
        const Channel& channel = channels[static_cast<size_t>(c)];
        out[c] = rescale_wide(sums[c] + channel.bias, channel.scale);
      }
    } else {
      for (int64_t c = 0; c < depth; ++c) {
        const Channel& channel = channels[static_cast<size_t>(c)];
        out[c] = rescale(sums[c] + channel.bias, channel.scale);
      }
    }
  }
}

Weights U55::layer_weights(
    bool depthwise, const FeatureMap& in, const Kernel& kernel, int64_t ofm_depth, int64_t ifm_depth) {
  WeightLayout layout;
  layout.ofm_depth = ofm_depth;
  layout.ifm_depth = depthwise ? 1 : ifm_depth;
  layout.kernel_height = kernel.height;
  layout.kernel_width = kernel.width;
  layout.block_depth = std::min<int64_t>(int64_t{get(OFM_BLK_DEPTH_M1)} + 1, ofm_depth);
  const uint32_t stride = get(KERNEL_STRIDE);
  const int64_t most = stride >> 5 & 1 ? 4 : 8;
  layout.sub_height = most / kernel.dilation_y;
  layout.sub_width = most / kernel.dilation_x;
  layout.depthwise = depthwise;
  layout.part_kernel = !depthwise && (stride >> 2 & 1);
  layout.ifm_16_bit = in.element_bytes == 2;
  layout.ofm_ublock = shape_.ofm_ublock;
  layout.cores = shape_.cores > 1 && get(PARALLEL_MODE) == 1 ? 2 : 1;
  const uint64_t count = product({ofm_depth, kernel.height, kernel.width, layout.ifm_depth});
  memory.budget.spend(count);
  if (count > static_cast<uint64_t>(kMaxWeights)) {
    not_modelled("the layer has more than 2^31 weights");
  }
  std::vector<std::pair<const uint8_t*, size_t>> streams;
  for (int64_t core = 0; core < layout.cores; ++core) {
    const Cmd1 base = core ? WEIGHT1_BASE : WEIGHT_BASE, length = core ? WEIGHT1_LENGTH : WEIGHT_LENGTH;
    const uint64_t size = value(length);
    if (size == 0) {
      streams.emplace_back(nullptr, 0); // the core has no channels
      continue;
    }
    const uint64_t at = address(base);
    if (at % 16 || size % 16) {
      invalid(
          std::string(name_of_cmd1(base)) + " = " + hex(at) + " and the length " + std::to_string(size) +
          " are not multiples of 16");
    }
    streams.emplace_back(memory.read(get(WEIGHT_REGION) & 7, at, size, "weights"), size);
  }
  return weights.get(key_of(layout), streams, [&] { return decode_layer(layout, streams); });
}

template <class T, class Sum>
void U55::convolve_as(bool depthwise, Finish& out, const FeatureMap& in, const Kernel& kernel, Weights layer) {
  const Padding pad = padding();
  const int64_t ifm_depth = depthwise ? out.depth : int64_t{get(IFM_DEPTH_M1)} + 1;
  Plane<T> plane;
  read_window<T>(
      memory, in, kernel.rows(out.height) - pad.top - pad.bottom, kernel.columns(out.width) - pad.left - pad.right,
      ifm_depth, pad, upscale(), T(0), plane);
  const Rounding rounding = ofm_rounding();
  std::vector<Channel> scales;
  if (global_scale()) {
    scales.assign(static_cast<size_t>(out.depth), {0, scale_of(OFM_SCALE, rounding)});
  } else {
    scales = channels(out.depth, rounding);
  }
  int64_t greatest_bias = 0;
  uint64_t greatest_scale = 0;
  for (const Channel& channel : scales) {
    greatest_bias = std::max(greatest_bias, std::abs(channel.bias));
    greatest_scale = std::max<uint64_t>(greatest_scale, channel.scale.scale);
  }
  const int64_t row_size = out.width * out.depth;
  std::vector<T> own, patch;
  const T* w;
  if constexpr (std::is_same_v<T, int16_t>) {
    w = layer->data();
  } else {
    own.assign(layer->begin(), layer->end());
    w = own.data();
  }
  std::vector<Sum> sums(static_cast<size_t>(row_size));
  std::vector<int64_t> scaled(static_cast<size_t>(row_size));
  for (int64_t y = 0; y < out.height; ++y) {
    if (depthwise) {
      depthwise_row<T, Sum>(plane, kernel, w, y, out.width, out.depth, sums.data());
    } else {
      convolve_row<T, Sum>(plane, kernel, w, y, out.width, out.depth, patch, sums.data());
    }
    int64_t greatest = kMost32;
    if constexpr (std::is_same_v<Sum, int64_t>) {
      require_range(sums.data(), row_size, in.element_bytes == 1 ? kMost32 : kMost40, "convolution");
      greatest = kMost40;
    }
    const bool wide = static_cast<uint64_t>(greatest + greatest_bias) > (uint64_t{1} << 62) / std::max<uint64_t>(1, greatest_scale);
    scale_row<Sum>(scales, wide, out.width, out.depth, sums.data(), scaled.data());
    write_row(out, y, scaled.data());
  }
}

void U55::convolve(bool depthwise, ethosu_sim_operation& done) {
  Finish out = finish();
  describe(out, depthwise ? "depthwise convolution" : "convolution", done);
  const FeatureMap in = ifm();
  const Kernel k = kernel();
  if (in.element_bytes > 2) {
    not_modelled("NPU_SET_IFM_PRECISION = " + hex(get(IFM_PRECISION)) + ": a convolution of 32 bits is not modelled");
  }
  const int64_t ifm_depth = depthwise ? 1 : int64_t{get(IFM_DEPTH_M1)} + 1;
  const int64_t taps = k.height * k.width * ifm_depth;
  memory.budget.spend(product({out.height, out.width, out.depth, taps}));
  const Weights layer = layer_weights(depthwise, in, k, out.depth, ifm_depth);
  check_overlap(out, {window_source(out, in, k, !depthwise)});
  // 255 x 511: the largest product of a value minus its zero point and a 9-bit weight.
  const bool fits = taps < kMost32 / (255 * 256);
  use_tables(out);
  if (in.element_bytes == 1 && fits) {
    convolve_as<int16_t, int32_t>(depthwise, out, in, k, layer);
  } else {
    convolve_as<int32_t, int64_t>(depthwise, out, in, k, layer);
  }
}

template <class T, class Sum>
void U55::pool_as(uint32_t mode, Finish& out, const FeatureMap& in) {
  const Kernel k = kernel();
  const Padding pad = padding();
  const bool average = mode == 1;
  const bool padded = pad.top || pad.left || pad.bottom || pad.right;
  const int64_t height = k.rows(out.height) - pad.top - pad.bottom, width = k.columns(out.width) - pad.left - pad.right;
  Plane<T> plane;
  read_window<T>(
      memory, in, height, width, out.depth, pad, upscale(), average ? T(0) : std::numeric_limits<T>::min(), plane);
  const Rounding rounding = ofm_rounding();
  // The NPU itself divides padded averages by the number of elements inside the map.
  const bool divides = average && padded;
  std::vector<Channel> scales;
  if (!divides) {
    if (global_scale()) {
      scales.assign(static_cast<size_t>(out.depth), {0, scale_of(OFM_SCALE, rounding)});
    } else if (average) {
      scales = channels(out.depth, rounding);
    }
  } else if (global_scale() && (value(OFM_SCALE) != 1 || (registers_.cmd1[OFM_SCALE].parameter & 63) != 0)) {
    not_modelled("NPU_SET_OFM_SCALE = " + hex(value(OFM_SCALE)) + " of a padded average pool is not modelled");
  }
  const int64_t row_size = out.width * out.depth;
  std::vector<Sum> sums(static_cast<size_t>(row_size));
  std::vector<int64_t> scaled(static_cast<size_t>(row_size));
  const auto inside = [](int64_t at, int64_t taps, int64_t dilation, int64_t size) {
    int64_t count = 0;
    for (int64_t i = 0; i < taps; ++i) {
      count += at + i * dilation >= 0 && at + i * dilation < size;
    }
    return count;
  };
  for (int64_t y = 0; y < out.height; ++y) {
    pool_row<T, Sum>(plane, k, average ? Pool::sum : Pool::greatest, y, out.width, sums.data());
    if (divides) {
      const int64_t rows = inside(y * k.stride_y - pad.top, k.height, k.dilation_y, height);
      for (int64_t x = 0; x < out.width; ++x) {
        const int64_t count = rows * inside(x * k.stride_x - pad.left, k.width, k.dilation_x, width);
        if (count == 0) {
          invalid("a window of the average pool lies in the padding alone");
        }
        // The reciprocal, rounded up in 32 bits.
        unsigned bits = 0;
        while ((count - 1) >> bits) {
          ++bits;
        }
        const uint64_t scale = ((uint64_t{1} << (31 + bits)) + (uint64_t{1} << bits)) / static_cast<uint64_t>(count);
        const Scale reciprocal{static_cast<uint32_t>(scale), 31 + bits, rounding, 0};
        for (int64_t c = 0; c < out.depth; ++c) {
          const int64_t i = x * out.depth + c;
          scaled[static_cast<size_t>(i)] = rescale_any(sums[static_cast<size_t>(i)], reciprocal);
        }
      }
    } else if (scales.empty()) {
      std::copy(sums.begin(), sums.end(), scaled.begin());
    } else {
      // Sums of 8-bit values over at most 2^16 taps have 24 bits: their product with a scale has less than 62.
      scale_row<Sum>(scales, sizeof(Sum) > 4 || !global_scale(), out.width, out.depth, sums.data(), scaled.data());
    }
    write_row(out, y, scaled.data());
  }
}

void U55::reduce_sum(Finish& out, const FeatureMap& in) {
  const int64_t depth = int64_t{get(IFM_DEPTH_M1)} + 1;
  const Kernel k = kernel();
  const Padding pad = padding();
  if (out.depth != 1 || k.height != 1 || k.width != 1 || k.stride_x != 1 || k.stride_y != 1 || pad.top || pad.left ||
      pad.bottom || pad.right || upscale() != Upscale::none) {
    not_modelled("a sum over depth with more than one output channel, a kernel, padding or upscaling is not modelled");
  }
  memory.budget.spend(product({out.height, out.width, depth}));
  const Scale scale = global_scale() ? scale_of(OFM_SCALE, ofm_rounding()) : Scale{1, 0, Rounding::half_up, 0};
  // 32 bits hold every difference but that of a 32-bit value and a zero point.
  const bool narrow = in.element_bytes < 4 || in.zero_point == 0;
  std::vector<int32_t> row(static_cast<size_t>(narrow ? out.width * depth : 0));
  std::vector<int64_t> wide(static_cast<size_t>(narrow ? 0 : out.width * depth)), sums(static_cast<size_t>(out.width));
  const auto add = [&](const auto* values) {
    for (int64_t x = 0; x < out.width; ++x, values += depth) {
      int64_t sum = 0;
      for (int64_t c = 0; c < depth; ++c) {
        sum += values[c];
      }
      sums[static_cast<size_t>(x)] = sum;
    }
  };
  for (int64_t y = 0; y < out.height; ++y) {
    if (narrow) {
      read_row(memory, in, y, out.width, depth, row.data());
      add(row.data());
    } else {
      read_row(memory, in, y, out.width, depth, wide.data());
      add(wide.data());
    }
    require_range(sums.data(), out.width, in.element_bytes == 2 ? kMost40 : kMost32, "sum over depth");
    for (int64_t& sum : sums) {
      sum = rescale_any(sum, scale);
    }
    write_row(out, y, sums.data());
  }
}

void U55::pool(uint32_t mode, ethosu_sim_operation& done) {
  static const char* const names[] = {"max pool", "average pool", "sum over depth"};
  if (mode > 2) {
    not_modelled("pooling mode " + std::to_string(mode) + " is not modelled");
  }
  Finish out = finish();
  describe(out, names[mode], done);
  const FeatureMap in = ifm();
  use_tables(out);
  check_overlap(out, {window_source(out, in, kernel(), mode == 2)});
  if (mode == 2) {
    reduce_sum(out, in);
    return;
  }
  const Kernel k = kernel();
  memory.budget.spend(product({out.height, out.width, out.depth, k.height, k.width}));
  if (in.element_bytes == 1 && k.height * k.width <= 1 << 16) {
    pool_as<int16_t, int32_t>(mode, out, in);
  } else if (in.element_bytes <= 2) {
    pool_as<int32_t, int64_t>(mode, out, in);
  } else {
    pool_as<int64_t, int64_t>(mode, out, in);
  }
}

} // namespace ethosu::u55
