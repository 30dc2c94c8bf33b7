#include "cortexm_kernels.h"

namespace micronpu::cortexm {
namespace {

// Output stage of every convolution: bias, per-channel requantization, zero point and activation bounds.
struct Finish {
  std::vector<int32_t> biases;
  std::vector<Scale> scales;
  int32_t offset;
  Bounds bounds;

  int8_t operator()(int32_t sum, int64_t channel) const {
    return bounds.clamp(requantize(sum, scales[channel]) + offset);
  }
};

Finish finish_of(
    const OptionalTensor& bias, const Tensor& multipliers, const Tensor& shifts, int64_t channels,
    int64_t output_offset, int64_t activation_min, int64_t activation_max) {
  require_range(output_offset, INT8_MIN, INT8_MAX, "output_offset");
  return {
      channel_biases(bias, channels, "the bias"),
      channel_scales(multipliers, shifts, channels),
      static_cast<int32_t>(output_offset),
      bounds_of(activation_min, activation_max)};
}

int32_t offset_of(int64_t input_offset) {
  require_range(input_offset, -127, 128, "input_offset");
  return static_cast<int32_t>(input_offset);
}

struct Window {
  Pair kernel, stride, padding, dilation;
};

Window window_of(const Tensor& weight, Integers stride, Integers padding, Integers dilation) {
  return {
      {weight.size(1), weight.size(2)},
      pair_of(stride, 1, "stride"),
      pair_of(padding, 0, "padding"),
      pair_of(dilation, 1, "dilation")};
}

void require_weight(const Tensor& weight) {
  require_type(weight, ScalarType::Char, "the weight");
  if (weight.dim() != 4 || weight.numel() == 0) {
    refuse("the weight must have 4 axes and elements, but is " + describe(weight) + ".");
  }
  require_contiguous(weight, "the weight");
}

int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  if (room < 0) {
    refuse("the kernel is larger than the padded image.");
  }
  return room / stride + 1;
}

// Returns the shape of a convolution's output and resizes `out` to it.
Image prepared(const Image& in, const Window& window, int64_t channels, Layout layout, Tensor& out) {
  const Image result{
      in.batch,
      output_size(
          in.height, window.kernel.vertical, window.stride.vertical, window.padding.vertical, window.dilation.vertical),
      output_size(
          in.width, window.kernel.horizontal, window.stride.horizontal, window.padding.horizontal,
          window.dilation.horizontal),
      channels};
  prepare_image(out, layout, result);
  return result;
}

// Refuses less scratch memory than CMSIS-NN's kernel writes on every core. The size that a core needs depends on its
// instruction set, which a program does not name, so the check requires the minimum.
void require_scratch(const Tensor& scratch, int64_t bytes, const char* name) {
  const int64_t given = static_cast<int64_t>(scratch.nbytes());
  if (given < bytes) {
    refuse(
        std::string(name) + " has " + std::to_string(given) + " bytes, but CMSIS-NN needs at least " +
            std::to_string(bytes) + ".",
        "sizes from executorch.backends.cortex_m.library.cmsis_nn for the core that the program is for");
  }
}

// Scratch bytes of arm_convolve_s8: two columns of int16. 1x1 kernels use another function, which needs none; so do
// kernels of one row on cores with Helium, where arm_convolve_1_x_n_s8 keeps one column of int8.
int64_t convolution_scratch(const Image& in, const Window& window, int64_t taps, int64_t channels) {
  const bool row = in.height == 1 && window.kernel.vertical == 1 && window.dilation.horizontal == 1 &&
      in.channels == channels && window.stride.horizontal * channels % 4 == 0;
  return taps == 1 ? 0 : row ? taps * channels : 2 * 2 * taps * channels;
}

// Calls `place(index of the kernel position, input pixel or -1)` for every kernel position of one output pixel.
template <typename Place>
void for_each_tap(const Image& in, const Window& window, int64_t image, int64_t row, int64_t column, Place place) {
  int64_t tap = 0;
  for (int64_t y = 0; y < window.kernel.vertical; ++y) {
    const int64_t in_row = row * window.stride.vertical - window.padding.vertical + y * window.dilation.vertical;
    for (int64_t x = 0; x < window.kernel.horizontal; ++x, ++tap) {
      const int64_t in_column =
          column * window.stride.horizontal - window.padding.horizontal + x * window.dilation.horizontal;
      const bool inside = in_row >= 0 && in_row < in.height && in_column >= 0 && in_column < in.width;
      place(tap, inside ? (image * in.height + in_row) * in.width + in_column : -1);
    }
  }
}

// sums[i] += (numbers[i] + offset) * weights[i], wrapping around.
MICRONPU_VECTORIZE void accumulate(
    const int8_t* numbers, int32_t offset, const int16_t* weights, int64_t count, uint32_t* sums) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] += static_cast<uint32_t>((numbers[i] + offset) * weights[i]);
  }
}

// sums[i] += number * weights[i], wrapping around.
MICRONPU_VECTORIZE void accumulate_one(int32_t number, const int16_t* weights, int64_t count, uint32_t* sums) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] += static_cast<uint32_t>(number * weights[i]);
  }
}

} // namespace

template <Layout layout>
void Convolutions<layout>::plain(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride, Integers padding,
    Integers dilation, int64_t input_offset, int64_t output_offset, const Tensor& multipliers, const Tensor& shifts,
    int64_t activation_min, int64_t activation_max, const Tensor& scratch, Tensor& out) {
  const Image in = image_of(input, layout, "the input");
  require_weight(weight);
  const int64_t outputs = weight.size(0);
  const int64_t group_size = weight.size(3);
  const int64_t groups = in.channels / group_size;
  if (in.channels % group_size != 0 || groups == 0 || outputs % groups != 0) {
    refuse(
        "the weight " + describe(weight) + " does not go with an input of " + std::to_string(in.channels) +
        " channels.");
  }
  const int32_t offset = offset_of(input_offset);
  const Finish finish =
      finish_of(bias, multipliers, shifts, outputs, output_offset, activation_min, activation_max);
  const Window window = window_of(weight, stride, padding, dilation);
  const Image result = prepared(in, window, outputs, layout, out);

  const int64_t taps = window.kernel.vertical * window.kernel.horizontal;
  const int64_t length = taps * group_size;
  require_scratch(scratch, convolution_scratch(in, window, taps, group_size), "scratch");
  std::vector<int16_t> weights(weight.numel());
  widen(weight.const_data_ptr<int8_t>(), weight.numel(), 0, weights.data());
  // Input values under the kernel of one output pixel, in the order of the weights; padding counts as 0.
  std::vector<int16_t> patch(groups * length);
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t image = 0; image < result.batch; ++image) {
    for (int64_t row = 0; row < result.height; ++row) {
      for (int64_t column = 0; column < result.width; ++column) {
        for_each_tap(in, window, image, row, column, [&](int64_t tap, int64_t pixel) {
          for (int64_t group = 0; group < groups; ++group) {
            int16_t* part = patch.data() + group * length + tap * group_size;
            if (pixel < 0) {
              std::fill(part, part + group_size, static_cast<int16_t>(0));
            } else {
              widen(from + pixel * in.channels + group * group_size, group_size, offset, part);
            }
          }
        });
        for (int64_t channel = 0; channel < outputs; ++channel) {
          const int64_t group = channel / (outputs / groups);
          const int32_t sum = dot(patch.data() + group * length, weights.data() + channel * length, length);
          *to++ = finish(wrapping_add(sum, finish.biases[channel]), channel);
        }
      }
    }
  }
}

template <Layout layout>
void Convolutions<layout>::depthwise(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride, Integers padding,
    Integers dilation, int64_t depth_multiplier, int64_t input_offset, int64_t output_offset, const Tensor& multipliers,
    const Tensor& shifts, int64_t activation_min, int64_t activation_max, const Tensor&, Tensor& out) {
  const Image in = image_of(input, layout, "the input");
  require_weight(weight);
  const int64_t outputs = weight.size(3);
  if (weight.size(0) != 1 || depth_multiplier < 1 || outputs != in.channels * depth_multiplier) {
    refuse(
        "the weight " + describe(weight) + " does not go with an input of " + std::to_string(in.channels) +
        " channels and the depth multiplier " + std::to_string(depth_multiplier) + ".");
  }
  const int32_t offset = offset_of(input_offset);
  const Finish finish =
      finish_of(bias, multipliers, shifts, outputs, output_offset, activation_min, activation_max);
  const Window window = window_of(weight, stride, padding, dilation);
  const Image result = prepared(in, window, outputs, layout, out);

  std::vector<int16_t> weights(weight.numel());
  widen(weight.const_data_ptr<int8_t>(), weight.numel(), 0, weights.data());
  std::vector<uint32_t> sums(outputs);
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t image = 0; image < result.batch; ++image) {
    for (int64_t row = 0; row < result.height; ++row) {
      for (int64_t column = 0; column < result.width; ++column) {
        std::copy(finish.biases.begin(), finish.biases.end(), sums.begin());
        for_each_tap(in, window, image, row, column, [&](int64_t tap, int64_t pixel) {
          if (pixel < 0) {
            return;
          }
          const int8_t* numbers = from + pixel * in.channels;
          const int16_t* kernel = weights.data() + tap * outputs;
          if (depth_multiplier == 1) {
            accumulate(numbers, offset, kernel, outputs, sums.data());
            return;
          }
          for (int64_t channel = 0; channel < in.channels; ++channel) {
            const int64_t first = channel * depth_multiplier;
            accumulate_one(numbers[channel] + offset, kernel + first, depth_multiplier, sums.data() + first);
          }
        });
        for (int64_t channel = 0; channel < outputs; ++channel) {
          *to++ = finish(static_cast<int32_t>(sums[channel]), channel);
        }
      }
    }
  }
}

template <Layout layout>
void Convolutions<layout>::transposed(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Integers stride, Integers padding,
    Integers output_padding, Integers dilation, int64_t input_offset, int64_t output_offset, const Tensor& multipliers,
    const Tensor& shifts, int64_t activation_min, int64_t activation_max, const Tensor& scratch,
    const Tensor& output_scratch, Tensor& out) {
  const Image in = image_of(input, layout, "the input");
  require_weight(weight);
  const int64_t outputs = weight.size(0);
  if (weight.size(3) != in.channels) {
    refuse(
        "the weight " + describe(weight) + " does not go with an input of " + std::to_string(in.channels) +
        " channels; groups are not possible.");
  }
  const int32_t offset = offset_of(input_offset);
  const Window window = window_of(weight, stride, padding, dilation);
  if (window.dilation.vertical != 1 || window.dilation.horizontal != 1) {
    refuse("the dilation is not 1, but CMSIS-NN's transposed convolution ignores it.");
  }
  const Pair extra = pair_of(output_padding, 0, "output_padding");
  if (extra.vertical != 0 || extra.horizontal != 0) {
    refuse(
        "there is output padding, but CMSIS-NN's transposed convolution ignores it.",
        "another kernel size or padding of the transposed convolution");
  }
  const Finish finish =
      finish_of(bias, multipliers, shifts, outputs, output_offset, activation_min, activation_max);
  const Image result{
      in.batch,
      (in.height - 1) * window.stride.vertical - 2 * window.padding.vertical + window.kernel.vertical,
      (in.width - 1) * window.stride.horizontal - 2 * window.padding.horizontal + window.kernel.horizontal,
      outputs};
  if (result.height < 1 || result.width < 1) {
    refuse("the padding leaves nothing of the output.");
  }
  prepare_image(out, layout, result);

  const int64_t taps = window.kernel.vertical * window.kernel.horizontal;
  // arm_transpose_conv_wrapper_s8 computes many channels as a convolution with the kernel reversed.
  if (in.channels > 16 && window.stride.vertical <= 2 && window.stride.horizontal <= 2) {
    require_scratch(scratch, 2 * 2 * taps * in.channels, "scratch");  // two columns of int16, as arm_convolve_s8
    require_scratch(output_scratch, weight.numel(), "output_scratch");
  } else {
    const int64_t width =
        (in.width - 1) * window.stride.horizontal + std::max(window.kernel.horizontal, window.stride.horizontal);
    const int64_t height = std::max(window.kernel.vertical, window.stride.vertical);
    require_scratch(scratch, 4 * width * height * outputs, "scratch");
  }

  std::vector<int16_t> weights(weight.numel());
  widen(weight.const_data_ptr<int8_t>(), weight.numel(), 0, weights.data());
  std::vector<int16_t> numbers(in.channels);
  std::vector<int32_t> sums(result.height * result.width * outputs);
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  for (int64_t image = 0; image < in.batch; ++image) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = finish.biases[i % outputs];
    }
    for (int64_t row = 0; row < in.height; ++row) {
      for (int64_t column = 0; column < in.width; ++column) {
        widen(from, in.channels, offset, numbers.data());
        from += in.channels;
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t y = row * window.stride.vertical - window.padding.vertical + tap / window.kernel.horizontal;
          const int64_t x =
              column * window.stride.horizontal - window.padding.horizontal + tap % window.kernel.horizontal;
          if (y < 0 || y >= result.height || x < 0 || x >= result.width) {
            continue;
          }
          int32_t* target = sums.data() + (y * result.width + x) * outputs;
          for (int64_t channel = 0; channel < outputs; ++channel) {
            const int16_t* kernel = weights.data() + (channel * taps + tap) * in.channels;
            target[channel] = wrapping_add(target[channel], dot(numbers.data(), kernel, in.channels));
          }
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      *to++ = finish(sums[i], static_cast<int64_t>(i) % outputs);
    }
  }
}

template struct Convolutions<Layout::channels_second>;
template struct Convolutions<Layout::channels_last>;

} // namespace micronpu::cortexm
