#include "cortexm_common.h"

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

namespace micronpu::cortexm {
namespace {

std::string list(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(values[i]);
  }
  return text + "]";
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

const char* type_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Float:
      return "float32";
    default:
      return executorch::runtime::toString(type);
  }
}

// Axes of an image, outermost in memory first, as the operator counts them.
std::array<int, 4> image_axes(Layout layout) {
  return layout == Layout::channels_last ? std::array<int, 4>{0, 1, 2, 3} : std::array<int, 4>{0, 2, 3, 1};
}

MICRONPU_VECTORIZE int32_t short_dot(const int16_t* a, const int16_t* b, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<int32_t>(a[i]) * static_cast<int32_t>(b[i]);
  }
  return sum;
}

} // namespace

void refuse(const std::string& what, const std::string& hint) {
  throw Refusal{hint.empty() ? what : what + " Try: " + hint + "."};
}

std::string describe(const Tensor& tensor) {
  return std::string(type_name(tensor.scalar_type())) + " " + list(shape_of(tensor));
}

void require_type(const Tensor& tensor, ScalarType type, const char* role) {
  if (tensor.scalar_type() != type) {
    refuse(std::string(role) + " must be " + type_name(type) + ", but is " + describe(tensor) + ".");
  }
}

void require_range(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value < low || value > high) {
    refuse(
        std::string(name) + " is " + std::to_string(value) + ", but must be from " + std::to_string(low) + " to " +
        std::to_string(high) + ".");
  }
}

void require_shape(const Tensor& tensor, std::initializer_list<int64_t> shape, const char* role) {
  const std::vector<int64_t> wanted(shape);
  if (shape_of(tensor) != wanted) {
    refuse(std::string(role) + " must have the shape " + list(wanted) + ", but is " + describe(tensor) + ".");
  }
}

bool lies_in_order(const Tensor& tensor, std::initializer_list<int> axes) {
  int64_t stride = 1;
  for (auto axis = std::rbegin(axes); axis != std::rend(axes); ++axis) {
    const int64_t size = tensor.size(*axis);
    if (size != 1 && tensor.strides()[*axis] != stride) {
      return false;
    }
    stride *= size;
  }
  return true;
}

bool is_contiguous(const Tensor& tensor) {
  int64_t stride = 1;
  for (auto axis = tensor.dim() - 1; axis >= 0; --axis) {
    if (tensor.size(axis) != 1 && tensor.strides()[axis] != stride) {
      return false;
    }
    stride *= tensor.size(axis);
  }
  return true;
}

bool is_channels_last(const Tensor& tensor) {
  return tensor.dim() == 4 && lies_in_order(tensor, {0, 2, 3, 1});
}

void require_contiguous(const Tensor& tensor, const char* role) {
  if (!is_contiguous(tensor)) {
    refuse(
        std::string(role) + ", " + describe(tensor) + ", must be contiguous, but its axes lie in another order.",
        "a copy to contiguous memory before this operator");
  }
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return shape_of(a) == shape_of(b);
}

bool same_layout(const Tensor& a, const Tensor& b) {
  for (auto axis = a.dim() - 1; axis >= 0; --axis) {
    if (a.size(axis) != 1 && a.strides()[axis] != b.strides()[axis]) {
      return false;
    }
  }
  return true;
}

void resize(Tensor& out, const std::vector<int64_t>& shape) {
  if (shape_of(out) == shape) {
    return;
  }
  std::vector<executorch::aten::SizesType> sizes(shape.begin(), shape.end());
  if (executorch::runtime::resize_tensor(out, {sizes.data(), sizes.size()}) != executorch::runtime::Error::Ok) {
    refuse("the output is " + describe(out) + ", but the arguments give the shape " + list(shape) + ".");
  }
}

void prepare_like(const Tensor& like, Tensor& out, ScalarType type) {
  require_type(out, type, "the output");
  resize(out, shape_of(like));
  if (!same_layout(like, out)) {
    refuse("the input " + describe(like) + " and the output have their axes in different orders in memory.");
  }
}

Image image_of(const Tensor& tensor, Layout layout, const char* role) {
  require_type(tensor, ScalarType::Char, role);
  if (tensor.dim() != 4) {
    refuse(std::string(role) + " must have 4 axes, but is " + describe(tensor) + ".");
  }
  const auto axes = image_axes(layout);
  if (!lies_in_order(tensor, {axes[0], axes[1], axes[2], axes[3]})) {
    if (layout == Layout::channels_last) {
      require_contiguous(tensor, role);
    }
    refuse(
        std::string(role) + ", " + describe(tensor) + ", must be channels-last, but its memory is in another order.",
        "model and example inputs in channels-last, x.to(memory_format=torch.channels_last), before the export");
  }
  return {tensor.size(axes[0]), tensor.size(axes[1]), tensor.size(axes[2]), tensor.size(axes[3])};
}

void prepare_image(Tensor& out, Layout layout, const Image& image) {
  const auto axes = image_axes(layout);
  std::vector<int64_t> shape(4);
  shape[axes[0]] = image.batch;
  shape[axes[1]] = image.height;
  shape[axes[2]] = image.width;
  shape[axes[3]] = image.channels;
  require_type(out, ScalarType::Char, "the output");
  resize(out, shape);
  image_of(out, layout, "the output");
}

Pair pair_of(Integers values, int64_t low, const char* name) {
  if (values.size() != 1 && values.size() != 2) {
    refuse(std::string(name) + " must have two entries, but has " + std::to_string(values.size()) + ".");
  }
  for (const int64_t value : values) {
    require_range(value, low, INT16_MAX, name);
  }
  return {values[0], values[values.size() - 1]};
}

Scale scale_of(int64_t multiplier, int64_t shift, const char* name) {
  require_range(multiplier, 0, INT32_MAX, (std::string("the multiplier of ") + name).c_str());
  require_range(shift, -31, 31, (std::string("the shift of ") + name).c_str());
  return {static_cast<int32_t>(multiplier), static_cast<int32_t>(shift)};
}

std::vector<Scale> channel_scales(const Tensor& multipliers, const Tensor& shifts, int64_t channels) {
  for (const Tensor& tensor : {multipliers, shifts}) {
    require_type(tensor, ScalarType::Int, "a per-channel multiplier or shift");
    require_shape(tensor, {channels}, "a per-channel multiplier or shift");
  }
  std::vector<Scale> scales;
  scales.reserve(channels);
  for (int64_t i = 0; i < channels; ++i) {
    scales.push_back(
        scale_of(multipliers.const_data_ptr<int32_t>()[i], shifts.const_data_ptr<int32_t>()[i], "a channel"));
  }
  return scales;
}

std::vector<int32_t> channel_biases(const OptionalTensor& bias, int64_t channels, const char* role) {
  if (!bias.has_value()) {
    return std::vector<int32_t>(channels, 0);
  }
  require_type(*bias, ScalarType::Int, role);
  if (bias->numel() != channels) {
    refuse(std::string(role) + " must have " + std::to_string(channels) + " elements, but is " + describe(*bias) + ".");
  }
  const int32_t* data = bias->const_data_ptr<int32_t>();
  return {data, data + channels};
}

Bounds bounds_of(int64_t low, int64_t high) {
  require_range(low, INT8_MIN, INT8_MAX, "activation_min");
  require_range(high, low, INT8_MAX, "activation_max");
  return {static_cast<int32_t>(low), static_cast<int32_t>(high)};
}

int32_t dot(const int16_t* a, const int16_t* b, int64_t count) {
  // 255 * 255 * 32768 still fits into int32.
  constexpr int64_t piece = 32768;
  int32_t sum = 0;
  for (int64_t start = 0; start < count; start += piece) {
    sum = wrapping_add(sum, short_dot(a + start, b + start, std::min(piece, count - start)));
  }
  return sum;
}

} // namespace micronpu::cortexm
