#include "cortexm_kernels.h"

namespace micronpu::cortexm {
namespace {

struct Pool {
  Image in, out;
  Pair kernel, stride, padding;
};

// Number of windows along one axis. With `ceil_mode` the last one may reach past the end if it starts inside the image
// or its padding.
int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
  const int64_t room = size + 2 * padding - kernel;
  if (room < 0) {
    refuse(
        "a window of " + std::to_string(kernel) + " is larger than the padded image of " +
        std::to_string(size + 2 * padding) + ".");
  }
  int64_t count = room / stride + 1;
  if (ceil_mode && room % stride != 0 && count * stride < size + padding) {
    ++count;
  }
  return count;
}

Pool pool_of(
    const Tensor& input, Integers kernel_size, Integers stride, Integers padding, bool ceil_mode, Layout layout,
    Tensor& out) {
  Pool pool{
      image_of(input, layout, "the input"),
      {},
      pair_of(kernel_size, 1, "kernel_size"),
      pair_of(stride, 1, "stride"),
      pair_of(padding, 0, "padding")};
  // Every window must overlap the image.
  require_range(pool.padding.vertical, 0, pool.kernel.vertical - 1, "padding");
  require_range(pool.padding.horizontal, 0, pool.kernel.horizontal - 1, "padding");
  pool.out = {
      pool.in.batch,
      output_size(pool.in.height, pool.kernel.vertical, pool.stride.vertical, pool.padding.vertical, ceil_mode),
      output_size(pool.in.width, pool.kernel.horizontal, pool.stride.horizontal, pool.padding.horizontal, ceil_mode),
      pool.in.channels};
  prepare_image(out, layout, pool.out);
  return pool;
}

// Calls `start()` before each window, `take(elements of all channels)` for each place of the window inside the image,
// and `finish(number of places, results of all channels)` after it.
template <typename Start, typename Take, typename Finish>
void for_each_window(const Pool& pool, const Tensor& input, Tensor& out, Start start, Take take, Finish finish) {
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t image = 0; image < pool.out.batch; ++image) {
    for (int64_t row = 0; row < pool.out.height; ++row) {
      for (int64_t column = 0; column < pool.out.width; ++column) {
        const int64_t top = row * pool.stride.vertical - pool.padding.vertical;
        const int64_t left = column * pool.stride.horizontal - pool.padding.horizontal;
        const int64_t bottom = std::min(top + pool.kernel.vertical, pool.in.height);
        const int64_t right = std::min(left + pool.kernel.horizontal, pool.in.width);
        int64_t count = 0;
        start();
        for (int64_t y = std::max<int64_t>(top, 0); y < bottom; ++y) {
          for (int64_t x = std::max<int64_t>(left, 0); x < right; ++x) {
            take(from + ((image * pool.in.height + y) * pool.in.width + x) * pool.in.channels);
            ++count;
          }
        }
        finish(count, to);
        to += pool.out.channels;
      }
    }
  }
}

} // namespace

template <Layout layout>
void Pools<layout>::average(
    const Tensor& input, Integers kernel_size, Integers stride, Integers padding, bool ceil_mode, int64_t, int64_t,
    int64_t, const Tensor&,
    Tensor& out) {
  const Pool pool = pool_of(input, kernel_size, stride, padding, ceil_mode, layout, out);
  std::vector<int32_t> sums(pool.in.channels);
  for_each_window(
      pool, input, out, [&] { std::fill(sums.begin(), sums.end(), 0); },
      [&](const int8_t* elements) {
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += elements[i];
        }
      },
      [&](int64_t places, int8_t* results) {
        // Ties round away from zero.
        const int32_t count = static_cast<int32_t>(places);
        for (size_t i = 0; i < sums.size(); ++i) {
          const int32_t half = sums[i] > 0 ? count / 2 : -(count / 2);
          results[i] = static_cast<int8_t>((sums[i] + half) / count);
        }
      });
}

template <Layout layout>
void Pools<layout>::largest(
    const Tensor& input, Integers kernel_size, Integers stride, Integers padding, Integers dilation, bool ceil_mode,
    int64_t input_zero_point, int64_t output_zero_point, int64_t activation_min, int64_t activation_max,
    Tensor& out) {
  const Pair steps = pair_of(dilation, 1, "dilation");
  if (steps.vertical != 1 || steps.horizontal != 1) {
    refuse("the dilation is not 1, but CMSIS-NN's pools have none.");
  }
  if (ceil_mode) {
    refuse("ceil_mode is set, but the board's kernel rounds down.", "explicit padding");
  }
  if (input_zero_point != output_zero_point) {
    refuse(
        "input and output have the zero points " + std::to_string(input_zero_point) + " and " +
        std::to_string(output_zero_point) + ", but must share theirs.");
  }
  const Bounds bounds = bounds_of(activation_min, activation_max);
  const Pool pool = pool_of(input, kernel_size, stride, padding, ceil_mode, layout, out);
  std::vector<int8_t> largest(pool.in.channels);
  for_each_window(
      pool, input, out, [&] { std::fill(largest.begin(), largest.end(), INT8_MIN); },
      [&](const int8_t* elements) {
        for (size_t i = 0; i < largest.size(); ++i) {
          largest[i] = std::max(largest[i], elements[i]);
        }
      },
      [&](int64_t, int8_t* results) {
        for (size_t i = 0; i < largest.size(); ++i) {
          results[i] = bounds.clamp(largest[i]);
        }
      });
}

template struct Pools<Layout::channels_second>;
template struct Pools<Layout::channels_last>;

} // namespace micronpu::cortexm
