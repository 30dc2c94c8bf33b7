#include "u85_machine.h"

#include <algorithm>

namespace ethosu::u85 {
namespace {

constexpr unsigned kFraction = 16; // fractional bits of the interpolated value; OFM_SCALE removes them

// Input positions and weights for the outputs along one axis.
struct Axis {
  int64_t numerator = 1; // outputs are numbered in units of 1/numerator of an input
  std::vector<int64_t> lower, upper, fraction; // inputs beside each output; fraction of numerator
};

} // namespace

void U85Machine::resize(uint32_t mode, ethosu_sim_operation& done) {
  if (mode > RESIZE_NEAREST) {
    not_modelled("NPU_OP_RESIZE's mode " + std::to_string(mode) + " is unknown");
  }
  static constexpr const char* kNames[] = {"bilinear resize", "replicating resize", "nearest resize"};
  if (mode == RESIZE_REPLICATE) {
    not_modelled("NPU_OP_RESIZE's mode 1 (replicate) is not modelled");
  }
  if (element_bytes(Input::ifm) > 2) {
    not_modelled(
        "NPU_SET_IFM_PRECISION is " + hex(get(IFM_PRECISION)) +
        ": resizing elements wider than 16 bits is not modelled");
  }
  Output out;
  open(out, false);
  done.name = kNames[mode];
  describe(out, done);
  // The kernel registers hold the size of the region that is read.
  const Size size{
      int64_t{get(KERNEL_HEIGHT_M1)} + 1, int64_t{get(KERNEL_WIDTH_M1)} + 1, out.size.depth};

  const auto axis_of = [&](unsigned numerator, unsigned step, unsigned offset, int64_t count, int64_t inputs) {
    Axis axis;
    axis.numerator = int64_t{get(numerator) & 0x7FF} + 1;
    const int64_t whole = parameter(step) & 15, rest = value(step) & 0x7FF;
    const int64_t first = static_cast<int32_t>(get(offset) << 20) >> 20; // 12 bits, signed
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = i * (whole * axis.numerator + rest) + first;
      const int64_t lower = at >= 0 ? at / axis.numerator : -((-at + axis.numerator - 1) / axis.numerator);
      axis.lower.push_back(clamp(lower, 0, inputs - 1));
      axis.upper.push_back(clamp(lower + 1, 0, inputs - 1));
      axis.fraction.push_back(at - lower * axis.numerator);
    }
    return axis;
  };
  const Axis rows = axis_of(RESIZE_Y_SCALE_N_M1, RESIZE_Y_STEP, RESIZE_Y_OFFSET, out.size.height, size.height);
  const Axis columns = axis_of(RESIZE_X_SCALE_N_M1, RESIZE_X_STEP, RESIZE_X_OFFSET, out.size.width, size.width);

  memory.budget.spend(static_cast<uint64_t>(out.size.count()) * 4);
  Plane<int64_t> in;
  read_input<int64_t>(Input::ifm, size, {}, Upscale::none, 0, in);
  std::vector<Source> sources(storage(Input::ifm) == STORAGE_CHAINED ? 0 : 1);
  for (Source& source : sources) {
    source.map = feature_map(Input::ifm);
    source.size = size;
    source.job_depth = size.depth;
  }
  check_overlap(out, sources.empty(), sources);
  std::vector<int64_t> values(static_cast<size_t>(out.size.width * out.size.depth));
  for (size_t y = 0; y < rows.lower.size(); ++y) {
    int64_t* to = values.data();
    const int64_t below = rows.fraction[y], above = rows.numerator - below;
    for (size_t x = 0; x < columns.lower.size(); ++x, to += out.size.depth) {
      const int64_t right = columns.fraction[x], left = columns.numerator - right;
      if (mode == RESIZE_NEAREST) {
        const int64_t* from = in.at(
            2 * below >= rows.numerator ? rows.upper[y] : rows.lower[y],
            2 * right >= columns.numerator ? columns.upper[x] : columns.lower[x]);
        for (int64_t c = 0; c < out.size.depth; ++c) {
          to[c] = from[c] * (int64_t{1} << kFraction);
        }
        continue;
      }
      const int64_t *top_left = in.at(rows.lower[y], columns.lower[x]), *top_right = in.at(rows.lower[y], columns.upper[x]),
                    *low_left = in.at(rows.upper[y], columns.lower[x]), *low_right = in.at(rows.upper[y], columns.upper[x]);
      for (int64_t c = 0; c < out.size.depth; ++c) {
        to[c] = ((top_left[c] * left + top_right[c] * right) * above + (low_left[c] * left + low_right[c] * right) * below) *
            (int64_t{1} << kFraction);
      }
    }
    put_sums(out, static_cast<int64_t>(y), values.data());
  }
  close(out);
}

} // namespace ethosu::u85
