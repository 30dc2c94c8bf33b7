// The blocks of an operation's output, in the order in which the NPU computes them.
#pragma once

#include "feature_map.h"

#include <algorithm>
#include <cstdint>

namespace ethosu {

struct Size {
  int64_t height = 1, width = 1, depth = 1;

  int64_t count() const {
    return height * width * depth;
  }
};

inline int64_t blocks(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

inline int64_t count_of(const Size& size, const Size& block) {
  return blocks(size.depth, block.depth) * blocks(size.width, block.width) * blocks(size.height, block.height);
}

// Block number `index` of a map: depth first, then columns, then rows.
inline Area block_of(const Size& size, const Size& block, int64_t index) {
  const int64_t deep = blocks(size.depth, block.depth), wide = blocks(size.width, block.width);
  const int64_t c = index % deep * block.depth, x = index / deep % wide * block.width,
                y = index / deep / wide * block.height;
  return {y, std::min(y + block.height, size.height), x, std::min(x + block.width, size.width),
          c, std::min(c + block.depth, size.depth)};
}

} // namespace ethosu
