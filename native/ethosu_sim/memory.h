// The NPU's view of memory: bounded regions, a written flag for every byte, and the jobs in flight.
#pragma once

#include "fault.h"

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace ethosu {

constexpr unsigned kMaxRegions = 8;
constexpr unsigned kInternal = 8; // the table memory inside the NPU: region number for hazards and messages
constexpr uint64_t kInternalSize = 2048; // bytes of tables on all three families

// Bytes [begin, end) of a region (of the outermost one, if regions are nested).
struct Span {
  unsigned region;
  uint64_t begin, end;
};

// Bytes that one operation reads and writes; adjacent spans are merged as they arrive.
struct Footprint {
  std::vector<Span> reads, writes;
};

// Limits the work of a run: multiplications and bytes moved.
class Budget {
 public:
  void start(uint64_t limit) {
    limit_ = limit;
    spent_ = 0;
  }

  // Call it before doing the work, with an amount computed in 64 bits.
  void spend(uint64_t amount);

  uint64_t spent() const {
    return spent_;
  }

 private:
  uint64_t limit_ = 0, spent_ = 0;
};

class Memory {
 public:
  // Throws ETHOSU_SIM_BAD_ARGUMENT. Leaves the table memory unchanged.
  void bind(const ethosu_sim_region* regions, int32_t num_regions, const ethosu_sim_range* ranges, int32_t num_ranges);

  // Bytes that an operation reads: inside the region, and written. `what` names them ("IFM", "weights") in the error.
  const uint8_t* read(unsigned region, uint64_t address, uint64_t size, const char* what);

  // Bytes that an operation is about to write: inside the region, not constant. They count as written from now on.
  uint8_t* write(unsigned region, uint64_t address, uint64_t size, const char* what);

  // Performs a transfer. Lengths are rounded up, so it may move unwritten bytes; these stay unwritten.
  void copy(unsigned from, uint64_t source, unsigned to, uint64_t destination, uint64_t size);

  // Table memory (region kInternal in read() and write() is the same).
  const uint8_t* table(uint64_t address, uint64_t size) {
    return read(kInternal, address, size, "table");
  }

  // Returns the first unwritten byte in a part of a region, or UINT64_MAX.
  uint64_t unwritten(unsigned region, uint64_t address, uint64_t size) const;

  void forget_tables();

  // Order of events. An operation's accesses are collected from begin() to commit(); commit() refuses an overlap with a
  // transfer or a kernel in flight, and counts the operation as in flight until a wait ends it.
  enum class Engine { kernel, transfer };
  void begin();
  void commit(Engine engine, uint32_t operation);
  // Returns what the operation of the last commit() reads and writes, sorted and without overlaps.
  const Footprint& committed(Engine engine);
  // Waits until at most `count` jobs of that engine are in flight.
  void wait(Engine engine, unsigned count);
  void start_run(unsigned max_kernels, unsigned max_transfers);

  Budget budget;

 private:
  struct Region {
    uint8_t* data = nullptr;
    uint64_t size = 0;
    int32_t kind = ETHOSU_SIM_MEMORY;
    unsigned outer = 0; // the region that holds it, or itself
    uint64_t shift = 0; // where it begins in that region
  };
  struct Job {
    uint32_t operation;
    Footprint footprint;
    bool is_tidy; // spans are sorted and free of overlaps
  };

  // Returns the written flags, one byte each, of an outermost scratch region, allocated at first use; empty for other
  // regions.
  std::vector<uint8_t>& written_of(unsigned outer);
  const Region& locate(unsigned region, uint64_t address, uint64_t size, const char* what) const;
  static void note(std::vector<Span>& spans, Span span);
  static const Footprint& in_order(Job& job);
  static void refuse_overlap(Job& current, std::deque<Job>& jobs, const char* engine);

  std::array<Region, kMaxRegions + 1> regions_;
  std::array<std::vector<uint8_t>, kMaxRegions + 1> written_; // see written_of()
  std::array<uint8_t, kInternalSize> tables_{};
  Footprint current_;
  std::deque<Job> kernels_, transfers_; // in flight, oldest first
  unsigned max_kernels_ = 1, max_transfers_ = 1;
};

} // namespace ethosu
