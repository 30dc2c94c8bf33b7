// Ethos-U85: its registers and operations.
#pragma once

#include "arithmetic.h"
#include "blocks.h"
#include "feature_map.h"
#include "kernels.h"
#include "machine.h"
#include "u85_registers.h"
#include "u85_weights.h"

#include <cstdint>
#include <map>
#include <vector>

namespace ethosu::u85 {

constexpr int64_t kMostTaps = int64_t{1} << 22; // of a sum, so that it stays within 64 bits

// Uses 64-bit arithmetic if the product fits.
inline int64_t scaled(int64_t value, const Scale& scale) {
  return value == static_cast<int32_t>(value) ? rescale(value, scale) : rescale_wide(value, scale);
}

// Output stage of an operation: requantization, clamp, table and store.
struct Output {
  Size size; // before transposing
  Scale scale; // of all channels; its `rounding` and `left_shift` also apply to per-channel scales
  std::vector<Scale> channel_scales; // empty: `scale`
  std::vector<int64_t> bias; // per channel, empty: none
  FeatureMap map;
  bool chained = false;
  unsigned chain = 0; // number of the buffer
  bool stored = true; // false: only the accumulators are kept
  unsigned transpose = 0, reverse = 0; // fields of OFM_PRECISION
  int64_t least = INT64_MIN, most = INT64_MAX; // the clamp
  unsigned activation = ACT_NONE;
  const uint8_t* table = nullptr;
  bool whole = false; // the plane is collected before it is stored
  Plane<int64_t> plane;
  std::vector<int64_t> row;
};

class U85Machine final : public Machine {
 public:
  explicit U85Machine(int32_t macs);

 protected:
  const char* name_of_cmd0(unsigned code) const override;
  const char* name_of_cmd1(unsigned code) const override;
  bool operate(unsigned code, uint32_t parameter, ethosu_sim_operation& done) override;
  void forget() override;
  void start() override;

 private:
  enum class Input { ifm, ifm2 };

  // Registers, which the stream must have set.
  uint32_t get(unsigned code) const; // of CMD0
  int32_t get_signed(unsigned code) const; // 16 bits, sign-extended
  uint32_t value(unsigned code) const; // of CMD1
  uint32_t parameter(unsigned code) const; // the 16 bits beside it
  uint64_t address(unsigned code) const; // both as a 40-bit number
  int64_t stride(unsigned code) const; // the same, signed

  // Decode registers and refuse meaningless values. u85_machine.cpp.
  Size ofm_size() const;
  int64_t ifm_depth() const;
  Storage storage(Input input) const;
  unsigned element_bytes(Input input) const;
  bool is_signed(Input input) const;
  FeatureMap feature_map(Input input);
  FeatureMap ofm_map();
  Kernel kernel() const;
  Padding padding() const;
  Upscale upscale() const;
  int64_t microblock_depth() const;
  Scale ofm_scale() const;
  Scale ifm_scale(Input input) const;
  bool is_channelwise() const; // scales per channel
  void describe(const Output& out, ethosu_sim_operation& done) const;

  // Read inputs; chained ones come from their buffer. The zero point is subtracted. u85_machine.cpp.
  template <class T>
  void read_input(Input input, const Size& size, const Padding& padding, Upscale upscale, T fill, Plane<T>& plane);
  const Plane<int64_t>& chained(Input input) const;
  int64_t scalar(Input input) const;

  // Results. u85_output.cpp.
  void open(Output& out, bool with_scales);
  // Requantizes and stores a row of accumulators, size.width x size.depth.
  template <class Sum>
  void put_sums(Output& out, int64_t y, const Sum* sums);
  // Stores a row of values that are already scaled, without zero point.
  void put_row(Output& out, int64_t y, int64_t* values);
  void close(Output& out);
  void look_up(const Output& out, int64_t* values, int64_t count) const;
  void read_scales(Output& out);

  // Load and store the accumulators, ACC_FORMAT. Returns true if `sums` continue to the output.
  template <class Sum>
  void put_accumulators(Output& out, int64_t y, Sum* sums);
  void open_accumulators(const Output& out);

  // Part of an input that a block of the operation reads. u85_overlap.cpp.
  enum class Reads {
    window, // `job_depth` channels of the kernel's window
    window_channels, // of the window, the channels of the output block
    same, // the region of the output block; a size of 1 is broadcast
    weights, // of IFM2 in a matrix product
    all,
  };
  struct Source {
    Reads reads = Reads::all;
    FeatureMap map;
    Size size; // of the input, upscaled
    int64_t job_depth = 1;
    Kernel kernel;
    Padding pad;
    bool upscaled = false;

    // The region of the output block in an input of that size.
    static Source same(const FeatureMap& map, const Size& size);

    Area area(const Area& made, int64_t chunk) const;
  };
  // Refuses an operation that BLOCKDEP allows to start before the previous one has written what it reads. Call it after
  // reading the inputs.
  void check_overlap(const Output& out, bool chained_input, const std::vector<Source>& sources);
  // The same for operations with a window; `size`: of the IFM.
  void check_window(const Output& out, const Size& size, Reads reads, int64_t job_depth);
  static Size transposed(const Output& out); // size as it is written
  Size read_size(const Output& out, int64_t depth) const; // of the IFM, by the kernel and its padding

  void convolve(bool depthwise, ethosu_sim_operation& done); // u85_convolution.cpp
  template <class T, class Sum>
  void convolve_as(
      bool depthwise, Output& out, const Kernel& kernel, int64_t depth, int64_t job_depth,
      const std::vector<int16_t>& weights);
  Weights read_weights(const WeightLayout& layout);
  void multiply(ethosu_sim_operation& done);
  template <class T, class Sum>
  void multiply_as(Output& out, int64_t depth);
  void pool(uint32_t mode, ethosu_sim_operation& done); // u85_pool.cpp
  template <class T, class Sum>
  void pool_as(uint32_t mode, Output& out);
  void average(Output& out);
  void sum_depth(Output& out);
  void find_greatest(uint32_t mode, Output& out);
  void elementwise(uint32_t mode, ethosu_sim_operation& done); // u85_elementwise.cpp
  void resize(uint32_t mode, ethosu_sim_operation& done); // u85_resize.cpp
  void transfer(ethosu_sim_operation& done); // u85_transfer.cpp

  const int32_t macs_;
  std::map<unsigned, Plane<int64_t>> chains_; // by number
  // Accumulators that ACC_FORMAT keeps between operations.
  struct Accumulators {
    uint32_t input = ACC_RESET;
    bool output = true;
    bool is_wide = false; // 48 bits, otherwise 32
    FeatureMap ifm2;
    std::vector<int64_t> row;
    Plane<int64_t> kept, next;
  };
  Accumulators accumulators_;
  struct Written {
    bool valid = false, whole = false; // whole: in an order that is not that of its blocks
    FeatureMap map;
    Size size, block;
  };
  Written before_, last_; // output of the operation before a chain, and of the last one
};

} // namespace ethosu::u85
