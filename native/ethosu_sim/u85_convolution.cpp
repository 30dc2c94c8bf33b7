#include "u85_machine.h"

#include <algorithm>

namespace ethosu::u85 {
namespace {


// True if sums of `products` 9-bit values times 9-bit weights fit into 32 bits.
bool fits_narrow(unsigned element_bytes, int64_t products) {
  return element_bytes == 1 && products < int64_t{1} << 14;
}

} // namespace

Weights U85Machine::read_weights(const WeightLayout& layout) {
  static constexpr unsigned kBases[] = {WEIGHT_BASE, WEIGHT1_BASE, WEIGHT2_BASE, WEIGHT3_BASE};
  static constexpr unsigned kLengths[] = {WEIGHT_LENGTH, WEIGHT1_LENGTH, WEIGHT2_LENGTH, WEIGHT3_LENGTH};
  const unsigned region = get(WEIGHT_REGION) & 7;
  const int64_t num_streams = layout.fast ? 1 : cores(layout.macs);
  std::vector<std::pair<const uint8_t*, size_t>> streams;
  for (int64_t i = 0; i < num_streams; ++i) {
    const uint64_t length = value(kLengths[i]), base = length ? address(kBases[i]) : 0;
    if (length % 16 || base % 16) {
      invalid(
          "the weights of core " + std::to_string(i) + " are " + std::to_string(length) + " bytes at " + hex(base) +
          ", not multiples of 16");
    }
    const uint8_t* data = length ? memory.read(region, base, length, "weights") : nullptr;
    streams.emplace_back(data, static_cast<size_t>(length));
  }
  if (!streams[0].second) {
    invalid("NPU_SET_WEIGHT_LENGTH is 0: the operation has no weights");
  }
  return weights.get(layout.key(), streams, [&] { return decode_weights(layout, streams); });
}

void U85Machine::convolve(bool depthwise, ethosu_sim_operation& done) {
  const Kernel window = kernel();
  const bool part_kernel = get(KERNEL_STRIDE) >> 2 & 1;
  const uint32_t format = get(WEIGHT_FORMAT);
  Output out;
  open(out, true);
  open_accumulators(out);
  done.name = depthwise ? "depthwise convolution" : "convolution";
  describe(out, done);
  if (!is_channelwise() && accumulators_.output) {
    not_modelled(
        "NPU_SET_OFM_PRECISION is " + hex(get(OFM_PRECISION)) +
        ": one scale for all channels of a convolution with constant weights is not modelled");
  }

  if (element_bytes(Input::ifm) > 4) {
    not_modelled(
        "NPU_SET_IFM_PRECISION is " + hex(get(IFM_PRECISION)) +
        ": a convolution of elements of 64 bits is not modelled");
  }

  WeightLayout layout;
  layout.ofm_depth = out.size.depth;
  layout.kernel_height = window.height;
  layout.kernel_width = window.width;
  layout.ifm_depth = depthwise ? 1 : ifm_depth();
  layout.stride_y = window.stride_y;
  layout.stride_x = window.stride_x;
  layout.dilation_y = window.dilation_y;
  layout.dilation_x = window.dilation_x;
  layout.ofm_block_depth = int64_t{get(OFM_BLK_DEPTH_M1)} + 1;
  layout.microblock_depth = microblock_depth();
  layout.traversal =
      depthwise ? Traversal::depthwise : part_kernel ? Traversal::part_kernel : Traversal::depth_first;
  layout.ifm_bits = 8 * element_bytes(Input::ifm);
  layout.fast = format & 1;
  layout.sparse = format >> 4 & 1;
  layout.macs = macs_;
  if (layout.fast && depthwise) {
    not_modelled("NPU_SET_WEIGHT_FORMAT is " + hex(format) + ": depthwise weights have no fast format");
  }
  const int64_t taps = window.height * window.width;
  if (taps > kMostTaps / layout.ifm_depth || taps * layout.ifm_depth > (int64_t{1} << 31) / out.size.depth) {
    not_modelled(
        "the kernel of " + std::to_string(window.height) + " x " + std::to_string(window.width) + " x " +
        std::to_string(layout.ifm_depth) + " is larger than the simulator takes");
  }
  memory.budget.spend(layout.count());
  const Weights decoded = read_weights(layout);
  memory.budget.spend(static_cast<uint64_t>(out.size.height * out.size.width) * layout.count());
  if (fits_narrow(element_bytes(Input::ifm), taps * layout.ifm_depth)) {
    convolve_as<int16_t, int32_t>(depthwise, out, window, layout.ifm_depth, layout.ifm_block_depth(), *decoded);
  } else if (element_bytes(Input::ifm) <= 2) {
    convolve_as<int32_t, int64_t>(depthwise, out, window, layout.ifm_depth, layout.ifm_block_depth(), *decoded);
  } else {
    convolve_as<int64_t, int64_t>(depthwise, out, window, layout.ifm_depth, layout.ifm_block_depth(), *decoded);
  }
  close(out);
}

template <class T, class Sum>
void U85Machine::convolve_as(
    bool depthwise, Output& out, const Kernel& kernel, int64_t depth, int64_t job_depth,
    const std::vector<int16_t>& weights) {
  const Padding pad = padding();
  const Size size = read_size(out, depthwise ? out.size.depth : depth);
  Plane<T> in;
  read_input<T>(Input::ifm, size, pad, upscale(), 0, in);
  check_window(out, size, depthwise ? Reads::window_channels : Reads::window, depthwise ? size.depth : job_depth);
  std::vector<T> converted, patch;
  const T* taps;
  if constexpr (std::is_same_v<T, int16_t>) {
    taps = weights.data();
  } else {
    converted.assign(weights.begin(), weights.end());
    taps = converted.data();
  }
  std::vector<Sum> sums(static_cast<size_t>(out.size.width * out.size.depth));
  for (int64_t y = 0; y < out.size.height; ++y) {
    if (depthwise) {
      depthwise_row(in, kernel, taps, y, out.size.width, out.size.depth, sums.data());
    } else {
      convolve_row(in, kernel, taps, y, out.size.width, out.size.depth, patch, sums.data());
    }
    put_accumulators(out, y, sums.data());
  }
}

// The weights are IFM2: OFM channel j of column x is the sum over c of IFM[x][c] * IFM2[j][c].
void U85Machine::multiply(ethosu_sim_operation& done) {
  Output out;
  open(out, false);
  open_accumulators(out);
  done.name = "matrix product";
  describe(out, done);
  const Kernel window = kernel();
  if (out.size.height != 1 || window.height != 1 || window.width != 1) {
    not_modelled("a matrix product of several rows, or with a kernel, is not modelled");
  }
  if (accumulators_.input == ACC_IFM2) {
    invalid(
        "NPU_SET_ACC_FORMAT is " + hex(get(ACC_FORMAT)) +
        ": IFM2 holds the weights, it cannot hold the accumulators too");
  }
  if (is_channelwise() && accumulators_.output) {
    not_modelled(
        "NPU_SET_OFM_PRECISION is " + hex(get(OFM_PRECISION)) +
        ": scales per channel of a matrix product are not modelled");
  }
  const int64_t depth = ifm_depth();
  memory.budget.spend(static_cast<uint64_t>(out.size.width * out.size.depth) * static_cast<uint64_t>(depth));
  if (element_bytes(Input::ifm2) == 1 && fits_narrow(element_bytes(Input::ifm), depth)) {
    multiply_as<int16_t, int32_t>(out, depth);
  } else if (element_bytes(Input::ifm) <= 2 && element_bytes(Input::ifm2) <= 2) {
    multiply_as<int32_t, int64_t>(out, depth);
  } else {
    not_modelled("a matrix product of elements of 32 bits is not modelled");
  }
  close(out);
}

template <class T, class Sum>
void U85Machine::multiply_as(Output& out, int64_t depth) {
  Plane<T> rows, columns;
  read_input<T>(Input::ifm, {1, out.size.width, depth}, padding(), upscale(), 0, rows);
  read_input<T>(Input::ifm2, {1, out.size.depth, depth}, {}, Upscale::none, 0, columns);
  WeightLayout layout; // its depth of a job is that of constant weights, depth first
  layout.microblock_depth = microblock_depth();
  layout.ifm_bits = 8 * element_bytes(Input::ifm);
  layout.macs = macs_;
  std::vector<Source> sources(2);
  for (Source& source : sources) {
    const bool first = &source == sources.data();
    source.reads = first ? Reads::window : Reads::weights;
    source.map = feature_map(first ? Input::ifm : Input::ifm2);
    source.size = {1, first ? out.size.width : out.size.depth, depth};
    source.job_depth = layout.ifm_block_depth();
  }
  check_overlap(out, false, sources);
  std::vector<Sum> sums(static_cast<size_t>(out.size.width * out.size.depth));
  std::vector<T> patch;
  convolve_row(rows, Kernel{}, columns.data.data(), 0, out.size.width, out.size.depth, patch, sums.data());
  put_accumulators(out, 0, sums.data());
}

} // namespace ethosu::u85
