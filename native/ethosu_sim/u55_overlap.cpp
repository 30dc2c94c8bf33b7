// Overlap of operations: the NPU may start an operation before the previous one has finished, as far as BLOCKDEP
// allows.
#include "u55_machine.h"

#include <algorithm>

namespace ethosu::u55 {
namespace {

constexpr int64_t kMostOfBlock = 128; // in any direction; Arm's own limits are 32 rows, 64 columns, 128 channels

} // namespace

void U55::check_overlap(const Finish& out, const std::vector<Source>& sources) {
  const Size size{out.height, out.width, out.depth};
  const Size block{
      int64_t{get(OFM_BLK_HEIGHT_M1)} + 1, int64_t{get(OFM_BLK_WIDTH_M1)} + 1, int64_t{get(OFM_BLK_DEPTH_M1)} + 1};
  if (block.height > kMostOfBlock || block.width > kMostOfBlock || block.depth > kMostOfBlock) {
    invalid(
        "NPU_SET_OFM_BLK_* ask for a block of " + std::to_string(block.height) + " x " + std::to_string(block.width) +
        " x " + std::to_string(block.depth) + ", which no buffer of the NPU holds");
  }
  const int64_t ahead = get(BLOCKDEP) & 3;
  if (previous_.valid && ahead) {
    // Job i of this operation may run while job j, counted from the end of the previous one, does, if i + j < BLOCKDEP.
    const int64_t before = count_of(previous_.size, previous_.block);
    for (const Source& source : sources) {
      const int64_t per_block = blocks(source.depth, source.job_depth);
      const int64_t jobs = count_of(size, block) * per_block;
      for (int64_t i = 0; i < std::min(ahead, jobs); ++i) {
        const Area made = block_of(size, block, i / per_block);
        const Area read = source.area(made, i % per_block);
        for (int64_t j = 0; i + j < ahead && j < before; ++j) {
          const Area written = block_of(previous_.size, previous_.block, before - 1 - j);
          if (share_bytes(source.map, read, previous_.map, written)) {
            too_early(ahead, i, source.map.name, before - 1 - j, before);
          }
        }
      }
    }
  }
  previous_ = {true, out.map, size, block};
}

U55::Source U55::window_source(const Finish& out, const FeatureMap& in, const Kernel& kernel, bool whole_depth) const {
  Source source;
  source.map = in;
  source.kernel = kernel;
  source.pad = padding();
  source.upscaled = upscale() != Upscale::none;
  source.height = kernel.rows(out.height) - source.pad.top - source.pad.bottom;
  source.width = kernel.columns(out.width) - source.pad.left - source.pad.right;
  source.depth = whole_depth ? int64_t{get(IFM_DEPTH_M1)} + 1 : out.depth;
  source.whole_depth = whole_depth;
  // Channels that fit in the NPU's buffer for a job: 32 bytes; half of them where the whole kernel comes first.
  const bool part_kernel = get(KERNEL_STRIDE) >> 2 & 1;
  source.job_depth = !whole_depth ? source.depth : std::max<int64_t>(1, (part_kernel ? 16 : 32) / in.element_bytes);
  return source;
}

Area U55::Source::area(const Area& made, int64_t chunk) const {
  const int64_t scale = upscaled ? 2 : 1;
  const auto range = [&](int64_t begin, int64_t end, int64_t stride, int64_t reach, int64_t pad, int64_t size, bool one) {
    const int64_t first = std::clamp<int64_t>(begin * stride - pad, 0, size);
    const int64_t last = std::clamp<int64_t>((end - 1) * stride + reach - pad, 0, size);
    return one ? std::make_pair(int64_t{0}, int64_t{1}) : std::make_pair(first / scale, (last + scale - 1) / scale);
  };
  Area area;
  std::tie(area.y0, area.y1) = range(
      made.y0, made.y1, kernel.stride_y, (kernel.height - 1) * kernel.dilation_y + 1, pad.top, height, one_row);
  std::tie(area.x0, area.x1) = range(
      made.x0, made.x1, kernel.stride_x, (kernel.width - 1) * kernel.dilation_x + 1, pad.left, width, one_column);
  if (one_channel) {
    area.c0 = 0, area.c1 = 1;
  } else if (whole_depth) {
    area.c0 = chunk * job_depth, area.c1 = std::min(area.c0 + job_depth, depth);
  } else {
    area.c0 = made.c0, area.c1 = made.c1;
  }
  return area;
}

} // namespace ethosu::u55
