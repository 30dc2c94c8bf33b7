#include "u55_machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ethosu::u55 {
namespace {

constexpr Shape kShapes[] = {
    {55, 32, 1, 4, 16},  {55, 64, 1, 8, 16},  {55, 128, 1, 8, 24},
    {55, 256, 1, 8, 48}, {65, 256, 1, 8, 48}, {65, 512, 2, 8, 48},
};
constexpr unsigned kBankBytes = 1024, kSlotBytes = 256;
constexpr int64_t kMaxRow = int64_t{1} << 26;
constexpr unsigned kTables = 16; // first code of ACTIVATION that is a table

std::string text(int64_t value) {
  return std::to_string(value);
}

} // namespace

U55::U55(const Shape& shape) : shape_(shape) {
  max_kernels_ = 2;
  max_transfers_ = shape.family == 65 ? 2 : 1;
}

const char* U55::name_of_cmd0(unsigned code) const {
  return u55::name_of_cmd0(code, shape_.family == 65);
}

const char* U55::name_of_cmd1(unsigned code) const {
  return u55::name_of_cmd1(code, shape_.family == 65);
}

uint32_t U55::get(Cmd0 code) const {
  if (!registers_.cmd0[code].set) {
    invalid(std::string(name_of_cmd0(code)) + " was never set, but the operation needs it");
  }
  return registers_.cmd0[code].value;
}

int32_t U55::get_signed(Cmd0 code) const {
  return static_cast<int16_t>(get(code));
}

uint32_t U55::value(Cmd1 code) const {
  if (!registers_.cmd1[code].set) {
    invalid(std::string(name_of_cmd1(code)) + " was never set, but the operation needs it");
  }
  return registers_.cmd1[code].value;
}

uint64_t U55::address(Cmd1 code) const {
  // U65 has 40 bits of address, U55 has 32.
  const uint64_t low = value(code);
  const uint32_t high = registers_.cmd1[code].parameter;
  if (high && shape_.family == 55) {
    invalid(std::string(name_of_cmd1(code)) + " has more than the 32 bits of an address of Ethos-U55");
  }
  return low | static_cast<uint64_t>(high & 0xFF) << 32;
}

Scale U55::scale_of(Cmd1 code, Rounding rounding) const {
  return {value(code), registers_.cmd1[code].parameter & 63u, rounding, 0};
}

FeatureMap U55::map_of(
    const char* name, Cmd0 precision, Cmd0 zero_point, Cmd0 width0, Cmd0 region, Cmd1 base) const {
  const bool output = precision == OFM_PRECISION;
  const uint32_t bits = get(precision);
  const uint32_t size = bits >> (output ? 1 : 2) & 3, format = bits >> 6 & 3;
  if (size == 3 || (size == 2 && !(bits & 1)) || format > 1) {
    not_modelled(std::string(name_of_cmd0(precision)) + " = " + hex(bits) + " is a type or format that is not modelled");
  }
  FeatureMap map;
  map.name = name;
  map.element_bytes = 1u << size;
  map.is_signed = bits & 1;
  map.bricks = format == 1;
  map.region = get(region) & 7;
  map.zero_point = map.is_signed || map.element_bytes > 1 ? get_signed(zero_point) : static_cast<int32_t>(get(zero_point));
  map.width0 = int64_t{get(width0)} + 1;
  map.height0 = int64_t{get(static_cast<Cmd0>(width0 + 1))} + 1;
  map.height1 = int64_t{get(static_cast<Cmd0>(width0 + 2))} + 1;
  for (unsigned i = 0; i < 4; ++i) {
    map.base[i] = address(static_cast<Cmd1>(base + i));
    const uint64_t multiple = map.bricks ? 16 : map.element_bytes;
    if (map.base[i] % multiple) {
      invalid(
          std::string(name_of_cmd1(base + i)) + " = " + hex(map.base[i]) + " is no multiple of " + std::to_string(multiple));
    }
  }
  // Strides may be negative (reversed output).
  map.stride_x = static_cast<int32_t>(value(static_cast<Cmd1>(base + 4)));
  map.stride_y = static_cast<int32_t>(value(static_cast<Cmd1>(base + 5)));
  map.stride_c = static_cast<int32_t>(value(static_cast<Cmd1>(base + 6)));
  return map;
}

FeatureMap U55::ifm() const {
  return map_of("IFM", IFM_PRECISION, IFM_ZERO_POINT, IFM_WIDTH0_M1, IFM_REGION, IFM_BASE0);
}

FeatureMap U55::ifm2() const {
  return map_of("IFM2", IFM2_PRECISION, IFM2_ZERO_POINT, IFM2_WIDTH0_M1, IFM2_REGION, IFM2_BASE0);
}

Rounding U55::ofm_rounding() const {
  switch (get(OFM_PRECISION) >> 14) {
    case 0:
      return Rounding::double_up;
    case 1:
      return Rounding::toward_zero;
    case 2:
      return Rounding::half_up;
  }
  not_modelled("NPU_SET_OFM_PRECISION = " + hex(get(OFM_PRECISION)) + " asks for rounding 3");
}

bool U55::global_scale() const {
  return get(OFM_PRECISION) >> 8 & 1;
}

Kernel U55::kernel() const {
  const uint32_t bits = get(KERNEL_STRIDE);
  Kernel k;
  k.stride_x = (bits & 1) + 2 * (bits >> 6 & 1) + 1;
  k.stride_y = (bits >> 1 & 1) + 2 * (bits >> 9 & 1) + 1;
  k.dilation_x = (bits >> 3 & 1) + 1;
  k.dilation_y = (bits >> 4 & 1) + 1;
  // The registers hold the size of the dilated kernel.
  k.height = int64_t{get(KERNEL_HEIGHT_M1)} / k.dilation_y + 1;
  k.width = int64_t{get(KERNEL_WIDTH_M1)} / k.dilation_x + 1;
  return k;
}

Padding U55::padding() const {
  return {get(IFM_PAD_TOP) & 127, get(IFM_PAD_LEFT) & 127, get(IFM_PAD_BOTTOM) & 255, get(IFM_PAD_RIGHT) & 255};
}

Upscale U55::upscale() const {
  const uint32_t mode = get(IFM_UPSCALE);
  if (mode > 2) {
    not_modelled("NPU_SET_IFM_UPSCALE = " + hex(mode) + " is not modelled");
  }
  return mode == 0 ? Upscale::none : mode == 1 ? Upscale::nearest : Upscale::zeros;
}

Finish U55::finish() const {
  Finish out;
  out.map = map_of("OFM", OFM_PRECISION, OFM_ZERO_POINT, OFM_WIDTH0_M1, OFM_REGION, OFM_BASE0);
  out.height = int64_t{get(OFM_HEIGHT_M1)} + 1;
  out.width = int64_t{get(OFM_WIDTH_M1)} + 1;
  out.depth = int64_t{get(OFM_DEPTH_M1)} + 1;
  if (out.width * out.depth > kMaxRow) {
    not_modelled("a row of the OFM has more than 2^26 elements");
  }
  out.zero_point = out.map.zero_point;
  out.map.zero_point = 0; // added before the clamp; writing does not add it again
  out.activation = get(ACTIVATION) & 31;
  const uint32_t range = get(ACTIVATION) >> 12 & 7;
  const bool wide = out.map.element_bytes == 4;
  if (wide ? range != 0 && range != 2 && range != 3 && range != 5 : range != 0) {
    not_modelled("NPU_SET_ACTIVATION = " + hex(get(ACTIVATION)) + " has a clamp range that is not modelled");
  }
  const bool is_signed = wide ? range != 2 : out.map.is_signed;
  out.least = out.map.least(), out.most = out.map.most();
  if (!wide || range != 0) {
    const int64_t least = is_signed ? get_signed(ACTIVATION_MIN) : int64_t{get(ACTIVATION_MIN)};
    const int64_t most = is_signed ? get_signed(ACTIVATION_MAX) : int64_t{get(ACTIVATION_MAX)};
    if (least > most) {
      invalid("NPU_SET_ACTIVATION_MIN " + text(least) + " is greater than NPU_SET_ACTIVATION_MAX " + text(most));
    }
    out.least = clamp(least, out.least, out.most);
    out.most = clamp(most, out.least, out.most);
  }
  out.row.resize(static_cast<size_t>(out.width * out.depth));
  return out;
}

void U55::use_tables(Finish& out) {
  if (out.activation >= kTables) {
    const unsigned slot = out.activation - kTables;
    if (slot > 7) {
      not_modelled("NPU_SET_ACTIVATION = " + hex(get(ACTIVATION)) + " is not modelled");
    }
    const unsigned size = out.map.element_bytes == 1 ? 256 : out.map.element_bytes == 2 ? 2048 : 1024;
    if (slot * kSlotBytes + size > kInternalSize) {
      invalid("table " + text(slot) + " of " + text(size) + " bytes does not fit in the table memory");
    }
    out.table = memory.table(slot * kSlotBytes, size);
  } else if (out.activation == 3 || out.activation == 4) {
    if (out.map.element_bytes != 2 || !out.map.is_signed || out.zero_point != 0) {
      not_modelled(
          "NPU_SET_ACTIVATION = " + hex(get(ACTIVATION)) +
          " (tanh or sigmoid) is modelled only for an output of 16 bits without zero point");
    }
  } else if (out.activation > 2) {
    not_modelled("NPU_SET_ACTIVATION = " + hex(get(ACTIVATION)) + " is not modelled");
  }
  if (out.activation < kTables && shape_.shram_banks <= 16) {
    // Small NPUs keep accumulators in the table memory: an operation without table overwrites the tables.
    memory.forget_tables();
  }
}

namespace {

constexpr int64_t kMostOfFunction = int64_t{1} << 20; // far above the range where both functions change

// Entry of the NPU's interpolation table of the logistic function at index / 24: 16 fractional bits, corrected by half
// the error of linear interpolation at the midpoint (like LiteRT's table).
int64_t sigmoid_entry(int64_t index) {
  static const std::vector<int64_t> table = [] {
    const auto exact = [](double x) { return 65536.0 / (1.0 + std::exp(-x / 24.0)); };
    std::vector<int64_t> t;
    for (int i = 0; i < 256; ++i) {
      const double error = (exact(i) + exact(i + 1)) / 2 - exact(i + 0.5);
      t.push_back(std::llround(exact(i) - error / 2));
    }
    t.back() = 65535;
    return t;
  }();
  return table[static_cast<size_t>(index)];
}

// The logistic function at the magnitude of `value`, interpolated with its last `bits` bits; `flat` beyond the table.
int64_t interpolated(int64_t value, int bits, int64_t flat) {
  const int64_t magnitude = std::abs(value), high = magnitude >> bits, low = magnitude & ((1 << bits) - 1);
  if (high >= 255) {
    return flat;
  }
  const int64_t a = sigmoid_entry(high), b = sigmoid_entry(high + 1);
  return (a << bits) + low * (b - a);
}

// Logistic function of value / (3 * 4096), 15 fractional bits, like LiteRT's 16-bit reference.
int64_t sigmoid(int64_t value) {
  const int64_t result = interpolated(value, 9, 0x7FFF << 10);
  return value >= 0 ? (result + (1 << 9)) >> 10 : ((1 << 25) - result + (1 << 9) - 1) >> 10;
}

// Hyperbolic tangent of value / (3 * 4096), 15 fractional bits, through the logistic function of twice the value.
int64_t tanh(int64_t value) {
  const int64_t result = interpolated(value, 8, 0xFFFF << 8);
  return value >= 0 ? (result - (1 << 23) + (1 << 7)) >> 8 : (-result + (1 << 23) + (1 << 7) - 1) >> 8;
}

int64_t look_up(const uint8_t* table, unsigned element_bytes, bool is_signed, int64_t value) {
  if (element_bytes == 1) {
    return is_signed ? int64_t{static_cast<int8_t>(table[value + 128])} : int64_t{table[value]};
  }
  if (element_bytes == 4) {
    int32_t entry;
    std::memcpy(&entry, table + 4 * (clamp(value, -128, 127) + 128), 4);
    return entry;
  }
  // 512 pairs of a base and the difference to the next; linear interpolation in between.
  int16_t pair[2];
  std::memcpy(pair, table + 4 * ((value + 32768) >> 7), 4);
  return clamp(pair[0] + (((value & 127) * pair[1] + 64) >> 7), INT16_MIN, INT16_MAX);
}

} // namespace

void U55::write_row(Finish& out, int64_t y, const int64_t* values) {
  const int64_t count = out.width * out.depth;
  const int64_t zero_point = out.zero_point, least = out.least, most = out.most;
  int32_t* row = out.row.data();
  if (out.activation == 3 || out.activation == 4) {
    // These operations use more than the 16 bits of the output, so the clamp follows them.
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = clamp(values[i], -kMostOfFunction, kMostOfFunction);
      row[i] = static_cast<int32_t>(clamp(out.activation == 3 ? tanh(value) : sigmoid(value), least, most));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      row[i] = static_cast<int32_t>(clamp(values[i] + zero_point, least, most));
    }
  }
  if (out.table) {
    for (int64_t i = 0; i < count; ++i) {
      row[i] = static_cast<int32_t>(look_up(out.table, out.map.element_bytes, out.map.is_signed, row[i]));
    }
  }
  ethosu::write_row(memory, out.map, y, out.width, out.depth, row);
}

void U55::describe(const Finish& out, const char* name, ethosu_sim_operation& done) const {
  done.name = name;
  done.ofm.region = static_cast<int32_t>(out.map.region);
  done.ofm.address = out.map.base[0];
  done.ofm.shape[0] = static_cast<int32_t>(out.height);
  done.ofm.shape[1] = static_cast<int32_t>(out.width);
  done.ofm.shape[2] = static_cast<int32_t>(out.depth);
  done.ofm.stride[0] = out.map.stride_y;
  done.ofm.stride[1] = out.map.stride_x;
  done.ofm.stride[2] = out.map.stride_c;
  done.ofm.element_bytes = static_cast<int32_t>(out.map.element_bytes);
  done.ofm.is_signed = out.map.is_signed;
  done.ofm.is_bricks = out.map.bricks;
  done.ofm.zero_point = static_cast<int32_t>(out.zero_point);
}

bool U55::operate(unsigned code, uint32_t parameter, ethosu_sim_operation& done) {
  switch (code) {
    case NPU_OP_DMA_START:
      transfer(done);
      return true;
    case NPU_OP_CONV:
      convolve(false, done);
      break;
    case NPU_OP_DEPTHWISE:
      convolve(true, done);
      break;
    case NPU_OP_POOL:
      pool(parameter, done);
      break;
    case NPU_OP_ELEMENTWISE:
      elementwise(parameter, done);
      break;
    default:
      not_modelled("this operation is not modelled");
  }
  return false;
}

void U55::transfer(ethosu_sim_operation& done) {
  done.name = "transfer";
  const uint32_t from = get(DMA0_SRC_REGION), to = get(DMA0_DST_REGION);
  const uint64_t length = address(DMA0_LEN);
  uint64_t source = address(DMA0_SRC), destination = address(DMA0_DST);
  const unsigned from_mode = from >> 9 & 3, to_mode = to >> 9 & 3;
  if (from >> 8 & 1) {
    not_modelled("NPU_SET_DMA0_SRC_REGION = " + hex(from) + ": a transfer out of the NPU's own memory is not modelled");
  }
  if (shape_.family == 55 && (from_mode || to_mode || (source | destination | length) % 16)) {
    invalid("a transfer of Ethos-U55 has one dimension, and its addresses and length are multiples of 16");
  }
  if (from_mode > 2 || to_mode > 2 || from_mode > to_mode) {
    not_modelled("NPU_SET_DMA0_SRC_REGION = " + hex(from) + " with NPU_SET_DMA0_DST_REGION = " + hex(to) + " is not modelled");
  }
  unsigned target = to & 7;
  if (to >> 8 & 1) {
    // Only the last two banks of the internal memory are writable: the tables.
    const uint64_t tables = uint64_t{shape_.shram_banks} * kBankBytes - kInternalSize;
    if (destination < tables) {
      not_modelled("the transfer writes byte " + hex(destination) + " of the NPU's own memory, where there is no table");
    }
    destination -= tables;
    target = kInternal;
  }
  // Rows of `length` bytes; the skips are the bytes between rows and between planes, on the side that has the mode.
  const unsigned mode = std::max(from_mode, to_mode);
  const uint64_t rows = mode >= 1 ? get(DMA0_SIZE0) : 1, planes = mode >= 2 ? get(DMA0_SIZE1) : 1;
  const int64_t skip0 = mode >= 1 ? static_cast<int64_t>(address(DMA0_SKIP0) << 24) >> 24 : 0;
  const int64_t skip1 = mode >= 2 ? static_cast<int64_t>(address(DMA0_SKIP1) << 24) >> 24 : 0;
  const auto at = [&](uint64_t base, unsigned own_mode, uint64_t plane, uint64_t row) {
    const uint64_t pitch = length + static_cast<uint64_t>(own_mode >= 1 ? skip0 : 0);
    const uint64_t layer = length * rows + static_cast<uint64_t>(own_mode >= 2 ? skip1 : 0);
    return base + plane * layer + row * pitch;
  };
  for (uint64_t plane = 0; plane < planes; ++plane) {
    for (uint64_t row = 0; row < rows; ++row) {
      memory.budget.spend(length + 1);
      memory.copy(from & 7, at(source, from_mode, plane, row), target, at(destination, to_mode, plane, row), length);
    }
  }
  done.source_region = from & 7;
  done.source_address = source;
  done.destination_region = target;
  done.destination_address = destination;
  done.length = length * rows * planes;
}

} // namespace ethosu::u55

namespace ethosu {
namespace {

std::unique_ptr<Machine> make(int32_t family, int32_t macs) {
  for (const u55::Shape& shape : u55::kShapes) {
    if (shape.family == family && shape.macs == macs) {
      return std::make_unique<u55::U55>(shape);
    }
  }
  return nullptr;
}

} // namespace

std::unique_ptr<Machine> make_u55(int32_t macs) {
  return make(55, macs);
}

std::unique_ptr<Machine> make_u65(int32_t macs) {
  return make(65, macs);
}

} // namespace ethosu
