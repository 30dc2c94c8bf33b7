#include "cortexm_kernels.h"

namespace micronpu::cortexm {
namespace {

// out[row, column] = clamp(scale * (lhs[row] . rhs[column] + start[column]) + offset)
void multiply(
    const int16_t* lhs, int64_t rows, const int16_t* rhs, int64_t columns, int64_t inner, const int32_t* start,
    const Scale& scale, int32_t offset, const Bounds& bounds, int8_t* out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int32_t sum = wrapping_add(dot(lhs + row * inner, rhs + column * inner, inner), start[column]);
      *out++ = bounds.clamp(requantize(sum, scale) + offset);
    }
  }
}

std::vector<int16_t> widened(const Tensor& tensor, int64_t offset) {
  std::vector<int16_t> numbers(tensor.numel());
  widen(tensor.const_data_ptr<int8_t>(), tensor.numel(), static_cast<int32_t>(offset), numbers.data());
  return numbers;
}

// exp(value) for value <= 0 with 5 integer bits; the result has none. arm_nn_exp_on_negative_values.
int32_t exp_on_negative_values(int32_t value) {
  if (value == 0) {
    return INT32_MAX;
  }
  constexpr int32_t quarter = 1 << 24;
  constexpr int32_t exp_of_minus_eighth = 1895147668;
  constexpr int32_t one_third = 715827883;
  const int32_t part = (value & (quarter - 1)) - quarter;
  const int32_t remainder = part - value;
  const int32_t x = part * 32 + (1 << 28);
  const int32_t x2 = doubling_high_multiply(x, x);
  const int32_t x3 = doubling_high_multiply(x2, x);
  const int32_t x4 = doubling_high_multiply(x2, x2);
  const int32_t tail =
      rounding_right_shift(doubling_high_multiply(rounding_right_shift(x4, 2) + x3, one_third) + x2, 1);
  int32_t result = exp_of_minus_eighth + doubling_high_multiply(exp_of_minus_eighth, x + tail);
  // exp(-1/4), exp(-1/2), exp(-1) ... exp(-16), for the bits of the rest.
  constexpr int32_t powers[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
  uint32_t bit = quarter;
  for (const int32_t power : powers) {
    if (static_cast<uint32_t>(remainder) & bit) {
      result = doubling_high_multiply(result, power);
    }
    bit *= 2;
  }
  return result;
}

int32_t saturating_left_shift(int32_t value, int32_t exponent) {
  const int64_t shifted = static_cast<int64_t>(value) * (1LL << exponent);
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(shifted, INT32_MIN), INT32_MAX));
}

// 1 / (1 + value) for value in [0, 1). arm_nn_one_over_one_plus_x_for_x_in_0_1.
int32_t one_over_one_plus(int32_t value) {
  const int32_t half_denominator = static_cast<int32_t>((static_cast<int64_t>(value) + INT32_MAX + 1) / 2);
  int32_t x = 1515870810 + doubling_high_multiply(half_denominator, -1010580540);
  for (int step = 0; step < 3; ++step) {
    const int32_t error = (1 << 29) - doubling_high_multiply(half_denominator, x);
    x += saturating_left_shift(doubling_high_multiply(x, error), 2);
  }
  return saturating_left_shift(x, 1);
}

constexpr int32_t sum_integer_bits = 12;
// Largest allowed sum, 512 times the largest exponential. Above it the last shift exceeds 31 bits, which is undefined
// in C.
constexpr int64_t softmax_sum_limit = 1LL << 28;

struct SoftmaxTable {
  int64_t diff_min;
  // Exponential by distance from the row's largest element.
  std::array<int32_t, 256> exponentials;
};

void softmax_row(const int8_t* input, int64_t size, const SoftmaxTable& table, int8_t* out) {
  const int32_t largest = *std::max_element(input, input + size);
  int64_t sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (input[i] - largest >= table.diff_min) {
      sum += rounding_right_shift(table.exponentials[largest - input[i]], sum_integer_bits);
    }
  }
  if (sum >= softmax_sum_limit) {
    refuse(
        "the exponentials of a row sum up to 512 or more, which CMSIS-NN's fixed point cannot hold.",
        "fewer classes, or a larger scale of the input");
  }
  int32_t headroom = 0;
  while (!((static_cast<uint32_t>(sum) << headroom) & 0x80000000u)) {
    ++headroom;
  }
  // The leading bit of the normalized sum is the 1 of 1 + x.
  const int32_t fraction = static_cast<int32_t>((static_cast<uint32_t>(sum) << headroom) - 0x80000000u);
  const int32_t scale = one_over_one_plus(fraction);
  const int32_t shift = sum_integer_bits - headroom + 23;
  const Bounds bounds{INT8_MIN, INT8_MAX};
  for (int64_t i = 0; i < size; ++i) {
    out[i] = INT8_MIN;
    if (input[i] - largest >= table.diff_min) {
      const int32_t share = doubling_high_multiply(scale, table.exponentials[largest - input[i]]);
      out[i] = bounds.clamp(rounding_right_shift(share, shift) - 128);
    }
  }
}

} // namespace

void quantized_linear(
    const Tensor& input, const Tensor& weights, const OptionalTensor& bias, const OptionalTensor& kernel_sum,
    int64_t input_offset, int64_t filter_offset, int64_t output_offset, Integers multipliers, Integers shifts,
    int64_t activation_max, int64_t activation_min, Tensor& out) {
  require_type(input, ScalarType::Char, "the input");
  require_type(weights, ScalarType::Char, "the weights");
  require_type(out, ScalarType::Char, "the output");
  if (input.dim() < 1 || weights.dim() != 2 || input.size(input.dim() - 1) != weights.size(1)) {
    refuse("the input " + describe(input) + " and the weights " + describe(weights) + " do not go together.");
  }
  if (bias.has_value() && kernel_sum.has_value()) {
    refuse("bias and kernel_sum are both given, but a program is compiled either for cores with MVE or without.");
  }
  if (multipliers.size() != 1 || shifts.size() != 1) {
    refuse("there must be one multiplier and one shift, but there are " + std::to_string(multipliers.size()) + " and " +
           std::to_string(shifts.size()) + ".");
  }
  require_range(input_offset, -127, 128, "input_offset");
  require_range(filter_offset, -127, 128, "filter_offset");
  require_range(output_offset, INT8_MIN, INT8_MAX, "output_offset");
  const Scale scale = scale_of(multipliers[0], shifts[0], "the output");
  const Bounds bounds = bounds_of(activation_min, activation_max);
  const int64_t inner = weights.size(1);
  const int64_t outputs = weights.size(0);
  const auto start = kernel_sum.has_value() ? channel_biases(kernel_sum, outputs, "kernel_sum")
                                            : channel_biases(bias, outputs, "the bias");
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = outputs;
  resize(out, shape);
  require_contiguous(input, "the input");
  require_contiguous(weights, "the weights");
  require_contiguous(out, "the output");
  // kernel_sum holds the input offset's part of the sum already.
  const auto rows = widened(input, kernel_sum.has_value() ? 0 : input_offset);
  const auto columns = widened(weights, filter_offset);
  const int64_t count = inner == 0 ? 0 : input.numel() / inner;
  multiply(
      rows.data(), count, columns.data(), outputs, inner, start.data(), scale, static_cast<int32_t>(output_offset),
      bounds, out.mutable_data_ptr<int8_t>());
}

void quantized_batch_matmul(
    const Tensor& lhs, int64_t lhs_offset, const Tensor& rhs_transposed, int64_t rhs_offset, int64_t output_offset,
    int64_t multiplier, int64_t shift, const Tensor&, Tensor& out) {
  require_type(lhs, ScalarType::Char, "the left matrix");
  require_type(rhs_transposed, ScalarType::Char, "the right matrix");
  require_type(out, ScalarType::Char, "the output");
  if (lhs.dim() != 3 || rhs_transposed.dim() != 3 || lhs.size(0) != rhs_transposed.size(0) ||
      lhs.size(2) != rhs_transposed.size(2)) {
    refuse(
        "the matrices are " + describe(lhs) + " and, transposed, " + describe(rhs_transposed) +
        ", but must be [batch, rows, inner] and [batch, columns, inner].");
  }
  require_range(lhs_offset, -127, 128, "the offset of the left matrix");
  require_range(rhs_offset, -127, 128, "the offset of the right matrix");
  require_range(output_offset, INT8_MIN, INT8_MAX, "the offset of the output");
  const Scale scale = scale_of(multiplier, shift, "the output");
  const int64_t batch = lhs.size(0);
  const int64_t rows = lhs.size(1);
  const int64_t columns = rhs_transposed.size(1);
  const int64_t inner = lhs.size(2);
  resize(out, {batch, rows, columns});
  require_contiguous(lhs, "the left matrix");
  require_contiguous(rhs_transposed, "the right matrix");
  require_contiguous(out, "the output");
  const auto left = widened(lhs, lhs_offset);
  const auto right = widened(rhs_transposed, rhs_offset);
  const std::vector<int32_t> start(columns, 0);
  for (int64_t i = 0; i < batch; ++i) {
    multiply(
        left.data() + i * rows * inner, rows, right.data() + i * columns * inner, columns, inner, start.data(), scale,
        static_cast<int32_t>(output_offset), {INT8_MIN, INT8_MAX}, out.mutable_data_ptr<int8_t>() + i * rows * columns);
  }
}

void softmax(
    const Tensor& input, int64_t dim, int64_t, int64_t output_zero_point, int64_t multiplier, int64_t shift,
    int64_t diff_min, Tensor& out) {
  require_type(input, ScalarType::Char, "the input");
  const int64_t rank = input.dim();
  require_range(dim, -rank, rank - 1, "dim");
  const int64_t axis = dim < 0 ? dim + rank : dim;
  require_range(output_zero_point, -128, -128, "the zero point of the output");
  require_range(multiplier, 0, INT32_MAX, "the multiplier of the input");
  require_range(shift, 0, 31, "the shift of the input");
  prepare_like(input, out, ScalarType::Char);
  const int64_t size = input.size(axis);
  if (size != 1 && input.strides()[axis] != 1) {
    refuse(
        "axis " + std::to_string(dim) + " of the input, " + describe(input) +
            ", must be the innermost one in memory.",
        "softmax over the last axis of a contiguous tensor, or over the channels of a channels-last one");
  }
  // Only differences down to this one are shifted, and the shift must keep them inside int32.
  require_range(diff_min, -((1LL << 31) >> shift), 0, "diff_min");
  SoftmaxTable table{diff_min, {}};
  for (int32_t distance = 0; distance < 256 && -distance >= diff_min; ++distance) {
    const int32_t difference = static_cast<int32_t>(-distance * (1LL << shift));
    table.exponentials[distance] =
        exp_on_negative_values(doubling_high_multiply(difference, static_cast<int32_t>(multiplier)));
  }
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t start = 0; start < input.numel(); start += size) {
    softmax_row(from + start, size, table, to + start);
  }
}

} // namespace micronpu::cortexm
