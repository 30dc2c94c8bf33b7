// The element-wise operations of Ethos-U55 and U65.
#include "u55_machine.h"

#include <algorithm>
#include <cstring>

namespace ethosu::u55 {
namespace {

enum Mode : uint32_t { MUL, ADD, SUB, MIN, MAX, LRELU, ABS, CLZ, SHR, SHL };
const char* const kNames[] = {
    "multiplication", "addition", "subtraction", "minimum", "maximum", "leaky ReLU", "absolute value",
    "leading zeros", "shift right", "shift left",
};

// Input scaling of additions: both operands by 16 bits, or A (B) by 32 bits and the other by a power of two.
enum Scaling : uint32_t { kBoth16 = 0, kA32 = 1, kB32 = 2 };

int64_t leading_zeros(int64_t value) {
  uint32_t bits = static_cast<uint32_t>(value);
  int64_t count = 32;
  for (; bits; bits >>= 1) {
    --count;
  }
  return count;
}

} // namespace

// The arithmetic on two operands, before the output scale.
struct Combination {
  uint32_t mode = 0, scaling = kBoth16;
  int64_t a_factor = 1, b_factor = 1; // factors of kBoth16, or the power of two of the others
  Scale scale; // of the operand with a 32-bit scale; LRELU: the slope of negative values
  Rounding rounding = Rounding::half_up; // of SHR

  template <class T>
  void operator()(const T* a, const T* b, int64_t count, int64_t* out) const {
    const auto all = [&](auto&& combine) {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = combine(static_cast<int64_t>(a[i]), static_cast<int64_t>(b[i]));
      }
    };
    const bool subtracts = mode == SUB;
    switch (mode) {
      case MUL:
        return all([](int64_t x, int64_t y) { return x * y; });
      case ADD:
      case SUB:
        if (scaling == kBoth16) {
          const int64_t f = a_factor, g = subtracts ? -b_factor : b_factor;
          return all([=](int64_t x, int64_t y) { return x * f + y * g; });
        }
        if (scaling == kA32) {
          const int64_t g = subtracts ? -b_factor : b_factor;
          return all([&](int64_t x, int64_t y) { return rescale_any(x, scale) + y * g; });
        }
        return all([&](int64_t x, int64_t y) {
          const int64_t scaled = rescale_any(y, scale);
          return x * a_factor + (subtracts ? -scaled : scaled);
        });
      case MIN:
        return all([](int64_t x, int64_t y) { return std::min(x, y); });
      case MAX:
        return all([](int64_t x, int64_t y) { return std::max(x, y); });
      case LRELU:
        return all([&](int64_t x, int64_t) { return x >= 0 ? x : rescale_any(x, scale); });
      case ABS:
        return all([](int64_t x, int64_t) { return std::abs(x); });
      case CLZ:
        return all([](int64_t x, int64_t) { return leading_zeros(x); });
      case SHR:
        return all([&](int64_t x, int64_t y) {
          if (y < 0 || y > 63) {
            not_modelled("a shift right by " + std::to_string(y) + " is not modelled");
          }
          return rescale_wide(x, {1, static_cast<unsigned>(y), rounding, 0});
        });
      default:
        // Bits shifted out of the 32 are lost.
        return all([](int64_t x, int64_t y) {
          return int64_t{static_cast<int32_t>(y < 0 || y > 31 ? 0 : static_cast<uint32_t>(x) << y)};
        });
    }
  }
};

// The second operand: a constant, or a map that is broadcast along axes of size 1.
struct SecondOperand {
  const FeatureMap* map = nullptr; // nullptr: a constant, or none
  int64_t constant = 0;
  bool one_row = false, one_column = false, one_channel = false;
};

template <class T>
void U55::elementwise_as(
    Finish& out, const FeatureMap& in, const SecondOperand& second, bool swapped, const Combination& combine,
    const Scale* ofm_scale) {
  const int64_t count = out.width * out.depth;
  const int64_t width = second.one_column ? 1 : out.width, depth = second.one_channel ? 1 : out.depth;
  std::vector<T> first(static_cast<size_t>(count)), other(static_cast<size_t>(count), static_cast<T>(second.constant));
  std::vector<T> narrow(static_cast<size_t>(second.map ? width * depth : 0));
  std::vector<int64_t> result(static_cast<size_t>(count));
  const bool identity = !ofm_scale || (ofm_scale->scale == 1 && ofm_scale->shift == 0);
  for (int64_t y = 0; y < out.height; ++y) {
    read_row(memory, in, y, out.width, out.depth, first.data());
    if (second.map && (y == 0 || !second.one_row)) {
      const int64_t row = second.one_row ? 0 : y;
      if (width == out.width && depth == out.depth) {
        read_row(memory, *second.map, row, width, depth, other.data());
      } else {
        read_row(memory, *second.map, row, width, depth, narrow.data());
        for (int64_t x = 0; x < out.width; ++x) {
          const T* from = narrow.data() + (width == 1 ? 0 : x) * depth;
          T* to = other.data() + x * out.depth;
          if (depth == 1) {
            std::fill_n(to, out.depth, *from);
          } else {
            std::copy_n(from, out.depth, to);
          }
        }
      }
    }
    const std::vector<T>& a = swapped ? other : first;
    const std::vector<T>& b = swapped ? first : other;
    combine(a.data(), b.data(), count, result.data());
    if (!identity) {
      const Scale scale = *ofm_scale;
      for (int64_t& value : result) {
        value = rescale_any(value, scale);
      }
    }
    write_row(out, y, result.data());
  }
}

void U55::elementwise(uint32_t mode, ethosu_sim_operation& done) {
  if (mode > SHL) {
    not_modelled("element-wise mode " + std::to_string(mode) + " is not modelled");
  }
  Finish out = finish();
  describe(out, kNames[mode], done);
  memory.budget.spend(product({out.height, out.width, out.depth}));
  const bool unary = mode == LRELU || mode == ABS || mode == CLZ;
  const FeatureMap in = ifm();
  if (upscale() != Upscale::none) {
    not_modelled("NPU_SET_IFM_UPSCALE of an element-wise operation is not modelled");
  }
  const uint32_t broadcast = unary ? 0 : get(IFM2_BROADCAST);
  const bool scalar = broadcast & 128, swapped = broadcast & 64;
  SecondOperand second;
  FeatureMap second_map;
  if (!unary && scalar) {
    const bool is_signed = get(IFM2_PRECISION) & 1;
    second.constant = (is_signed ? get_signed(IFM2_SCALAR) : int64_t{get(IFM2_SCALAR)}) - get_signed(IFM2_ZERO_POINT);
  } else if (!unary) {
    second_map = ifm2();
    second = {&second_map, 0, (broadcast & 1) != 0, (broadcast & 2) != 0, (broadcast & 4) != 0};
  }
  use_tables(out);
  std::vector<Source> sources(second.map ? 2 : 1);
  for (Source& source : sources) {
    source.map = &source == sources.data() ? in : second_map;
    source.height = out.height, source.width = out.width, source.depth = source.job_depth = out.depth;
  }
  if (second.map) {
    sources[1].one_row = second.one_row, sources[1].one_column = second.one_column;
    sources[1].one_channel = second.one_channel;
  }
  check_overlap(out, sources);

  // Operand A is IFM, or IFM2 when swapped.
  Combination combine;
  combine.mode = mode;
  combine.rounding = ofm_rounding();
  const uint32_t precision = get(IFM_PRECISION);
  if (mode == ADD || mode == SUB) {
    const uint32_t rounding = precision >> 14;
    combine.scaling = precision >> 8 & 3;
    combine.scale = scale_of(
        OPA_SCALE, rounding == 0 ? Rounding::double_up : rounding == 1 ? Rounding::toward_zero : Rounding::half_up);
    // The left shift of LiteRT's additions is part of the scale, so the first rounding is that many bits lower.
    combine.scale.left_shift = in.element_bytes == 1 ? 20 : 15;
    if (combine.scaling == kBoth16) {
      combine.a_factor = value(OPA_SCALE) & 0xFFFF;
      combine.b_factor = value(OPB_SCALE) & 0xFFFF;
    } else {
      combine.a_factor = combine.b_factor = int64_t{1} << (in.element_bytes == 1 ? 19 : 14);
    }
    const bool scaled = combine.scaling != kBoth16 || combine.a_factor != 1 || combine.b_factor != 1;
    if (combine.scaling == 3 || rounding == 3 || (in.element_bytes == 4 && scaled)) {
      not_modelled("NPU_SET_IFM_PRECISION = " + hex(precision) + " with these operand scales is not modelled");
    }
  }
  const bool scaled = mode <= SUB || mode == ABS || ((mode == MIN || mode == MAX) && global_scale());
  Scale ofm_scale;
  if (scaled || mode == LRELU) {
    ofm_scale = scale_of(OFM_SCALE, combine.rounding);
  }
  if (mode == LRELU) {
    combine.scale = ofm_scale;
  }
  if (mode == MUL && in.element_bytes == 4) {
    ofm_scale.scale = 1; // products of 32 bits are only shifted
  }
  if (in.element_bytes < 4 && (!second.map || second_map.element_bytes < 4)) {
    elementwise_as<int32_t>(out, in, second, swapped, combine, scaled ? &ofm_scale : nullptr);
  } else {
    elementwise_as<int64_t>(out, in, second, swapped, combine, scaled ? &ofm_scale : nullptr);
  }
}

} // namespace ethosu::u55
