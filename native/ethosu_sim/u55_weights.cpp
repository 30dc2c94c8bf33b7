#include "u55_weights.h"

#include <algorithm>

namespace ethosu::u55 {
namespace {

constexpr int64_t kIfmUblock = 8;

int64_t up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Visits the weights of one core in stream order. `visit` is called with the index of each weight in [ofm][kernel
// y][kernel x][ifm] (depthwise: [ofm][kernel y][kernel x]), or -1 for padding.
template <class Visit>
void walk(const WeightLayout& l, int64_t core, Visit&& visit) {
  const int64_t depth = (l.ofm_depth - core + l.cores - 1) / l.cores; // of this core
  const int64_t block = std::max<int64_t>(1, (l.block_depth + l.cores - 1 - core) / l.cores);
  const int64_t ifm_block = l.part_kernel || l.ifm_16_bit ? 16 : 32;
  // Taps of a sub-kernel are padded to a multiple of this.
  const int64_t round = l.depthwise ? 4 : l.part_kernel ? (l.ifm_16_bit ? 2 : 4) : 1;
  const auto put = [&](int64_t o, int64_t y, int64_t x, int64_t i, bool inside) {
    if (!inside || o >= depth || i >= l.ifm_depth) {
      visit(int64_t{-1});
      return;
    }
    const int64_t ofm = o * l.cores + core;
    const int64_t index = l.depthwise ? (y * l.kernel_width + x) * l.ofm_depth + ofm
                                      : ((ofm * l.kernel_height + y) * l.kernel_width + x) * l.ifm_depth + i;
    visit(index);
  };
  for (int64_t ob = 0; ob < depth; ob += block) {
    const int64_t ofm_channels = std::min(block, depth - ob);
    for (int64_t ib = 0; ib < (l.depthwise ? 1 : l.ifm_depth); ib += ifm_block) {
      const int64_t ifm_channels = l.depthwise     ? kIfmUblock
                                   : l.part_kernel ? std::min(ifm_block, l.ifm_depth - ib)
                                                   : ifm_block;
      for (int64_t sy = 0; sy < l.kernel_height; sy += l.sub_height) {
        const int64_t height = std::min(l.sub_height, l.kernel_height - sy);
        for (int64_t sx = 0; sx < l.kernel_width; sx += l.sub_width) {
          const int64_t width = std::min(l.sub_width, l.kernel_width - sx);
          const int64_t taps = up(height * width, round);
          // Part kernel: all taps of 8 channels, then the next 8; depth first: all channels of a tap, then the next.
          const int64_t outer = l.part_kernel ? ifm_channels : 1, inner = l.part_kernel ? 1 : ifm_channels;
          for (int64_t io = 0; io < outer; io += kIfmUblock) {
            for (int64_t ou = 0; ou < ofm_channels; ou += l.ofm_ublock) {
              for (int64_t tap = 0; tap < taps; ++tap) {
                const int64_t y = tap / width, x = tap % width;
                for (int64_t ii = 0; ii < inner; ii += kIfmUblock) {
                  for (int64_t o = 0; o < l.ofm_ublock; ++o) {
                    for (int64_t i = 0; i < (l.depthwise ? 1 : kIfmUblock); ++i) {
                      put(ob + ou + o, sy + y, sx + x, ib + io + ii + i, y < height);
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

} // namespace

std::vector<int16_t> decode_layer(
    const WeightLayout& layout, const std::vector<std::pair<const uint8_t*, size_t>>& streams) {
  std::vector<int16_t> result(static_cast<size_t>(
      layout.ofm_depth * layout.kernel_height * layout.kernel_width * layout.ifm_depth));
  std::vector<int16_t> stream;
  for (int64_t core = 0; core < layout.cores; ++core) {
    size_t count = 0;
    walk(layout, core, [&count](int64_t) { ++count; });
    const auto& [data, size] = streams[static_cast<size_t>(core)];
    stream.reserve(count);
    decode_mlw(data, size, count, stream);
    if (stream.size() < count) {
      invalid(
          "the weight stream of core " + std::to_string(core) + " holds " + std::to_string(stream.size()) +
          " weights, but the operation reads " + std::to_string(count));
    }
    size_t i = 0;
    walk(layout, core, [&](int64_t index) {
      if (index >= 0) {
        result[static_cast<size_t>(index)] = stream[i];
      } else if (stream[i] != 0) {
        invalid(
            "weight " + std::to_string(i) + " of the stream of core " + std::to_string(core) + " is " +
            std::to_string(stream[i]) + ", where the kernel has only padding: it was made for another block or kernel");
      }
      ++i;
    });
  }
  return result;
}

std::string key_of(const WeightLayout& l) {
  std::string key = "u55";
  for (const int64_t part :
       {l.ofm_depth, l.ifm_depth, l.kernel_height, l.kernel_width, l.block_depth, l.sub_height, l.sub_width,
        l.ofm_ublock, l.cores, int64_t{l.depthwise}, int64_t{l.part_kernel}, int64_t{l.ifm_16_bit}}) {
    key += "," + std::to_string(part);
  }
  return key;
}

} // namespace ethosu::u55
