#include "u85_machine.h"

#include <algorithm>

namespace ethosu::u85 {
namespace {

constexpr int64_t kFar = int64_t{1} << 40; // beyond any value: the padding of maximum and minimum pools
constexpr const char* kNames[] = {"max pool",           "average pool", "sum over depth", "sum pool",
                                  "accumulator output", "min pool",     "arg max over x", "arg max over y"};

// Number of the `taps` window positions first, first + dilation, .. that are inside [0, size).
int64_t inside(int64_t first, int64_t taps, int64_t dilation, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < taps; ++i) {
    const int64_t at = first + i * dilation;
    count += at >= 0 && at < size;
  }
  return count;
}

} // namespace

void U85Machine::pool(uint32_t mode, ethosu_sim_operation& done) {
  if (mode > POOL_ARGMAX_Y) {
    not_modelled("NPU_OP_POOL's mode " + std::to_string(mode) + " is unknown");
  }
  Output out;
  open(out, true);
  open_accumulators(out);
  done.name = kNames[mode];
  describe(out, done);
  const Kernel window = kernel();
  if (window.height * window.width > kMostTaps || (mode != POOL_NONE && element_bytes(Input::ifm) > 4)) {
    not_modelled(
        std::string(done.name) + " over " + std::to_string(window.height) + " x " + std::to_string(window.width) +
        " elements of " + std::to_string(8 * element_bytes(Input::ifm)) + " bits is not modelled");
  }
  const uint64_t results = static_cast<uint64_t>(out.size.count());
  memory.budget.spend(results * static_cast<uint64_t>(window.height * window.width));
  switch (mode) {
    case POOL_NONE: {
      if (accumulators_.input == ACC_IFM2) {
        check_overlap(out, false, {Source::same(accumulators_.ifm2, out.size)});
      } else {
        check_overlap(out, false, {});
      }
      std::vector<int64_t> sums(static_cast<size_t>(out.size.width * out.size.depth));
      for (int64_t y = 0; y < out.size.height; ++y) {
        std::fill(sums.begin(), sums.end(), 0);
        put_accumulators(out, y, sums.data());
      }
      break;
    }
    case POOL_REDUCE_SUM:
      sum_depth(out);
      break;
    case POOL_AVERAGE:
      average(out);
      break;
    case POOL_ARGMAX_X:
    case POOL_ARGMAX_Y:
      find_greatest(mode, out);
      break;
    default:
      if (element_bytes(Input::ifm) == 1 && mode == POOL_SUM) { // at most 2^22 values of 9 bits
        pool_as<int16_t, int32_t>(mode, out);
      } else {
        pool_as<int64_t, int64_t>(mode, out);
      }
  }
  close(out);
}

template <class T, class Sum>
void U85Machine::pool_as(uint32_t mode, Output& out) {
  const Kernel window = kernel();
  const Padding pad = padding();
  const Size size = read_size(out, out.size.depth);
  const T fill = mode == POOL_SUM ? T(0) : static_cast<T>(mode == POOL_MAX ? -kFar : kFar);
  const Pool what = mode == POOL_SUM ? Pool::sum : mode == POOL_MAX ? Pool::greatest : Pool::least;
  Plane<T> in;
  read_input<T>(Input::ifm, size, pad, upscale(), fill, in);
  check_window(out, size, Reads::window_channels, size.depth);
  std::vector<Sum> sums(static_cast<size_t>(out.size.width * out.size.depth));
  for (int64_t y = 0; y < out.size.height; ++y) {
    pool_row(in, window, what, y, out.size.width, sums.data());
    if (mode != POOL_SUM) {
      const auto [least, greatest] = std::minmax_element(sums.begin(), sums.end());
      if (*least <= -kFar || *greatest >= kFar) {
        invalid("a window of the pool lies in the padding altogether");
      }
    }
    put_accumulators(out, y, sums.data());
  }
}

// Divides the sum over the window by the number of elements inside the map; ties round away from zero.
void U85Machine::average(Output& out) {
  const Kernel window = kernel();
  const Padding pad = padding();
  const Size size = read_size(out, out.size.depth);
  if (accumulators_.input != ACC_RESET || !accumulators_.output) {
    not_modelled(
        "NPU_SET_ACC_FORMAT is " + hex(get(ACC_FORMAT)) +
        ": an average pool that keeps or continues accumulators is not modelled");
  }
  if (is_channelwise() || out.scale.scale != uint64_t{1} << out.scale.shift) {
    not_modelled("NPU_SET_OFM_SCALE is not 1 in an average pool: how it is joined with the division is not known");
  }
  Plane<int32_t> in;
  read_input<int32_t>(Input::ifm, size, pad, upscale(), 0, in);
  check_window(out, size, Reads::window_channels, size.depth);
  std::vector<int64_t> sums(static_cast<size_t>(out.size.width * out.size.depth));
  for (int64_t y = 0; y < out.size.height; ++y) {
    pool_row(in, window, Pool::sum, y, out.size.width, sums.data());
    const int64_t rows = inside(y * window.stride_y - pad.top, window.height, window.dilation_y, size.height);
    int64_t* sum = sums.data();
    for (int64_t x = 0; x < out.size.width; ++x) {
      const int64_t columns = inside(x * window.stride_x - pad.left, window.width, window.dilation_x, size.width);
      const int64_t count = rows * columns;
      if (!count) {
        invalid("a window of the average pool lies in the padding altogether");
      }
      for (int64_t c = 0; c < out.size.depth; ++c, ++sum) {
        *sum = *sum >= 0 ? (2 * *sum + count) / (2 * count) : -((-2 * *sum + count) / (2 * count));
      }
    }
    put_sums(out, y, sums.data());
  }
}

void U85Machine::sum_depth(Output& out) {
  const Kernel window = kernel();
  const int64_t depth = ifm_depth();
  if (window.height != 1 || window.width != 1 || window.stride_y != 1 || window.stride_x != 1 || out.size.depth != 1) {
    not_modelled("a sum over depth with a kernel, or with more than one channel of output, is not modelled");
  }
  memory.budget.spend(static_cast<uint64_t>(out.size.count()) * static_cast<uint64_t>(depth));
  Plane<int64_t> in;
  const Padding pad = padding();
  const Size size{out.size.height - pad.top - pad.bottom, out.size.width - pad.left - pad.right, depth};
  read_input<int64_t>(Input::ifm, size, pad, upscale(), 0, in);
  check_window(out, size, Reads::window, element_bytes(Input::ifm) == 4 ? 32 : 64);
  std::vector<int64_t> sums(static_cast<size_t>(out.size.width));
  for (int64_t y = 0; y < out.size.height; ++y) {
    for (int64_t x = 0; x < out.size.width; ++x) {
      const int64_t* values = in.at(y, x);
      int64_t sum = 0;
      for (int64_t c = 0; c < depth; ++c) {
        sum += values[c];
      }
      sums[static_cast<size_t>(x)] = sum;
    }
    put_accumulators(out, y, sums.data());
  }
}

// The accumulator holds the index of the first maximum above its 16-bit value; OFM_SCALE shifts the value out.
void U85Machine::find_greatest(uint32_t mode, Output& out) {
  const Kernel window = kernel();
  const Padding pad = padding();
  const Size size = read_size(out, out.size.depth);
  if (element_bytes(Input::ifm) > 2) {
    not_modelled(
        "NPU_SET_IFM_PRECISION is " + hex(get(IFM_PRECISION)) +
        ": arg max of elements wider than 16 bits is not modelled");
  }
  Plane<int64_t> in;
  read_input<int64_t>(Input::ifm, size, pad, upscale(), -kFar, in);
  check_window(out, size, Reads::window_channels, size.depth);
  const int64_t depth = out.size.depth;
  std::vector<int64_t> sums(static_cast<size_t>(out.size.width * depth)), greatest(static_cast<size_t>(depth));
  for (int64_t y = 0; y < out.size.height; ++y) {
    int64_t* sum = sums.data();
    for (int64_t x = 0; x < out.size.width; ++x, sum += depth) {
      std::fill(greatest.begin(), greatest.end(), -kFar - 1);
      for (int64_t ky = 0; ky < window.height; ++ky) {
        for (int64_t kx = 0; kx < window.width; ++kx) {
          const int64_t* values =
              in.at(y * window.stride_y + ky * window.dilation_y, x * window.stride_x + kx * window.dilation_x);
          for (int64_t c = 0; c < depth; ++c) {
            int64_t& best = greatest[static_cast<size_t>(c)];
            if (values[c] > best) {
              best = values[c];
              sum[c] = (mode == POOL_ARGMAX_X ? kx : ky) * 65536 + (values[c] & 0xFFFF);
            }
          }
        }
      }
    }
    put_accumulators(out, y, sums.data());
  }
}

} // namespace ethosu::u85
