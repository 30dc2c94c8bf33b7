// The inner loops on dense blocks: no registers, no memory, no checks. Sums are exact or wrap in 32 bits, as documented
// at each function.
#pragma once

#include "feature_map.h"

#include <cstdint>

namespace ethosu {

struct Kernel {
  int64_t height = 1, width = 1; // taps
  int64_t stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1;

  // Rows (columns) of input that `count` outputs need.
  int64_t rows(int64_t count) const {
    return (count - 1) * stride_y + (height - 1) * dilation_y + 1;
  }
  int64_t columns(int64_t count) const {
    return (count - 1) * stride_x + (width - 1) * dilation_x + 1;
  }
};

// One output row of a convolution: sums[width][depth] = sum over the window of in * weights[depth][kernel y][kernel x]
// [in.depth]. `in` is the result of read_window(). `patch` is a buffer that the function may grow. <int16_t, int32_t>
// for 8-bit data, otherwise <int32_t, int64_t>.
template <class T, class Sum>
void convolve_row(
    const Plane<T>& in, const Kernel& kernel, const T* weights, int64_t y, int64_t width, int64_t depth,
    std::vector<T>& patch, Sum* sums);

// The same for a depthwise convolution, weights[kernel y][kernel x][depth].
template <class T, class Sum>
void depthwise_row(
    const Plane<T>& in, const Kernel& kernel, const T* weights, int64_t y, int64_t width, int64_t depth, Sum* sums);

// One row of a pool over the window: maximum, minimum or sum of in[..][channel].
enum class Pool { greatest, least, sum };
template <class T, class Sum>
void pool_row(const Plane<T>& in, const Kernel& kernel, Pool pool, int64_t y, int64_t width, Sum* sums);

} // namespace ethosu
