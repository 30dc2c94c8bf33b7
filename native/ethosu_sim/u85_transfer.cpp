#include "u85_machine.h"

#include <cstring>

namespace ethosu::u85 {
namespace {

constexpr unsigned kIndexBytes = 4;

uint64_t at(uint64_t base, int64_t offset, const char* what) {
  const int64_t address = static_cast<int64_t>(base) + offset;
  if (address < 0) {
    invalid(std::string("the transfer's ") + what + " lies before its region, at byte " + std::to_string(address));
  }
  return static_cast<uint64_t>(address);
}

} // namespace

void U85Machine::transfer(ethosu_sim_operation& done) {
  const uint32_t source = get(DMA0_SRC_REGION), destination = get(DMA0_DST_REGION);
  const uint32_t dimensions = (source >> 9 & 3) + 1;
  const bool gathers = source >> 11 & 1, scatters = destination >> 11 & 1;
  done.name = gathers ? "gather" : scatters ? "scatter" : "transfer";
  if (dimensions > 3) {
    not_modelled("NPU_SET_DMA0_SRC_REGION is " + hex(source) + ": the stride mode of its bits 9 and 10 is unknown");
  }
  if (gathers && scatters) {
    invalid("the transfer may not be indexed at both ends");
  }
  const unsigned from = source & 0x100 ? kInternal : source & 7, to = destination & 0x100 ? kInternal : destination & 7;
  const uint64_t length = address(DMA0_LEN), source_base = address(DMA0_SRC),
                 destination_base = address(DMA0_DST);
  const bool indexed = gathers || scatters;
  const int64_t rows = dimensions >= 2 ? get(DMA0_SIZE0) : 1;
  const int64_t planes = dimensions == 3 ? get(DMA0_SIZE1) : 1;
  if (!rows || !planes || !length) {
    invalid("the transfer is of size 0");
  }
  const bool has_rows = dimensions >= 2, has_planes = dimensions == 3;
  const int64_t source_row = has_rows || gathers ? stride(DMA0_SRC_STRIDE0) : 0,
                destination_row = has_rows || scatters ? stride(DMA0_DST_STRIDE0) : 0,
                source_plane = has_planes ? stride(DMA0_SRC_STRIDE1) : 0,
                destination_plane = has_planes ? stride(DMA0_DST_STRIDE1) : 0,
                index_skip = has_planes && indexed ? stride(DMA0_IDX_SKIP1) : 0;
  const uint64_t most = indexed ? value(DMA0_IDX_MAX) : 0;
  done.source_region = from;
  done.source_address = source_base;
  done.destination_region = to;
  done.destination_address = destination_base;
  done.length = length * static_cast<uint64_t>(rows * planes);
  memory.budget.spend(length);
  memory.budget.spend(done.length);
  for (int64_t j = 0; j < planes; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      int64_t source_index = i, destination_index = i;
      if (indexed) {
        const uint64_t place =
            at(address(DMA0_IDX), kIndexBytes * (j * rows + i) + j * index_skip, "list of indices");
        int32_t index;
        std::memcpy(
            &index, memory.read(get(DMA0_IDX_REGION) & 7, place, sizeof index, "list of indices"),
            sizeof index);
        if (index < 0 || static_cast<uint64_t>(index) > most) {
          invalid(
              "the index " + std::to_string(index) + " is not between 0 and NPU_SET_DMA0_IDX_MAX, " +
              std::to_string(most));
        }
        (gathers ? source_index : destination_index) = index;
      }
      memory.copy(
          from, at(source_base, source_index * source_row + j * source_plane, "source"), to,
          at(destination_base, destination_index * destination_row + j * destination_plane, "destination"), length);
    }
  }
}

} // namespace ethosu::u85
