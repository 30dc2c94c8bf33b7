// Host kernels of the `cortex_m::*` operators, for programs that ExecuTorch's Cortex-M passes have rewritten.
//
// Each function has its schema's name and arguments (executorch.backends.cortex_m.ops.operators). It throws a Refusal
// for arguments that the board's kernel refuses, or for which that kernel would compute a wrong result. The host needs
// no scratch memory, but refuses less than the board's kernels write, where that size is known.
#pragma once

#include "cortexm_common.h"

#include <executorch/runtime/core/error.h>

namespace micronpu::cortexm {

// clang-format off
using Quantize = void(const Tensor& input, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
    ScalarType dtype, Tensor& out);
using Add = void(const Tensor& a, int64_t a_zero_point, int64_t a_multiplier, int64_t a_shift, const Tensor& b,
    int64_t b_zero_point, int64_t b_multiplier, int64_t b_shift, int64_t zero_point, int64_t multiplier, int64_t shift,
    int64_t activation_min, int64_t activation_max, Tensor& out);
using Multiply = void(const Tensor& a, int64_t a_zero_point, const Tensor& b, int64_t b_zero_point, int64_t zero_point,
    int64_t multiplier, int64_t shift, Tensor& out);
using Divide = void(const Tensor& a, int64_t a_zero_point, const Tensor& b, int64_t b_zero_point, int64_t zero_point,
    double effective_scale, Tensor& out);
using Binary = void(const Tensor& a, const Tensor& b, Tensor& out);
using Linear = void(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
    const OptionalTensor& kernel_sum, int64_t input_offset, int64_t filter_offset, int64_t output_offset,
    Integers multipliers, Integers shifts, int64_t activation_max, int64_t activation_min, Tensor& out);
using BatchMatmul = void(const Tensor& lhs, int64_t lhs_offset, const Tensor& rhs_transposed, int64_t rhs_offset,
    int64_t output_offset, int64_t multiplier, int64_t shift, const Tensor& scratch, Tensor& out);
using Softmax = void(const Tensor& input, int64_t dim, int64_t input_zero_point, int64_t output_zero_point,
    int64_t multiplier, int64_t shift, int64_t diff_min, Tensor& out);
using Transpose = void(const Tensor& input, Integers permutation, Tensor& out);
using Pad = void(const Tensor& input, Integers pre_pad, Integers post_pad, int64_t pad_value, Tensor& out);
using Convolution = void(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride,
    Integers padding, Integers dilation, int64_t input_offset, int64_t output_offset, const Tensor& multipliers,
    const Tensor& shifts, int64_t activation_min, int64_t activation_max, const Tensor& scratch, Tensor& out);
using Depthwise = void(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride,
    Integers padding, Integers dilation, int64_t depth_multiplier, int64_t input_offset, int64_t output_offset,
    const Tensor& multipliers, const Tensor& shifts, int64_t activation_min, int64_t activation_max,
    const Tensor& scratch, Tensor& out);
using Transposed = void(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride,
    Integers padding, Integers output_padding, Integers dilation, int64_t input_offset, int64_t output_offset,
    const Tensor& multipliers, const Tensor& shifts, int64_t activation_min, int64_t activation_max,
    const Tensor& scratch, const Tensor& output_scratch, Tensor& out);
using AveragePool = void(const Tensor& input, Integers kernel_size, Integers stride, Integers padding, bool ceil_mode,
    int64_t zero_point, int64_t multiplier, int64_t shift, const Tensor& scratch, Tensor& out);
using MaxPool = void(const Tensor& input, Integers kernel_size, Integers stride, Integers padding, Integers dilation,
    bool ceil_mode, int64_t input_zero_point, int64_t output_zero_point, int64_t activation_min, int64_t activation_max,
    Tensor& out);

// Kernels of windows, each for both layouts.
template <Layout layout>
struct Convolutions {
  static Convolution plain;
  static Depthwise depthwise;
  static Transposed transposed;
};

template <Layout layout>
struct Pools {
  static AveragePool average;
  static MaxPool largest;
};

// The list of all operators. KERNEL: type and name of the kernel. WINDOW: name (the layout channels_last adds _nhwc)
// and the namespace of its kernels.
#define MICRONPU_CORTEXM_KERNELS(KERNEL, WINDOW)               \
  KERNEL(Quantize, quantize_per_tensor)                        \
  KERNEL(Quantize, dequantize_per_tensor)                      \
  KERNEL(Add, quantized_add)                                   \
  KERNEL(Multiply, quantized_mul)                              \
  KERNEL(Divide, quantized_div)                                \
  KERNEL(Binary, quantized_activation)                         \
  KERNEL(Binary, minimum)                                      \
  KERNEL(Binary, maximum)                                      \
  KERNEL(Linear, quantized_linear)                             \
  KERNEL(BatchMatmul, quantized_batch_matmul)                  \
  KERNEL(Softmax, softmax)                                     \
  KERNEL(Transpose, transpose)                                 \
  KERNEL(Pad, pad)                                             \
  WINDOW(quantized_conv2d, Convolutions, plain)                \
  WINDOW(quantized_depthwise_conv2d, Convolutions, depthwise)  \
  WINDOW(quantized_transpose_conv2d, Convolutions, transposed) \
  WINDOW(quantized_avg_pool2d, Pools, average)                 \
  WINDOW(quantized_max_pool2d, Pools, largest)
// clang-format on

#define MICRONPU_DECLARE(type, name) type name;
#define MICRONPU_DECLARED(name, home, function)
MICRONPU_CORTEXM_KERNELS(MICRONPU_DECLARE, MICRONPU_DECLARED)
#undef MICRONPU_DECLARE
#undef MICRONPU_DECLARED

// Registers the kernels that the ExecuTorch runtime does not have yet: registering a name twice ends the process.
executorch::runtime::Error register_kernels();

} // namespace micronpu::cortexm
