#include "cortexm_kernels.h"

#include <cmath>
#include <limits>

namespace micronpu::cortexm {
namespace {

// Converts to the nearest int32: saturates, and maps NaN to 0, like Arm's conversion instruction.
int64_t saturated_int32(float value) {
  if (std::isnan(value)) {
    return 0;
  }
  if (value >= 2147483648.0f) {
    return INT32_MAX;
  }
  return value < -2147483648.0f ? INT32_MIN : static_cast<int64_t>(value);
}

template <typename Number>
void quantize_all(
    const Tensor& input, float inverse_scale, int64_t zero_point, int64_t low, int64_t high, Tensor& out) {
  require_range(low, std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max(), "quant_min");
  require_range(high, low, std::numeric_limits<Number>::max(), "quant_max");
  const float* from = input.const_data_ptr<float>();
  Number* to = out.mutable_data_ptr<Number>();
  for (int64_t i = 0; i < input.numel(); ++i) {
    const int64_t number = saturated_int32(std::nearbyint(from[i] * inverse_scale)) + zero_point;
    to[i] = static_cast<Number>(std::min(std::max(number, low), high));
  }
}

template <typename Number>
void dequantize_all(const Tensor& input, float scale, int64_t zero_point, Tensor& out) {
  const Number* from = input.const_data_ptr<Number>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < input.numel(); ++i) {
    to[i] = static_cast<float>(from[i] - zero_point) * scale;
  }
}

void require_scale(double scale) {
  const float rounded = static_cast<float>(scale);
  if (!(rounded > 0) || std::isinf(rounded)) {
    refuse("the scale is " + std::to_string(scale) + ", but must be a positive float32.");
  }
}

void require_int8_or_int16(const Tensor& tensor, const char* role) {
  if (tensor.scalar_type() != ScalarType::Char && tensor.scalar_type() != ScalarType::Short) {
    refuse(std::string(role) + " must be int8 or int16, but is " + describe(tensor) + ".");
  }
}

// Calls `compute(a, b)` for each pair of elements. One operand may be a vector of one number for each channel.
template <typename Compute>
void for_each_pair(const Tensor& a, const Tensor& b, Tensor& out, Compute compute) {
  require_type(a, ScalarType::Char, "the first input");
  require_type(b, ScalarType::Char, "the second input");
  const Tensor& larger = b.numel() > a.numel() ? b : a;
  const Tensor& smaller = b.numel() > a.numel() ? a : b;
  const bool equal = same_shape(a, b);
  if (!equal) {
    const bool per_channel =
        a.dim() == 4 && b.dim() == 4 && a.size(1) == b.size(1) && smaller.numel() == smaller.size(1);
    if (!per_channel) {
      refuse(
          "the inputs are " + describe(a) + " and " + describe(b) +
          ", but must have one shape, or one of them one number for each channel.");
    }
    image_of(larger, Layout::channels_second, "the larger input");
  } else if (!same_layout(a, b)) {
    refuse("the inputs, both " + describe(a) + ", have their axes in different orders in memory.");
  }
  prepare_like(larger, out, ScalarType::Char);
  const int8_t* left = a.const_data_ptr<int8_t>();
  const int8_t* right = b.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  // The vector is as long as the tensor if the shapes are equal.
  const int64_t length = smaller.numel();
  for (int64_t start = 0; start < larger.numel(); start += length) {
    const int8_t* x = left + (a.numel() == length ? 0 : start);
    const int8_t* y = right + (b.numel() == length ? 0 : start);
    for (int64_t i = 0; i < length; ++i) {
      to[start + i] = compute(x[i], y[i]);
    }
  }
}

void require_zero_points(std::initializer_list<int64_t> zero_points) {
  for (const int64_t zero_point : zero_points) {
    require_range(zero_point, INT8_MIN, INT8_MAX, "a zero point");
  }
}

template <typename Number>
void divide_all(
    const Tensor& a, int64_t a_zero_point, const Tensor& b, int64_t b_zero_point, int64_t zero_point, float scale,
    Tensor& out) {
  const Number* x = a.const_data_ptr<Number>();
  const Number* y = b.const_data_ptr<Number>();
  Number* to = out.mutable_data_ptr<Number>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float numerator = static_cast<float>(x[i] - a_zero_point);
    const float denominator = static_cast<float>(y[i] - b_zero_point);
    const float quotient = denominator == 0 ? 0.0f : numerator / denominator;
    const int64_t number = saturated_int32(std::round(quotient * scale)) + zero_point;
    to[i] = static_cast<Number>(std::min<int64_t>(
        std::max<int64_t>(number, std::numeric_limits<Number>::min()), std::numeric_limits<Number>::max()));
  }
}

// Strides of a tensor of up to four axes as one of four; an axis along which it is repeated has stride 0.
std::array<int64_t, 4> broadcast_strides(const Tensor& tensor) {
  std::array<int64_t, 4> strides{};
  for (int axis = 0; axis < tensor.dim(); ++axis) {
    const int place = 4 - static_cast<int>(tensor.dim()) + axis;
    strides[place] = tensor.size(axis) == 1 ? 0 : tensor.strides()[axis];
  }
  return strides;
}

std::vector<int64_t> broadcast_shape(const Tensor& a, const Tensor& b) {
  const Tensor& longer = b.dim() > a.dim() ? b : a;
  const Tensor& shorter = b.dim() > a.dim() ? a : b;
  std::vector<int64_t> shape(longer.sizes().begin(), longer.sizes().end());
  for (int axis = 0; axis < shorter.dim(); ++axis) {
    int64_t& size = shape[longer.dim() - shorter.dim() + axis];
    if (size != shorter.size(axis) && size != 1 && shorter.size(axis) != 1) {
      refuse("the shapes of the inputs, " + describe(a) + " and " + describe(b) + ", do not go together.");
    }
    size = size == 1 ? shorter.size(axis) : size;
  }
  return shape;
}

template <typename Number, typename Choose>
void choose_all(const Tensor& a, const Tensor& b, Tensor& out, Choose choose) {
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  for (int axis = 0; axis < out.dim(); ++axis) {
    sizes[4 - out.dim() + axis] = out.size(axis);
  }
  const auto x = broadcast_strides(a);
  const auto y = broadcast_strides(b);
  const auto z = broadcast_strides(out);
  const Number* left = a.const_data_ptr<Number>();
  const Number* right = b.const_data_ptr<Number>();
  Number* to = out.mutable_data_ptr<Number>();
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      for (int64_t k = 0; k < sizes[2]; ++k) {
        for (int64_t l = 0; l < sizes[3]; ++l) {
          to[i * z[0] + j * z[1] + k * z[2] + l * z[3]] = choose(
              left[i * x[0] + j * x[1] + k * x[2] + l * x[3]], right[i * y[0] + j * y[1] + k * y[2] + l * y[3]]);
        }
      }
    }
  }
}

template <typename Choose>
void choose_from(const Tensor& a, const Tensor& b, Tensor& out, bool also_int32, Choose choose) {
  const ScalarType type = a.scalar_type();
  if (type != ScalarType::Char && !(also_int32 && type == ScalarType::Int)) {
    const std::string types = also_int32 ? "int8 or int32" : "int8";
    refuse("the inputs must be " + types + ", but one is " + describe(a) + ".");
  }
  require_type(b, type, "the second input");
  require_type(out, type, "the output");
  resize(out, broadcast_shape(a, b));
  if (out.dim() > 4) {
    refuse("the output has " + std::to_string(out.dim()) + " axes, but CMSIS-NN takes at most 4.");
  }
  // arm_minimum_s8 interprets the sizes of the axes as memory order, for any layout.
  require_contiguous(a, "the first input");
  require_contiguous(b, "the second input");
  require_contiguous(out, "the output");
  if (type == ScalarType::Char) {
    choose_all<int8_t>(a, b, out, choose);
  } else {
    choose_all<int32_t>(a, b, out, choose);
  }
}

} // namespace

void quantize_per_tensor(
    const Tensor& input, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max, ScalarType dtype,
    Tensor& out) {
  require_type(input, ScalarType::Float, "the input");
  require_scale(scale);
  require_int8_or_int16(out, "the output");
  require_range(zero_point, INT16_MIN, INT16_MAX, "the zero point");
  prepare_like(input, out, dtype);
  const float inverse_scale = 1.0f / static_cast<float>(scale);
  if (dtype == ScalarType::Char) {
    quantize_all<int8_t>(input, inverse_scale, zero_point, quant_min, quant_max, out);
  } else {
    quantize_all<int16_t>(input, inverse_scale, zero_point, quant_min, quant_max, out);
  }
}

void dequantize_per_tensor(
    const Tensor& input, double scale, int64_t zero_point, int64_t, int64_t, ScalarType dtype, Tensor& out) {
  require_scale(scale);
  require_int8_or_int16(input, "the input");
  require_type(input, dtype, "the input");
  require_range(zero_point, INT16_MIN, INT16_MAX, "the zero point");
  prepare_like(input, out, ScalarType::Float);
  if (dtype == ScalarType::Char) {
    dequantize_all<int8_t>(input, static_cast<float>(scale), zero_point, out);
  } else {
    dequantize_all<int16_t>(input, static_cast<float>(scale), zero_point, out);
  }
}

void quantized_add(
    const Tensor& a, int64_t a_zero_point, int64_t a_multiplier, int64_t a_shift, const Tensor& b, int64_t b_zero_point,
    int64_t b_multiplier, int64_t b_shift, int64_t zero_point, int64_t multiplier, int64_t shift,
    int64_t activation_min, int64_t activation_max, Tensor& out) {
  constexpr int32_t left_shift = 20;
  require_zero_points({a_zero_point, b_zero_point, zero_point});
  const Scale a_scale = scale_of(a_multiplier, a_shift, "the first input");
  const Scale b_scale = scale_of(b_multiplier, b_shift, "the second input");
  const Scale out_scale = scale_of(multiplier, shift, "the output");
  const Bounds bounds = bounds_of(activation_min, activation_max);
  const int32_t a_zero = static_cast<int32_t>(a_zero_point);
  const int32_t b_zero = static_cast<int32_t>(b_zero_point);
  const int32_t out_zero = static_cast<int32_t>(zero_point);
  for_each_pair(a, b, out, [&](int8_t x, int8_t y) {
    const int32_t left = requantize((x - a_zero) * (1 << left_shift), a_scale);
    const int32_t right = requantize((y - b_zero) * (1 << left_shift), b_scale);
    return bounds.clamp(requantize(wrapping_add(left, right), out_scale) + out_zero);
  });
}

void quantized_mul(
    const Tensor& a, int64_t a_zero_point, const Tensor& b, int64_t b_zero_point, int64_t zero_point,
    int64_t multiplier, int64_t shift, Tensor& out) {
  require_zero_points({a_zero_point, b_zero_point, zero_point});
  const Scale scale = scale_of(multiplier, shift, "the output");
  const Bounds bounds{INT8_MIN, INT8_MAX};
  const int32_t a_zero = static_cast<int32_t>(a_zero_point);
  const int32_t b_zero = static_cast<int32_t>(b_zero_point);
  const int32_t out_zero = static_cast<int32_t>(zero_point);
  for_each_pair(a, b, out, [&](int8_t x, int8_t y) {
    return bounds.clamp(requantize((x - a_zero) * (y - b_zero), scale) + out_zero);
  });
}

void quantized_div(
    const Tensor& a, int64_t a_zero_point, const Tensor& b, int64_t b_zero_point, int64_t zero_point,
    double effective_scale, Tensor& out) {
  require_int8_or_int16(a, "the first input");
  require_type(b, a.scalar_type(), "the second input");
  require_scale(effective_scale);
  for (const int64_t zero : {a_zero_point, b_zero_point, zero_point}) {
    require_range(zero, INT16_MIN, INT16_MAX, "a zero point");
  }
  if (!same_shape(a, b)) {
    refuse("the inputs are " + describe(a) + " and " + describe(b) + ", but must have one shape.");
  }
  if (!same_layout(a, b)) {
    refuse("the inputs, both " + describe(a) + ", have their axes in different orders in memory.");
  }
  prepare_like(a, out, a.scalar_type());
  const float scale = static_cast<float>(effective_scale);
  if (a.scalar_type() == ScalarType::Char) {
    divide_all<int8_t>(a, a_zero_point, b, b_zero_point, zero_point, scale, out);
  } else {
    divide_all<int16_t>(a, a_zero_point, b, b_zero_point, zero_point, scale, out);
  }
}

void quantized_activation(const Tensor& input, const Tensor& table, Tensor& out) {
  require_type(input, ScalarType::Char, "the input");
  require_type(table, ScalarType::Char, "the table");
  require_shape(table, {256}, "the table");
  prepare_like(input, out, ScalarType::Char);
  const int8_t* from = input.const_data_ptr<int8_t>();
  const int8_t* entries = table.const_data_ptr<int8_t>() + 128;
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t i = 0; i < input.numel(); ++i) {
    to[i] = entries[from[i]];
  }
}

void minimum(const Tensor& a, const Tensor& b, Tensor& out) {
  choose_from(a, b, out, true, [](auto x, auto y) { return std::min(x, y); });
}

void maximum(const Tensor& a, const Tensor& b, Tensor& out) {
  choose_from(a, b, out, false, [](auto x, auto y) { return std::max(x, y); });
}

} // namespace micronpu::cortexm
