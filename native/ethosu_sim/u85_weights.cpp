#include "u85_weights.h"

#include <algorithm>

namespace ethosu::u85 {
namespace {

constexpr int64_t kInterleave = 4; // OFM channels that a core takes at a time
constexpr int64_t kSubkernel = 8; // largest side of a subkernel, dilated

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Channels that are read before the kernel advances.
int64_t ifm_microblock_depth(const WeightLayout& l) {
  switch (l.traversal) {
    case Traversal::depthwise:
      return 1;
    case Traversal::part_kernel:
      return l.ifm_bits == 16 && !l.sparse ? 8 : l.ifm_block_depth();
    case Traversal::depth_first:
      break;
  }
  return l.ifm_block_depth();
}

// The number of kernel elements is padded to a multiple of this.
int64_t kernel_granule(const WeightLayout& l) {
  switch (l.traversal) {
    case Traversal::depthwise:
      return 10;
    case Traversal::part_kernel:
      return l.ifm_bits == 16 || l.sparse ? 10 : 5;
    case Traversal::depth_first:
      break;
  }
  return 1;
}

// Visits the weights of one core in stream order: `visitor.weight(ofm, ky, kx, ifm)` for each weight, and
// `visitor.padding(count)` for padding. A weight may be outside the layer.
template <class Visitor>
void walk(const WeightLayout& l, int64_t core, Visitor& visitor) {
  const bool depthwise = l.traversal == Traversal::depthwise;
  const bool depth_first = l.traversal == Traversal::depth_first;
  const int64_t num_cores = cores(l.macs);
  const int64_t ifm_block = l.ifm_block_depth(), ifm_microblock = ifm_microblock_depth(l);
  const int64_t ifm_step = depthwise ? 1 : l.sparse ? 16 : 8;
  const int64_t granule = kernel_granule(l);
  const int64_t stride_y = depth_first ? 1 : l.stride_y, stride_x = depth_first ? 1 : l.stride_x;
  const int64_t side_y = kSubkernel / l.dilation_y, side_x = kSubkernel / l.dilation_x;
  // Elements that the depthwise engine skips after each granule.
  const int64_t gap = !depthwise ? 0 : l.ifm_bits != 16 && l.macs <= 256 ? 0 : l.macs <= 512 ? 2 : 6;
  const int64_t num_ifm_blocks = depthwise ? 1 : (l.ifm_depth + ifm_block - 1) / ifm_block;

  bool backwards = false;
  for (int64_t ofm_block = 0; ofm_block < l.ofm_depth; ofm_block += l.ofm_block_depth, backwards = !backwards) {
    const int64_t block_depth = std::min(l.ofm_block_depth, l.ofm_depth - ofm_block);
    for (int64_t n = 0; n < num_ifm_blocks; ++n) {
      const int64_t ifm0 = (backwards ? num_ifm_blocks - 1 - n : n) * ifm_block;
      const int64_t ifm_depth = depthwise ? 1 : std::min(ifm_block, l.ifm_depth - ifm0);
      for (int64_t kx0 = 0; kx0 < l.kernel_width; kx0 += side_x) {
        const int64_t width = std::min(l.kernel_width - kx0, side_x);
        for (int64_t ky0 = 0; ky0 < l.kernel_height; ky0 += side_y) {
          const int64_t height = std::min(l.kernel_height - ky0, side_y);
          for (int64_t ifm_outer = 0; ifm_outer < ifm_depth; ifm_outer += ifm_microblock) {
            for (int64_t ofm_outer = 0; ofm_outer < block_depth; ofm_outer += l.microblock_depth) {
              int64_t left = round_up(width * height, granule);
              for (int64_t py = 0; py < stride_y; ++py) {
                for (int64_t px = 0; px < stride_x; ++px) {
                  const int64_t rows = (height + stride_y - 1 - py) / stride_y;
                  const int64_t columns = (width + stride_x - 1 - px) / stride_x;
                  for (int64_t y = 0; y < rows; ++y) {
                    for (int64_t column = 0; column < columns; ++column) {
                      const int64_t x = y % 2 == 0 ? column : columns - 1 - column;
                      const int64_t ky = ky0 + py + y * stride_y, kx = kx0 + px + x * stride_x;
                      --left;
                      for (int64_t ifm_inner = 0; ifm_inner < ifm_microblock; ifm_inner += ifm_step) {
                        for (int64_t ofm_group = core * kInterleave; ofm_group < l.microblock_depth;
                             ofm_group += kInterleave * num_cores) {
                          for (int64_t o = 0; o < kInterleave; ++o) {
                            visitor.weights(
                                ofm_block + ofm_outer + ofm_group + o, ky, kx, ifm0 + ifm_outer + ifm_inner, ifm_step);
                          }
                        }
                      }
                      if (gap && left % granule == 0) {
                        visitor.padding(gap * l.microblock_depth / num_cores);
                      }
                    }
                  }
                }
              }
              if (left > 0) {
                visitor.padding((left + gap) * ifm_microblock * l.microblock_depth / num_cores);
              }
            }
          }
        }
      }
    }
  }
}

struct Counter {
  size_t count = 0;

  void weights(int64_t, int64_t, int64_t, int64_t, int64_t step) {
    count += static_cast<size_t>(step);
  }
  void padding(int64_t n) {
    count += static_cast<size_t>(n);
  }
};

// Writes a stream's weights to their indices. Weights outside the layer and in the padding must be zero.
struct Placer {
  const WeightLayout& layout;
  const int16_t* next;
  int16_t* out;
  bool zeros = true;

  void weights(int64_t ofm, int64_t ky, int64_t kx, int64_t ifm, int64_t step) {
    const bool depthwise = layout.traversal == Traversal::depthwise;
    const int64_t inside = ofm < layout.ofm_depth ? std::min(step, layout.ifm_depth - ifm) : 0;
    const int64_t first = depthwise ? (ky * layout.kernel_width + kx) * layout.ofm_depth + ofm
                                    : ((ofm * layout.kernel_height + ky) * layout.kernel_width + kx) * layout.ifm_depth + ifm;
    for (int64_t i = 0; i < inside; ++i) {
      out[first + i] = next[i];
    }
    for (int64_t i = std::max<int64_t>(inside, 0); i < step; ++i) {
      zeros = zeros && next[i] == 0;
    }
    next += step;
  }
  void padding(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      zeros = zeros && next[i] == 0;
    }
    next += n;
  }
};

} // namespace

int64_t cores(int32_t macs) {
  return macs <= 256 ? 1 : macs == 512 ? 2 : 4;
}

int64_t WeightLayout::ifm_block_depth() const {
  if (traversal == Traversal::part_kernel) {
    return 16;
  }
  if (ifm_bits == 32 || (macs <= 256 && microblock_depth == 16 && !sparse)) {
    return 32;
  }
  return sparse && ifm_bits == 8 ? 128 : 64;
}

std::string WeightLayout::key() const {
  std::string text = "u85";
  for (const int64_t v :
       {ofm_depth, kernel_height, kernel_width, ifm_depth, stride_y, stride_x, dilation_y, dilation_x, ofm_block_depth,
        microblock_depth, static_cast<int64_t>(traversal), static_cast<int64_t>(ifm_bits), int64_t{sparse},
        int64_t{fast}, int64_t{macs}}) {
    text += ' ' + std::to_string(v);
  }
  return text;
}

std::vector<int16_t> decode_fast(const uint8_t* data, size_t size, size_t count) {
  constexpr size_t header = 32;
  if (size < header) {
    invalid("the weights in the fast format are " + std::to_string(size) + " bytes, less than their header");
  }
  const auto bits = [data](size_t first, unsigned number) {
    uint32_t value = 0;
    for (unsigned i = 0; i < number; ++i) {
      value |= static_cast<uint32_t>(data[(first + i) / 8] >> (first + i) % 8 & 1) << i;
    }
    return value;
  };
  const bool raw = bits(0, 1) != 0;
  const unsigned width = raw ? 8 : bits(1, 1) ? 2 : 4;
  const int offset = static_cast<int8_t>(bits(104, 8));
  int16_t table[16];
  for (unsigned i = 0; i < 16; ++i) {
    const int folded = static_cast<int>(bits(112 + 9 * i, 9)); // sign in the lowest bit
    table[i] = static_cast<int16_t>(folded & 1 ? -(folded >> 1) : folded >> 1);
  }
  if ((size - header) * 8 / width < count) {
    invalid(
        "the weights in the fast format are " + std::to_string(size) + " bytes, too few for " + std::to_string(count) +
        " weights of " + std::to_string(width) + " bits");
  }
  std::vector<int16_t> weights(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t bit = header * 8 + i * width;
    const unsigned value = data[bit / 8] >> bit % 8 & ((1u << width) - 1);
    weights[i] = static_cast<int16_t>(raw ? static_cast<int8_t>(value) - offset : table[value]);
  }
  return weights;
}

std::vector<int16_t> decode_weights(
    const WeightLayout& layout, const std::vector<std::pair<const uint8_t*, size_t>>& streams) {
  const int64_t num_cores = cores(layout.macs);
  std::vector<size_t> counts;
  for (int64_t core = 0; core < num_cores; ++core) {
    Counter counter;
    walk(layout, core, counter);
    counts.push_back(counter.count);
  }
  std::vector<std::vector<int16_t>> decoded(counts.size());
  if (layout.fast) {
    // One stream: the cores alternate.
    size_t total = 0;
    for (const size_t count : counts) {
      total += count;
    }
    std::vector<int16_t> all = decode_fast(streams[0].first, streams[0].second, total);
    if (num_cores == 1) {
      decoded[0] = std::move(all);
    } else {
      const size_t unit = static_cast<size_t>(
          layout.microblock_depth * ifm_microblock_depth(layout) * kernel_granule(layout) / num_cores);
      for (size_t at = 0, core = 0; at < total; at += unit, core = (core + 1) % decoded.size()) {
        const size_t end = std::min(at + unit, total);
        decoded[core].insert(decoded[core].end(), all.begin() + static_cast<ptrdiff_t>(at),
                             all.begin() + static_cast<ptrdiff_t>(end));
      }
    }
  } else {
    for (size_t core = 0; core < counts.size(); ++core) {
      if (core < streams.size() && streams[core].second != 0) {
        // The encoder may append zeros to a stream.
        decode_mlw(streams[core].first, streams[core].second, counts[core] + 4096, decoded[core]);
      }
    }
  }
  std::vector<int16_t> weights(layout.count());
  for (size_t core = 0; core < counts.size(); ++core) {
    if (decoded[core].empty() && core > 0) {
      continue; // WEIGHTn_LENGTH 0: this core has no channel
    }
    if (decoded[core].size() < counts[core]) {
      invalid(
          "the weight stream of core " + std::to_string(core) + " holds " + std::to_string(decoded[core].size()) +
          " weights, and the operation asks for " + std::to_string(counts[core]));
    }
    Placer placer{layout, decoded[core].data(), weights.data()};
    walk(layout, static_cast<int64_t>(core), placer);
    if (!placer.zeros) {
      invalid("the weight stream of core " + std::to_string(core) + " has weights where there is no channel or tap");
    }
  }
  return weights;
}

} // namespace ethosu::u85
