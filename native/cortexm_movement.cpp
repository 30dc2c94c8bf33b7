#include "cortexm_kernels.h"

#include <cstring>

namespace micronpu::cortexm {

void transpose(const Tensor& input, Integers permutation, Tensor& out) {
  require_type(input, ScalarType::Char, "the input");
  require_type(out, ScalarType::Char, "the output");
  const int64_t rank = input.dim();
  require_range(rank, 1, 4, "the number of axes");
  if (static_cast<int64_t>(permutation.size()) != rank) {
    refuse(
        "the permutation has " + std::to_string(permutation.size()) + " entries, but the input is " + describe(input) +
        ".");
  }
  std::vector<int64_t> shape(rank);
  std::vector<bool> seen(rank, false);
  // Sizes of the result, left-padded to four axes, and the input strides of its axes.
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  std::array<int64_t, 4> steps{};
  for (int64_t axis = 0; axis < rank; ++axis) {
    const int64_t source = permutation[axis];
    require_range(source, 0, rank - 1, "an entry of the permutation");
    if (seen[source]) {
      refuse("the permutation names axis " + std::to_string(source) + " twice.");
    }
    seen[source] = true;
    shape[axis] = input.size(source);
    sizes[4 - rank + axis] = input.size(source);
    steps[4 - rank + axis] = input.strides()[source];
  }
  resize(out, shape);
  require_contiguous(input, "the input");
  require_contiguous(out, "the output");
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      for (int64_t k = 0; k < sizes[2]; ++k) {
        for (int64_t l = 0; l < sizes[3]; ++l) {
          *to++ = from[i * steps[0] + j * steps[1] + k * steps[2] + l * steps[3]];
        }
      }
    }
  }
}

void pad(const Tensor& input, Integers pre_pad, Integers post_pad, int64_t pad_value, Tensor& out) {
  require_type(input, ScalarType::Char, "the input");
  require_type(out, ScalarType::Char, "the output");
  const int64_t rank = input.dim();
  require_range(rank, 1, 4, "the number of axes");
  require_range(pad_value, INT8_MIN, INT8_MAX, "pad_value");
  if (pre_pad.size() != 4 || post_pad.size() != 4) {
    refuse(
        "pre_pad and post_pad must have 4 entries each, but have " + std::to_string(pre_pad.size()) + " and " +
        std::to_string(post_pad.size()) + ".");
  }
  // The entries of the padding are in memory order. The compiler treats an image that is both contiguous and
  // channels-last as channels-last (executorch.backends.cortex_m.passes.passes_utils.is_channels_last).
  const bool channels_last = rank == 4 &&
      (input.size(1) == 1 || (input.size(2) == 1 && input.size(3) == 1) || !is_contiguous(input));
  std::array<int64_t, 4> axes{0, 1, 2, 3};
  if (channels_last) {
    if (!is_channels_last(input)) {
      refuse("the input, " + describe(input) + ", must be contiguous or channels-last.");
    }
    axes = {0, 2, 3, 1};
  } else {
    require_contiguous(input, "the input");
  }
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  std::array<int64_t, 4> padded{1, 1, 1, 1};
  std::vector<int64_t> shape(rank);
  for (int64_t place = 0; place < 4; ++place) {
    require_range(pre_pad[place], 0, INT32_MAX, "pre_pad");
    require_range(post_pad[place], 0, INT32_MAX, "post_pad");
    const int64_t added = pre_pad[place] + post_pad[place];
    if (place < 4 - rank) {
      require_range(added, 0, 0, "the padding of an axis that the input does not have");
      continue;
    }
    const int64_t axis = axes[place] - (4 - rank);
    sizes[place] = input.size(axis);
    padded[place] = shape[axis] = input.size(axis) + added;
  }
  resize(out, shape);
  if (channels_last ? !is_channels_last(out) : !is_contiguous(out)) {
    refuse("the input " + describe(input) + " and the output have their axes in different orders in memory.");
  }
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  std::memset(to, static_cast<int>(pad_value), out.numel());
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      for (int64_t k = 0; k < sizes[2]; ++k) {
        const int64_t row = ((i + pre_pad[0]) * padded[1] + j + pre_pad[1]) * padded[2] + k + pre_pad[2];
        std::memcpy(to + row * padded[3] + pre_pad[3], from, sizes[3]);
        from += sizes[3];
      }
    }
  }
}

} // namespace micronpu::cortexm
