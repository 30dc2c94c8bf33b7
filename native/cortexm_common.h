// Argument checks that throw messages, views of tensors in the board's memory layout, and CMSIS-NN's requantization:
// shared by the host kernels of the `cortex_m::*` operators.
//
// The arithmetic is defined in tests/cortexm_reference.py, which names CMSIS-NN's file for each operator.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

// GCC vectorizes reductions and loops of unknown length at -O3 only; Clang does at -O2.
#if defined(__GNUC__) && !defined(__clang__)
#define MICRONPU_VECTORIZE __attribute__((optimize("O3")))
#else
#define MICRONPU_VECTORIZE
#endif

namespace micronpu::cortexm {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using Integers = executorch::aten::ArrayRef<int64_t>;
using OptionalTensor = std::optional<Tensor>;

// Thrown by a check and turned into the plug-in's last error before ExecuTorch sees it.
struct Refusal {
  std::string sentence;
};

// `hint` is what to try, as a clause without a full stop.
[[noreturn]] void refuse(const std::string& what, const std::string& hint = "");

// "int8 [1, 8, 4, 4]"
std::string describe(const Tensor& tensor);

void require_type(const Tensor& tensor, ScalarType type, const char* role);
void require_range(int64_t value, int64_t low, int64_t high, const char* name);
void require_shape(const Tensor& tensor, std::initializer_list<int64_t> shape, const char* role);

// True if the elements are dense in memory in the given order of axes, outermost first. Axes of size 1 are ignored.
bool lies_in_order(const Tensor& tensor, std::initializer_list<int> axes);
bool is_contiguous(const Tensor& tensor);
bool is_channels_last(const Tensor& tensor);
void require_contiguous(const Tensor& tensor, const char* role);

bool same_shape(const Tensor& a, const Tensor& b);
// True if two tensors of one shape have every element at the same offset in memory.
bool same_layout(const Tensor& a, const Tensor& b);

// Sets the shape of `out`; does nothing if a program of fixed shapes has set it already.
void resize(Tensor& out, const std::vector<int64_t>& shape);
// Gives `out` the shape and memory layout of `like`, and the element type `type`.
void prepare_like(const Tensor& like, Tensor& out, ScalarType type);

// How an operator counts the axes of its images; in memory both are N, H, W, C.
enum class Layout { channels_second, channels_last };

// Sizes of an image in memory.
struct Image {
  int64_t batch, height, width, channels;
};

// The image in an int8 tensor; refused unless its memory is N, H, W, C.
Image image_of(const Tensor& tensor, Layout layout, const char* role);
void prepare_image(Tensor& out, Layout layout, const Image& image);

struct Pair {
  int64_t vertical, horizontal;
};

// A list of two entries, or of one for both, each at least `low`.
Pair pair_of(Integers values, int64_t low, const char* name);

// CMSIS-NN's multiplier and shift, `multiplier * 2**(shift - 31)`.
struct Scale {
  int32_t multiplier;
  int32_t shift;
};

Scale scale_of(int64_t multiplier, int64_t shift, const char* name);
// One scale for each of `channels`, from two int32 tensors.
std::vector<Scale> channel_scales(const Tensor& multipliers, const Tensor& shifts, int64_t channels);
// `channels` biases: those of an int32 tensor, or zeros.
std::vector<int32_t> channel_biases(const OptionalTensor& bias, int64_t channels, const char* role);

// Bounds of an int8 result.
struct Bounds {
  int32_t low, high;

  int8_t clamp(int32_t value) const {
    return static_cast<int8_t>(std::min(std::max(value, low), high));
  }
};

Bounds bounds_of(int64_t low, int64_t high);

inline int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// High 32 bits of 2 * a * b, rounded to nearest, for a non-negative multiplier.
inline int32_t doubling_high_multiply(int32_t a, int32_t b) {
  return static_cast<int32_t>((static_cast<int64_t>(a) * b + (1LL << 30)) >> 31);
}

// value / 2**exponent, ties away from zero, for exponents up to 31.
inline int32_t rounding_right_shift(int32_t value, int32_t exponent) {
  const int64_t mask = (1LL << exponent) - 1;
  const int64_t threshold = (mask >> 1) + (value < 0 ? 1 : 0);
  return (value >> exponent) + ((value & mask) > threshold ? 1 : 0);
}

// arm_nn_requantize with two roundings. A left shift wraps around as an int32 register does.
inline int32_t requantize(int32_t value, const Scale& scale) {
  const int32_t left = std::max(scale.shift, 0);
  const int32_t shifted = static_cast<int32_t>(static_cast<uint32_t>(value) << left);
  return rounding_right_shift(doubling_high_multiply(shifted, scale.multiplier), left - scale.shift);
}

// Widens int8 numbers to int16 and adds an offset; int16 operands let compilers vectorize multiplications in pairs.
inline void widen(const int8_t* from, int64_t count, int32_t offset, int16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<int16_t>(from[i] + offset);
  }
}

// Sum of products of numbers of magnitude at most 255, wrapping around like an int32 register.
int32_t dot(const int16_t* a, const int16_t* b, int64_t count);

} // namespace micronpu::cortexm
