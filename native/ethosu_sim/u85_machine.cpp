#include "u85_machine.h"

#include <algorithm>

namespace ethosu {
namespace u85 {
namespace {

constexpr unsigned kOutstandingKernels = 2, kOutstandingTransfers = 4; // NPU_OP_KERNEL_WAIT, NPU_OP_DMA_WAIT

struct Microblock {
  int64_t height, width;
};
constexpr Microblock kMicroblocks[] = {{1, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 4}, {4, 4}};

// The registers of an input.
struct InputCodes {
  const char* name;
  unsigned precision, region, zero_point, width0, height0, height1, base0, stride_x, stride_y, stride_c, scale;
};
constexpr InputCodes kIfm = {
    "IFM", IFM_PRECISION, IFM_REGION, IFM_ZERO_POINT, IFM_WIDTH0_M1, IFM_HEIGHT0_M1, IFM_HEIGHT1_M1,
    IFM_BASE0, IFM_STRIDE_X, IFM_STRIDE_Y, IFM_STRIDE_C, IFM_SCALE};
constexpr InputCodes kIfm2 = {
    "IFM2", IFM2_PRECISION, IFM2_REGION, IFM2_ZERO_POINT, IFM2_WIDTH0_M1, IFM2_HEIGHT0_M1, IFM2_HEIGHT1_M1,
    IFM2_BASE0, IFM2_STRIDE_X, IFM2_STRIDE_Y, IFM2_STRIDE_C, IFM2_SCALE};

const InputCodes& codes_of(bool second) {
  return second ? kIfm2 : kIfm;
}

[[noreturn]] void refuse(const char* reg, uint32_t value, const std::string& why) {
  not_modelled(std::string("NPU_SET_") + reg + " is " + hex(value) + ": " + why);
}

Scale scale_of(uint32_t low, uint32_t high, Rounding rounding, const char* reg) {
  const unsigned left_shift = high >> 6 & 31;
  if (left_shift > 30) {
    refuse(reg, high, "its double rounding, bits 6 to 10, is beyond 30");
  }
  return {low & 0x7FFFFFFF, high & 63, rounding, left_shift};
}

void check_alignment(const FeatureMap& map) {
  const unsigned unit = map.bricks ? 16 : map.element_bytes;
  for (unsigned i = 0; i < 4; ++i) {
    if (map.base[i] % unit) {
      invalid(
          std::string("NPU_SET_") + map.name + "_BASE" + std::to_string(i) + " is " + hex(map.base[i]) +
          ", not a multiple of " + std::to_string(unit));
    }
  }
}

} // namespace

U85Machine::U85Machine(int32_t macs) : macs_(macs) {
  max_kernels_ = kOutstandingKernels;
  max_transfers_ = kOutstandingTransfers;
}

const char* U85Machine::name_of_cmd0(unsigned code) const {
  return u85::name_of_cmd0(code);
}

const char* U85Machine::name_of_cmd1(unsigned code) const {
  return u85::name_of_cmd1(code);
}

void U85Machine::forget() {
  start();
}

void U85Machine::start() {
  chains_.clear();
  accumulators_ = {};
  before_ = last_ = {};
}

uint32_t U85Machine::get(unsigned code) const {
  if (!registers_.cmd0[code].set) {
    invalid(std::string(name_of_cmd0(code)) + " was never set, but the operation needs it");
  }
  return registers_.cmd0[code].value;
}

int32_t U85Machine::get_signed(unsigned code) const {
  return static_cast<int16_t>(get(code));
}

uint32_t U85Machine::value(unsigned code) const {
  if (!registers_.cmd1[code].set) {
    invalid(std::string(name_of_cmd1(code)) + " was never set, but the operation needs it");
  }
  return registers_.cmd1[code].value;
}

uint32_t U85Machine::parameter(unsigned code) const {
  return value(code), registers_.cmd1[code].parameter;
}

uint64_t U85Machine::address(unsigned code) const {
  return value(code) | static_cast<uint64_t>(registers_.cmd1[code].parameter & 0xFF) << 32;
}

int64_t U85Machine::stride(unsigned code) const {
  return static_cast<int64_t>(address(code) << 24) >> 24; // 40 bits, signed
}

bool U85Machine::operate(unsigned code, uint32_t parameter, ethosu_sim_operation& done) {
  switch (code) {
    case OP_CONV:
      if (parameter & 1) {
        multiply(done);
      } else {
        convolve(false, done);
      }
      return false;
    case OP_DEPTHWISE:
      convolve(true, done);
      return false;
    case OP_POOL:
      pool(parameter, done);
      return false;
    case OP_ELEMENTWISE:
      elementwise(parameter, done);
      return false;
    case OP_RESIZE:
      resize(parameter, done);
      return false;
    case OP_DMA_START:
      transfer(done);
      return true;
    default:
      invalid("the command " + hex(code) + " is none of Ethos-U85");
  }
}

Size U85Machine::ofm_size() const {
  const Size size{
      int64_t{get(OFM_HEIGHT_M1)} + 1, int64_t{get(OFM_WIDTH_M1)} + 1,
      int64_t{get(OFM_DEPTH_M1)} + 1};
  if (size.height * size.width > (int64_t{1} << 31) / size.depth) {
    not_modelled(
        "the OFM is " + std::to_string(size.height) + " x " + std::to_string(size.width) + " x " +
        std::to_string(size.depth) + ", more than 2^31 elements");
  }
  return size;
}

int64_t U85Machine::ifm_depth() const {
  return int64_t{get(IFM_DEPTH_M1)} + 1;
}

Storage U85Machine::storage(Input input) const {
  return static_cast<Storage>(get(codes_of(input == Input::ifm2).precision) >> 14 & 3);
}

unsigned U85Machine::element_bytes(Input input) const {
  return 1u << (get(codes_of(input == Input::ifm2).precision) >> 2 & 3);
}

bool U85Machine::is_signed(Input input) const {
  return get(codes_of(input == Input::ifm2).precision) & 1;
}

FeatureMap U85Machine::feature_map(Input input) {
  const InputCodes& codes = codes_of(input == Input::ifm2);
  const uint32_t precision = get(codes.precision), format = precision >> 6 & 3;
  if (format > 1) {
    refuse(codes.name, precision, "the format of its bits 6 and 7 is unknown");
  }
  if (storage(input) != STORAGE_TILES_2X2) {
    refuse(
        (std::string(codes.name) + "_PRECISION").c_str(), precision,
        storage(input) == STORAGE_TILES_3X1 ? "tiles of 3x1 are not modelled" : "this input must be in memory");
  }
  FeatureMap map;
  map.name = codes.name;
  map.region = get(codes.region) & 7;
  for (unsigned i = 0; i < 4; ++i) {
    map.base[i] = address(codes.base0 + i);
  }
  map.height0 = int64_t{get(codes.height0)} + 1;
  map.height1 = int64_t{get(codes.height1)} + 1;
  map.width0 = int64_t{get(codes.width0)} + 1;
  map.stride_x = stride(codes.stride_x);
  map.stride_y = stride(codes.stride_y);
  map.stride_c = stride(codes.stride_c);
  map.bricks = format == 1;
  map.element_bytes = element_bytes(input);
  map.is_signed = is_signed(input);
  map.zero_point = get_signed(codes.zero_point);
  check_alignment(map);
  return map;
}

FeatureMap U85Machine::ofm_map() {
  const uint32_t precision = get(OFM_PRECISION), format = precision >> 6 & 3;
  if (format > 1) {
    refuse("OFM_PRECISION", precision, "the format of its bits 6 and 7 is unknown");
  }
  FeatureMap map;
  map.name = "OFM";
  map.bricks = format == 1;
  map.element_bytes = 1u << (precision >> 1 & 3);
  map.is_signed = precision & 1;
  map.zero_point = get_signed(OFM_ZERO_POINT);
  if (precision >> 14 != STORAGE_TILES_2X2) {
    return map; // it has no place in memory
  }
  map.region = get(OFM_REGION) & 7;
  for (unsigned i = 0; i < 4; ++i) {
    map.base[i] = address(OFM_BASE0 + i);
  }
  map.height0 = int64_t{get(OFM_HEIGHT0_M1)} + 1;
  map.height1 = int64_t{get(OFM_HEIGHT1_M1)} + 1;
  map.width0 = int64_t{get(OFM_WIDTH0_M1)} + 1;
  map.stride_x = stride(OFM_STRIDE_X);
  map.stride_y = stride(OFM_STRIDE_Y);
  map.stride_c = stride(OFM_STRIDE_C);
  check_alignment(map);
  return map;
}

Kernel U85Machine::kernel() const {
  const uint32_t k = get(KERNEL_STRIDE);
  Kernel kernel;
  kernel.stride_x = static_cast<int64_t>((k & 1) | (k >> 6 & 1) << 1) + 1;
  kernel.stride_y = static_cast<int64_t>((k >> 1 & 1) | (k >> 9 & 1) << 1) + 1;
  kernel.dilation_x = static_cast<int64_t>(k >> 3 & 1) + 1;
  kernel.dilation_y = static_cast<int64_t>(k >> 4 & 1) + 1;
  // The registers hold the size of the dilated kernel.
  kernel.height = get(KERNEL_HEIGHT_M1) / kernel.dilation_y + 1;
  kernel.width = get(KERNEL_WIDTH_M1) / kernel.dilation_x + 1;
  if (k >> 5 & 1) {
    refuse("KERNEL_STRIDE", k, "subkernels of 4x4 are not modelled");
  }
  return kernel;
}

Padding U85Machine::padding() const {
  return {
      get(IFM_PAD_TOP) & 0x7F, get(IFM_PAD_LEFT) & 0x7F,
      get(IFM_PAD_BOTTOM) & 0xFF, get(IFM_PAD_RIGHT) & 0xFF};
}

Upscale U85Machine::upscale() const {
  const uint32_t mode = get(IFM_UPSCALE) & 3;
  if (mode == 3) {
    refuse("IFM_UPSCALE", get(IFM_UPSCALE), "this mode is unknown");
  }
  return static_cast<Upscale>(mode);
}

int64_t U85Machine::microblock_depth() const {
  const uint32_t format = get(ACC_FORMAT), block = format >> 8 & 7;
  if (block >= sizeof kMicroblocks / sizeof *kMicroblocks) {
    refuse("ACC_FORMAT", format, "this microblock is unknown");
  }
  const int64_t depth = macs_ / 8 / (kMicroblocks[block].height * kMicroblocks[block].width);
  if (depth < 4 * cores(macs_)) {
    refuse(
        "ACC_FORMAT", format,
        "Ethos-U85 with " + std::to_string(macs_) + " MACs has no microblock of " + std::to_string(depth) + " channels");
  }
  return depth;
}

Scale U85Machine::ofm_scale() const {
  const uint32_t high = parameter(OFM_SCALE), rounding = high >> 13 & 7;
  static constexpr Rounding kRoundings[] = {
      Rounding::double_up, Rounding::half_up, Rounding::double_asymmetric,
      Rounding::symmetric, Rounding::toward_zero, Rounding::down};
  if (rounding >= sizeof kRoundings / sizeof *kRoundings) {
    refuse("OFM_SCALE", high, "the rounding of its bits 13 to 15 is unknown");
  }
  return scale_of(value(OFM_SCALE), high, kRoundings[rounding], "OFM_SCALE");
}

Scale U85Machine::ifm_scale(Input input) const {
  const unsigned code = codes_of(input == Input::ifm2).scale;
  const uint32_t high = parameter(code);
  return scale_of(
      value(code), high, high >> 13 & 1 ? Rounding::half_up : Rounding::double_up,
      input == Input::ifm2 ? "IFM2_SCALE" : "IFM_SCALE");
}

bool U85Machine::is_channelwise() const {
  return !(get(OFM_PRECISION) >> 8 & 1);
}

void U85Machine::describe(const Output& out, ethosu_sim_operation& done) const {
  ethosu_sim_feature_map& map = done.ofm;
  map.region = out.chained || !out.stored ? -1 : static_cast<int32_t>(out.map.region);
  map.address = out.map.base[0];
  const Size size = transposed(out);
  map.shape[0] = static_cast<int32_t>(size.height);
  map.shape[1] = static_cast<int32_t>(size.width);
  map.shape[2] = static_cast<int32_t>(size.depth);
  map.stride[0] = out.map.stride_y;
  map.stride[1] = out.map.bricks ? 16 * static_cast<int64_t>(out.map.element_bytes) : out.map.stride_x;
  map.stride[2] = out.map.bricks ? out.map.stride_c : 0;
  map.element_bytes = static_cast<int32_t>(out.map.element_bytes);
  map.is_signed = out.map.is_signed;
  map.is_bricks = out.map.bricks;
  map.zero_point = out.map.zero_point;
}

const Plane<int64_t>& U85Machine::chained(Input input) const {
  const unsigned number = get(codes_of(input == Input::ifm2).region) & 7;
  const auto found = chains_.find(number);
  if (found == chains_.end()) {
    invalid(
        std::string("the ") + codes_of(input == Input::ifm2).name + " is chained buffer " + std::to_string(number) +
        ", which no operation has filled");
  }
  return found->second;
}

int64_t U85Machine::scalar(Input input) const {
  return int64_t{static_cast<int32_t>(value(OP_SCALAR))} - get_signed(codes_of(input == Input::ifm2).zero_point);
}

template <class T>
void U85Machine::read_input(
    Input input, const Size& size, const Padding& padding, Upscale upscale, T fill, Plane<T>& plane) {
  if (storage(input) != STORAGE_CHAINED) {
    read_window(memory, feature_map(input), size.height, size.width, size.depth, padding, upscale, fill, plane);
    return;
  }
  const char* name = codes_of(input == Input::ifm2).name;
  if (padding.top || padding.left || padding.bottom || padding.right || upscale != Upscale::none) {
    not_modelled(std::string("the ") + name + " is chained, and padded or upscaled");
  }
  const Plane<int64_t>& from = chained(input);
  if (from.height < size.height || from.width < size.width || from.depth < size.depth) {
    invalid(std::string("the ") + name + " is a chained buffer that is smaller than what is read of it");
  }
  const int64_t zero_point = get_signed(codes_of(input == Input::ifm2).zero_point);
  plane.shape(size.height, size.width, size.depth);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x) {
      const int64_t* values = from.at(y, x);
      T* to = plane.at(y, x);
      for (int64_t c = 0; c < size.depth; ++c) {
        to[c] = static_cast<T>(values[c] - zero_point);
      }
    }
  }
}

template void U85Machine::read_input<int16_t>(Input, const Size&, const Padding&, Upscale, int16_t, Plane<int16_t>&);
template void U85Machine::read_input<int32_t>(Input, const Size&, const Padding&, Upscale, int32_t, Plane<int32_t>&);
template void U85Machine::read_input<int64_t>(Input, const Size&, const Padding&, Upscale, int64_t, Plane<int64_t>&);

} // namespace u85

std::unique_ptr<Machine> make_u85(int32_t macs) {
  for (const int32_t known : {128, 256, 512, 1024, 2048}) {
    if (macs == known) {
      return std::make_unique<u85::U85Machine>(macs);
    }
  }
  return nullptr;
}

} // namespace ethosu
