// Layouts of the runtime's tensors that a payload accepts, and conversions between them.
#pragma once

#include "delegate.h"
#include "family.h"
#include "payload.h"

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>

#include <cstdint>
#include <vector>

namespace micronpu {

enum class Layout { as_is, permute, unsupported };

// Fills `entry` with data in the program's layout: the tensor's own memory, or `memory` if a conversion is needed.
executorch::runtime::Error prepare(
    const Family& family, const char* what, size_t index, const executorch::runtime::EValue& value,
    const TensorSlot& slot, bool is_own, std::vector<uint8_t>& memory, micronpu_tensor& entry, Layout& layout);

// Copies a tensor's elements in channels-last order, [.., C, H, W] to [.., H, W, C], and back.
void to_channels_last(const executorch::aten::Tensor& tensor, void* to);
void from_channels_last(const void* from, const executorch::aten::Tensor& tensor);

} // namespace micronpu
