// Feature maps as the registers describe them: four tiles, strides, NHWC or NHCWB16, 8 to 64 bits an element.
#pragma once

#include "memory.h"

#include <cstdint>
#include <vector>

namespace ethosu {

struct FeatureMap {
  enum class Tiles { two_by_two, three_by_one };

  const char* name = "IFM";
  unsigned region = 0;
  uint64_t base[4] = {}; // top left, top right, bottom left, bottom right (2x2); from left to right... see row_part()
  int64_t height0 = 1, height1 = 1, width0 = 1; // rows of the left, rows of the right tile, columns of the left tiles
  Tiles tiles = Tiles::two_by_two;
  int64_t stride_y = 0, stride_x = 0, stride_c = 0; // bytes
  bool bricks = false; // NHCWB16
  unsigned element_bytes = 1;
  bool is_signed = true;
  int32_t zero_point = 0;

  int64_t least() const; // of the element type
  int64_t most() const;
};

// A dense block of values, height x width x depth.
template <class T>
struct Plane {
  int64_t height = 0, width = 0, depth = 0;
  std::vector<T> data;

  void shape(int64_t h, int64_t w, int64_t c, T value = T()) {
    height = h, width = w, depth = c;
    data.assign(static_cast<size_t>(h * w * c), value);
  }
  T* at(int64_t y, int64_t x) {
    return data.data() + (y * width + x) * depth;
  }
  const T* at(int64_t y, int64_t x) const {
    return data.data() + (y * width + x) * depth;
  }
};

// Reads `width` elements x `depth` of row y into out[width][depth] and subtracts the zero point. T is int16_t, int32_t
// or int64_t; the caller ensures that it is wide enough. Checks every byte once.
template <class T>
void read_row(Memory& memory, const FeatureMap& map, int64_t y, int64_t width, int64_t depth, T* out);

// Writes values[width][depth] to row y; values are within the range of the element type.
template <class T>
void write_row(Memory& memory, const FeatureMap& map, int64_t y, int64_t width, int64_t depth, const T* values);

// A block of a feature map: rows, columns and channels [begin, end).
struct Area {
  int64_t y0 = 0, y1 = 0, x0 = 0, x1 = 0, c0 = 0, c1 = 0;
};

// True if a block of one map shares a byte with a block of another. Reads no memory.
bool share_bytes(const FeatureMap& a, const Area& in_a, const FeatureMap& b, const Area& in_b);

struct Padding {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};

enum class Upscale { none, nearest, zeros }; // by two in both directions

// The input of a window operation: rows x columns as the kernel reads them, including padding and upscaling. `height` x
// `width` of the map (after upscaling, before padding) are used.
template <class T>
void read_window(
    Memory& memory, const FeatureMap& map, int64_t height, int64_t width, int64_t depth, const Padding& padding,
    Upscale upscale, T fill, Plane<T>& out);

// The whole map, height x width x depth.
template <class T>
void read_plane(Memory& memory, const FeatureMap& map, int64_t height, int64_t width, int64_t depth, Plane<T>& out) {
  read_window(memory, map, height, width, depth, Padding{}, Upscale::none, T(0), out);
}

} // namespace ethosu
