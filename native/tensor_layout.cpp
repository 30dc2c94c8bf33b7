#include "tensor_layout.h"

#include "status.h"

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include <string>

namespace micronpu {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;

// True if the elements of `tensor` are dense in memory in the given order of axes. Strides of size-1 axes are ignored:
// they do not affect memory, and the dim order of such a tensor is arbitrary.
template <typename Axis>
bool lies_in_order(const Tensor& tensor, const Axis& axis_at) {
  if (tensor.numel() == 0) {
    return true;
  }
  int64_t expected = 1;
  for (ssize_t i = tensor.dim() - 1; i >= 0; --i) {
    const ssize_t axis = axis_at(i);
    if (tensor.size(axis) == 1) {
      continue;
    }
    if (tensor.strides()[axis] != expected) {
      return false;
    }
    expected *= tensor.size(axis);
  }
  return true;
}

bool is_contiguous(const Tensor& tensor) {
  return lies_in_order(tensor, [](ssize_t i) { return i; });
}

// The channels-last orders that ExecuTorch knows: 0, 2, .., rank - 1, 1 for rank 4 and 5.
bool is_channels_last(const Tensor& tensor) {
  const ssize_t rank = tensor.dim();
  return (rank == 4 || rank == 5) &&
      lies_in_order(tensor, [rank](ssize_t i) { return i == 0 ? 0 : i == rank - 1 ? 1 : i + 1; });
}

// Compare the dim order, as Neutron's delegate does, even if axes of size 1 make other orders the same bytes: a tensor
// that the board refuses must not run on the host.
bool names_contiguous(const Tensor& tensor) {
  const auto order = tensor.dim_order();
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) {
      return false;
    }
  }
  return true;
}

bool names_channels_last(const Tensor& tensor) {
  const auto order = tensor.dim_order();
  const size_t rank = order.size();
  if (rank != 4 && rank != 5) {
    return false;
  }
  for (size_t i = 0; i < rank; ++i) {
    if (order[i] != (i == 0 ? 0 : i == rank - 1 ? 1 : i + 1)) {
      return false;
    }
  }
  return true;
}

// `is_strict`: see `Family`.
Layout layout_of(const Tensor& tensor, const TensorSlot& slot, bool is_strict) {
  const ssize_t rank = tensor.dim();
  const bool contiguous = is_strict ? names_contiguous(tensor) : is_contiguous(tensor);
  // C, H, W and H, W, C are the same bytes if there is one channel.
  const bool moves_channels = slot.channels_last && !(rank >= 3 && tensor.size(rank - 3) == 1);
  if (!moves_channels) {
    return contiguous ? Layout::as_is : Layout::unsupported;
  }
  if (is_strict ? names_channels_last(tensor) : is_channels_last(tensor)) {
    return Layout::as_is;
  }
  return rank >= 3 && contiguous ? Layout::permute : Layout::unsupported;
}

// True for the element types that a delegate with `any_type` false takes.
bool is_small_integer(ScalarType type) {
  return type == ScalarType::Char || type == ScalarType::Byte || type == ScalarType::Short || type == ScalarType::Int ||
      type == ScalarType::Bool;
}

template <typename T>
void transpose(const uint8_t* from, uint8_t* to, size_t batch, size_t rows, size_t columns) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  for (size_t n = 0; n < batch; ++n, source += rows * columns, target += rows * columns) {
    for (size_t column = 0; column < columns; ++column) {
      for (size_t row = 0; row < rows; ++row) {
        target[column * rows + row] = source[row * columns + column];
      }
    }
  }
}

// [batch][rows][columns] -> [batch][columns][rows]. False for an element size that the NPU lacks.
bool transpose(const void* from, void* to, size_t element, size_t batch, size_t rows, size_t columns) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  switch (element) {
    case 1:
      transpose<uint8_t>(source, target, batch, rows, columns);
      return true;
    case 2:
      transpose<uint16_t>(source, target, batch, rows, columns);
      return true;
    case 4:
      transpose<uint32_t>(source, target, batch, rows, columns);
      return true;
    case 8:
      transpose<uint64_t>(source, target, batch, rows, columns);
      return true;
    default:
      return false;
  }
}

std::string text_of(const Tensor& tensor) {
  const auto join = [](const auto& values) {
    std::string text;
    for (size_t i = 0; i < values.size(); ++i) {
      text += (i ? ", " : "") + std::to_string(values[i]);
    }
    return text;
  };
  return "shape (" + join(tensor.sizes()) + ") and dim order (" + join(tensor.dim_order()) + ")";
}

Error bad_tensor(
    const char* backend, const char* what, size_t index, const std::string& why, const char* hint) {
  return fail(
      Error::InvalidArgument,
      std::string(what) + " " + std::to_string(index) + " of " + backend + " " + why + " Try: " + hint + ".");
}

struct Chw {
  size_t batch = 1, channels = 1, pixels = 1;

  explicit Chw(const Tensor& tensor) {
    const ssize_t rank = tensor.dim();
    for (ssize_t i = 0; i < rank; ++i) {
      (i < rank - 3 ? batch : i == rank - 3 ? channels : pixels) *= static_cast<size_t>(tensor.size(i));
    }
  }
};

} // namespace

Error prepare(
    const Family& family, const char* what, size_t index, const EValue& value, const TensorSlot& slot, bool is_own,
    std::vector<uint8_t>& memory, micronpu_tensor& entry, Layout& layout) {
  const char* backend = family.backend;
  if (!value.isTensor()) {
    return bad_tensor(backend, what, index, "is not a tensor.", "export the model with tensors only");
  }
  const Tensor& tensor = value.toTensor();
  const size_t element = static_cast<size_t>(tensor.element_size());
  if (element != 1 && element != 2 && element != 4 && element != 8) {
    return bad_tensor(
        backend, what, index, "has elements of " + std::to_string(element) + " bytes, but only 1, 2, 4 and 8 exist.",
        "use int8, uint8, int16, int32, int64 or float tensors");
  }
  if (!family.any_type && !is_small_integer(tensor.scalar_type())) {
    return bad_tensor(
        backend, what, index,
        std::string("has elements of the type ") + executorch::runtime::toString(tensor.scalar_type()) +
            ", which the board's delegate does not take.",
        "a quantized model");
  }
  layout = is_own ? Layout::as_is : layout_of(tensor, slot, family.is_strict);
  if (layout == Layout::unsupported) {
    return bad_tensor(
        backend, what, index, "has " + text_of(tensor) + ", a memory layout that the NPU cannot take.",
        slot.channels_last ? "a contiguous or channels-last tensor" : "a contiguous tensor");
  }
  entry = {};
  entry.size = tensor.nbytes();
  entry.scalar_type = static_cast<int32_t>(tensor.scalar_type());
  if (layout == Layout::permute) {
    memory.resize(tensor.nbytes());
    entry.data = memory.data();
  } else {
    entry.data = const_cast<void*>(tensor.const_data_ptr());
  }
  if (entry.data == nullptr && entry.size != 0) {
    return bad_tensor(backend, what, index, "has no memory.", "compile the model again with memory planning on");
  }
  return Error::Ok;
}

void to_channels_last(const Tensor& tensor, void* to) {
  const Chw size(tensor);
  transpose(
      tensor.const_data_ptr(), to, static_cast<size_t>(tensor.element_size()), size.batch, size.channels, size.pixels);
}

void from_channels_last(const void* from, const Tensor& tensor) {
  const Chw size(tensor);
  transpose(
      from, tensor.mutable_data_ptr(), static_cast<size_t>(tensor.element_size()), size.batch, size.pixels,
      size.channels);
}

} // namespace micronpu
