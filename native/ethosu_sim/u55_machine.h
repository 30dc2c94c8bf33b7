// Ethos-U55 and Ethos-U65: decodes registers into operations. u55_registers.h names the source of the numbers.
#pragma once

#include "arithmetic.h"
#include "blocks.h"
#include "feature_map.h"
#include "kernels.h"
#include "machine.h"
#include "u55_registers.h"

#include <tuple>

namespace ethosu::u55 {

// Parameters of an accelerator.
struct Shape {
  int32_t family, macs;
  int64_t cores;
  int64_t ofm_ublock; // channels
  unsigned shram_banks; // of 1024 bytes, per core
};

// Output stage of an operation: from the sums to the OFM.
struct Finish {
  FeatureMap map;
  int64_t height = 0, width = 0, depth = 0;
  int64_t zero_point = 0, least = 0, most = 0;
  unsigned activation = 0; // of the register ACTIVATION
  const uint8_t* table = nullptr;
  std::vector<int32_t> row;
};

struct Combination; // of element-wise operations, see u55_elementwise.cpp
struct SecondOperand;

class U55 final : public Machine {
 public:
  explicit U55(const Shape& shape);

 protected:
  const char* name_of_cmd0(unsigned code) const override;
  const char* name_of_cmd1(unsigned code) const override;
  void start() override {
    previous_ = {};
  }
  bool operate(unsigned code, uint32_t parameter, ethosu_sim_operation& done) override;

 private:
  // Returns a register, which the stream must have set.
  uint32_t get(Cmd0 code) const;
  int32_t get_signed(Cmd0 code) const;
  uint32_t value(Cmd1 code) const;
  uint64_t address(Cmd1 code) const;
  Scale scale_of(Cmd1 code, Rounding rounding) const;

  // Decodes the registers of a feature map: IFM, IFM2 and OFM have the same order at different codes.
  FeatureMap map_of(const char* name, Cmd0 precision, Cmd0 zero_point, Cmd0 width0, Cmd0 region, Cmd1 base) const;
  FeatureMap ifm() const;
  FeatureMap ifm2() const;
  Finish finish() const;
  Kernel kernel() const;
  Padding padding() const;
  Upscale upscale() const;
  Rounding ofm_rounding() const;
  bool global_scale() const;

  void use_tables(Finish& out);
  void write_row(Finish& out, int64_t y, const int64_t* values);
  void describe(const Finish& out, const char* name, ethosu_sim_operation& done) const;

  void transfer(ethosu_sim_operation& done);
  void convolve(bool depthwise, ethosu_sim_operation& done);
  template <class T, class Sum>
  void convolve_as(bool depthwise, Finish& out, const FeatureMap& in, const Kernel& kernel, Weights weights);
  Weights layer_weights(bool depthwise, const FeatureMap& in, const Kernel& kernel, int64_t ofm_depth, int64_t ifm_depth);
  void pool(uint32_t mode, ethosu_sim_operation& done);
  template <class T, class Sum>
  void pool_as(uint32_t mode, Finish& out, const FeatureMap& in);
  void reduce_sum(Finish& out, const FeatureMap& in);
  void elementwise(uint32_t mode, ethosu_sim_operation& done);
  template <class T>
  void elementwise_as(
      Finish& out, const FeatureMap& in, const SecondOperand& second, bool swapped, const Combination& combine,
      const Scale* ofm_scale);

  // Bias, scale and shift of every channel, from records of 10 bytes.
  struct Channel {
    int64_t bias;
    Scale scale;
  };
  std::vector<Channel> channels(int64_t depth, Rounding rounding);
  template <class Sum>
  void scale_row(
      const std::vector<Channel>& channels, bool wide, int64_t width, int64_t depth, const Sum* sums, int64_t* out) const;

  // An input as the blocks of an operation read it, see u55_overlap.cpp.
  struct Source {
    FeatureMap map;
    Kernel kernel;
    Padding pad;
    bool upscaled = false;
    int64_t height = 0, width = 0, depth = 0; // of the input, upscaled
    bool whole_depth = false; // a job reads `job_depth` of all channels (convolution), or those of its output (all else)
    int64_t job_depth = 1;
    bool one_row = false, one_column = false, one_channel = false; // broadcast

    Area area(const Area& made, int64_t chunk) const;
  };
  // Refuses an operation that BLOCKDEP allows to start before the previous one has written what it reads.
  void check_overlap(const Finish& out, const std::vector<Source>& sources);
  Source window_source(const Finish& out, const FeatureMap& in, const Kernel& kernel, bool whole_depth) const;

  Shape shape_;
  struct {
    bool valid = false;
    FeatureMap map;
    Size size, block;
  } previous_; // the previous operation and its output
};

} // namespace ethosu::u55
