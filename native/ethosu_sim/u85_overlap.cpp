// Overlap of operations: the NPU may start an operation before the previous one has finished, as far as BLOCKDEP
// allows.
//
// A chain counts as one operation: reads of its parts are checked against the operation before the chain.
#include "u85_machine.h"

#include <algorithm>
#include <tuple>

namespace ethosu::u85 {
namespace {

constexpr Size kMostOfBlock{128, 128, 1024};
constexpr int64_t kMostPixels = int64_t{1} << 24;

} // namespace

U85Machine::Source U85Machine::Source::same(const FeatureMap& map, const Size& size) {
  Source source;
  source.reads = Reads::same;
  source.map = map;
  source.size = size;
  source.job_depth = size.depth;
  return source;
}

Size U85Machine::read_size(const Output& out, int64_t depth) const {
  const Kernel window = kernel();
  const Padding pad = padding();
  return {
      window.rows(out.size.height) - pad.top - pad.bottom, window.columns(out.size.width) - pad.left - pad.right, depth};
}

Area U85Machine::Source::area(const Area& made, int64_t chunk) const {
  const int64_t scale = upscaled ? 2 : 1;
  const auto range = [scale](int64_t begin, int64_t end, int64_t stride, int64_t reach, int64_t pad, int64_t size) {
    const int64_t first = std::clamp<int64_t>(begin * stride - pad, 0, size);
    const int64_t last = std::clamp<int64_t>((end - 1) * stride + reach - pad, 0, size);
    return std::make_pair(first / scale, (last + scale - 1) / scale);
  };
  const int64_t first = chunk * job_depth, last = std::min(first + job_depth, size.depth);
  switch (reads) {
    case Reads::all:
      return {0, size.height, 0, size.width, 0, size.depth};
    case Reads::weights: // the columns are the channels that are made
      return {0, 1, made.c0, made.c1, first, last};
    case Reads::same:
      return {
          size.height == 1 ? 0 : made.y0, size.height == 1 ? 1 : made.y1, size.width == 1 ? 0 : made.x0,
          size.width == 1 ? 1 : made.x1, size.depth == 1 ? 0 : made.c0, size.depth == 1 ? 1 : made.c1};
    case Reads::window:
    case Reads::window_channels:
      break;
  }
  Area area;
  std::tie(area.y0, area.y1) = range(
      made.y0, made.y1, kernel.stride_y, (kernel.height - 1) * kernel.dilation_y + 1, pad.top, size.height);
  std::tie(area.x0, area.x1) = range(
      made.x0, made.x1, kernel.stride_x, (kernel.width - 1) * kernel.dilation_x + 1, pad.left, size.width);
  if (reads == Reads::window) {
    area.c0 = first, area.c1 = last;
  } else {
    area.c0 = made.c0, area.c1 = made.c1;
  }
  return area;
}

void U85Machine::check_window(const Output& out, const Size& size, Reads reads, int64_t job_depth) {
  std::vector<Source> sources;
  if (storage(Input::ifm) != STORAGE_CHAINED) {
    Source source;
    source.reads = reads;
    source.map = feature_map(Input::ifm);
    source.size = size;
    source.job_depth = job_depth;
    source.kernel = kernel();
    source.pad = padding();
    source.upscaled = upscale() != Upscale::none;
    sources.push_back(source);
  }
  if (accumulators_.input == ACC_IFM2) {
    sources.push_back(Source::same(accumulators_.ifm2, out.size));
  }
  check_overlap(out, storage(Input::ifm) == STORAGE_CHAINED, sources);
}

void U85Machine::check_overlap(const Output& out, bool chained_input, const std::vector<Source>& sources) {
  const Size block{
      int64_t{get(OFM_BLK_HEIGHT_M1)} + 1, int64_t{get(OFM_BLK_WIDTH_M1)} + 1, int64_t{get(OFM_BLK_DEPTH_M1)} + 1};
  const int64_t ahead = get(BLOCKDEP) & 7;
  if (block.height > kMostOfBlock.height || block.width > kMostOfBlock.width || block.depth > kMostOfBlock.depth) {
    invalid(
        "NPU_SET_OFM_BLK_* ask for a block of " + std::to_string(block.height) + " x " + std::to_string(block.width) +
        " x " + std::to_string(block.depth) + ", which no buffer of the NPU holds");
  }
  if (!chained_input) {
    before_ = last_;
    last_ = {};
  }
  if (before_.valid && ahead) {
    // Job i of this operation may run while job j, counted from the end of the previous one, does, if i + j < BLOCKDEP.
    const int64_t before = before_.whole ? 1 : count_of(before_.size, before_.block);
    for (const Source& source : sources) {
      const int64_t per_block = blocks(source.size.depth, source.job_depth);
      const int64_t jobs = count_of(out.size, block) * per_block;
      for (int64_t i = 0; i < std::min(ahead, jobs); ++i) {
        const Area read = source.area(block_of(out.size, block, i / per_block), i % per_block);
        for (int64_t j = 0; i + j < ahead && j < before; ++j) {
          const Area written =
              block_of(before_.size, before_.whole ? before_.size : before_.block, before - 1 - j);
          if ((read.y1 - read.y0) * (read.x1 - read.x0) > kMostPixels) {
            not_modelled("a block of the operation reads more pixels than the simulator takes");
          }
          if (share_bytes(source.map, read, before_.map, written)) {
            too_early(ahead, i, source.map.name, before - 1 - j, before);
          }
        }
      }
    }
  }
  if (!out.chained && out.stored) {
    last_ = {true, out.transpose || out.reverse, out.map, out.size, block};
    if (out.transpose) {
      last_.size = transposed(out);
    }
  }
}

} // namespace ethosu::u85
