#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace ethosu {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

namespace {

std::string bytes_of(unsigned region, uint64_t address, uint64_t size) {
  const std::string place = region == kInternal ? "the table memory" : "region " + std::to_string(region);
  return "bytes " + hex(address) + " to " + hex(address + size) + " of " + place;
}

bool overlap(const std::vector<Span>& a, const std::vector<Span>& b, Span& where) {
  // Both are sorted and each is free of overlaps, so one pass finds any.
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const auto key = [](const Span& s) { return std::make_pair(s.region, s.begin); };
    if (a[i].region == b[j].region && a[i].begin < b[j].end && b[j].begin < a[i].end) {
      where = {a[i].region, std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
      return true;
    }
    if (key(a[i]) < key(b[j])) {
      ++i;
    } else {
      ++j;
    }
  }
  return false;
}

void tidy(std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.region != b.region ? a.region < b.region : a.begin < b.begin;
  });
  size_t kept = 0;
  for (const Span& s : spans) {
    if (kept && spans[kept - 1].region == s.region && s.begin <= spans[kept - 1].end) {
      spans[kept - 1].end = std::max(spans[kept - 1].end, s.end);
    } else {
      spans[kept++] = s;
    }
  }
  spans.resize(kept);
}

} // namespace

void Budget::spend(uint64_t amount) {
  spent_ = spent_ + amount < spent_ ? UINT64_MAX : spent_ + amount;
  if (limit_ && spent_ > limit_) {
    throw Fault(
        ETHOSU_SIM_TOO_MUCH_WORK,
        "the stream asks for more than the " + std::to_string(limit_) +
            " multiplications and bytes that this run may take");
  }
}

void Memory::bind(
    const ethosu_sim_region* regions, int32_t num_regions, const ethosu_sim_range* ranges, int32_t num_ranges) {
  const auto refuse = [](const std::string& sentence) { throw Fault(ETHOSU_SIM_BAD_ARGUMENT, sentence); };
  if (num_regions < 0 || num_regions > static_cast<int32_t>(kMaxRegions)) {
    refuse("there are " + std::to_string(num_regions) + " regions, but the NPU has " + std::to_string(kMaxRegions));
  }
  regions_ = {};
  for (unsigned i = 0; i < static_cast<unsigned>(num_regions); ++i) {
    const ethosu_sim_region& r = regions[i];
    if (r.kind < ETHOSU_SIM_CONSTANT || r.kind > ETHOSU_SIM_MEMORY) {
      refuse("region " + std::to_string(i) + " has the unknown kind " + std::to_string(r.kind));
    }
    if (r.size && !r.data) {
      refuse("region " + std::to_string(i) + " has no address");
    }
    regions_[i] = {static_cast<uint8_t*>(r.data), r.size, r.kind, i, 0};
  }
  regions_[kInternal] = {tables_.data(), kInternalSize, ETHOSU_SIM_SCRATCH, kInternal, 0};
  for (unsigned i = 0; i < kMaxRegions; ++i) {
    Region& inner = regions_[i];
    for (unsigned j = 0; j < kMaxRegions && inner.size; ++j) {
      const Region& other = regions_[j];
      const auto a = reinterpret_cast<uintptr_t>(inner.data), b = reinterpret_cast<uintptr_t>(other.data);
      if (i == j || !other.size || a >= b + other.size || b >= a + inner.size) {
        continue;
      }
      const bool inside = a >= b && a + inner.size <= b + other.size;
      const bool around = b >= a && b + other.size <= a + inner.size;
      if (!inside && !around) {
        refuse("regions " + std::to_string(i) + " and " + std::to_string(j) + " overlap, but neither holds the other");
      }
      const bool same = inside && around;
      if (inside && (!same || j < i) && other.size >= regions_[inner.outer].size) {
        inner.outer = j;
        inner.shift = a - b;
      }
    }
  }
  for (std::vector<uint8_t>& written : written_) {
    written.clear();
  }
  for (const Region& r : regions_) {
    if (r.size && r.kind != ETHOSU_SIM_SCRATCH && !written_of(r.outer).empty()) {
      std::memset(written_of(r.outer).data() + r.shift, 1, r.size);
    }
  }
  for (int32_t i = 0; i < num_ranges; ++i) {
    const ethosu_sim_range& range = ranges[i];
    if (range.region >= kMaxRegions || range.offset > regions_[range.region].size ||
        range.size > regions_[range.region].size - range.offset) {
      refuse("range " + std::to_string(i) + " does not lie in its region");
    }
    const Region& r = regions_[range.region];
    if (range.size && !written_of(r.outer).empty()) {
      std::memset(written_of(r.outer).data() + r.shift + range.offset, 1, range.size);
    }
  }
}

std::vector<uint8_t>& Memory::written_of(unsigned outer) {
  std::vector<uint8_t>& written = written_[outer];
  if (written.empty() && regions_[outer].kind == ETHOSU_SIM_SCRATCH) {
    written.assign(regions_[outer].size, 0);
  }
  return written;
}

const Memory::Region& Memory::locate(unsigned region, uint64_t address, uint64_t size, const char* what) const {
  if (region > kInternal) {
    invalid(std::string("the ") + what + " is in region " + std::to_string(region) + ", but there are 8");
  }
  const Region& r = regions_[region];
  if (address > r.size || size > r.size - address) {
    invalid(
        std::string("the ") + what + " needs " + bytes_of(region, address, size) + ", which has " +
        std::to_string(r.size) + " bytes");
  }
  return r;
}

void Memory::note(std::vector<Span>& spans, Span span) {
  if (!spans.empty()) {
    Span& last = spans.back();
    if (last.region == span.region && span.begin <= last.end && span.begin >= last.begin) {
      last.end = std::max(last.end, span.end);
      return;
    }
  }
  spans.push_back(span);
}

const uint8_t* Memory::read(unsigned region, uint64_t address, uint64_t size, const char* what) {
  const Region& r = locate(region, address, size, what);
  const uint64_t at = r.shift + address;
  const std::vector<uint8_t>& written = written_of(r.outer);
  if (!written.empty() && size) {
    if (const void* hole = std::memchr(written.data() + at, 0, size)) {
      const uint64_t first = static_cast<const uint8_t*>(hole) - written.data() - r.shift;
      invalid(
          std::string("the ") + what + " reads " + bytes_of(region, address, size) + ", but nobody has written byte " +
          hex(first));
    }
  }
  note(current_.reads, {r.outer, at, at + size});
  return r.data + address;
}

uint8_t* Memory::write(unsigned region, uint64_t address, uint64_t size, const char* what) {
  const Region& r = locate(region, address, size, what);
  if (r.kind == ETHOSU_SIM_CONSTANT || regions_[r.outer].kind == ETHOSU_SIM_CONSTANT) {
    invalid(std::string("the ") + what + " writes " + bytes_of(region, address, size) + ", which holds constants");
  }
  const uint64_t at = r.shift + address;
  std::vector<uint8_t>& written = written_of(r.outer);
  if (!written.empty() && size) {
    std::memset(written.data() + at, 1, size);
  }
  note(current_.writes, {r.outer, at, at + size});
  return r.data + address;
}

void Memory::copy(unsigned from, uint64_t source, unsigned to, uint64_t destination, uint64_t size) {
  const Region& in = locate(from, source, size, "source of the transfer");
  const Region& out = locate(to, destination, size, "destination of the transfer");
  if (!size) {
    return;
  }
  std::vector<uint8_t> known(size, 1);
  const uint64_t begin = in.shift + source;
  if (const std::vector<uint8_t>& written = written_of(in.outer); !written.empty()) {
    std::memcpy(known.data(), written.data() + begin, size);
    if (!std::memchr(known.data(), 1, size)) {
      invalid("the transfer reads " + bytes_of(from, source, size) + ", of which nobody has written any");
    }
  }
  note(current_.reads, {in.outer, begin, begin + size});
  uint8_t* to_data = write(to, destination, size, "destination of the transfer");
  std::memmove(to_data, in.data + source, size);
  if (std::vector<uint8_t>& written = written_of(out.outer); !written.empty()) {
    std::memcpy(written.data() + out.shift + destination, known.data(), size);
  }
}

uint64_t Memory::unwritten(unsigned region, uint64_t address, uint64_t size) const {
  if (region >= kMaxRegions) {
    return address;
  }
  const Region& r = regions_[region];
  if (address > r.size || size > r.size - address) {
    return address > r.size ? address : r.size;
  }
  if (regions_[r.outer].kind != ETHOSU_SIM_SCRATCH || size == 0) {
    return UINT64_MAX;
  }
  const std::vector<uint8_t>& written = written_[r.outer];
  if (written.empty()) {
    return address;
  }
  const void* hole = std::memchr(written.data() + r.shift + address, 0, size);
  return hole ? static_cast<uint64_t>(static_cast<const uint8_t*>(hole) - written.data()) - r.shift : UINT64_MAX;
}

void Memory::forget_tables() {
  std::fill(written_[kInternal].begin(), written_[kInternal].end(), uint8_t{0});
}

void Memory::start_run(unsigned max_kernels, unsigned max_transfers) {
  kernels_.clear();
  transfers_.clear();
  max_kernels_ = max_kernels;
  max_transfers_ = max_transfers;
}

void Memory::begin() {
  current_.reads.clear();
  current_.writes.clear();
}

// Sorts spans only when they are compared with a transfer, which is rare.
const Footprint& Memory::in_order(Job& job) {
  if (!job.is_tidy) {
    tidy(job.footprint.reads);
    tidy(job.footprint.writes);
    job.is_tidy = true;
  }
  return job.footprint;
}

const Footprint& Memory::committed(Engine engine) {
  return in_order((engine == Engine::kernel ? kernels_ : transfers_).back());
}

void Memory::refuse_overlap(Job& current, std::deque<Job>& jobs, const char* engine) {
  for (Job& job : jobs) {
    Span where{};
    const Footprint &mine = in_order(current), &other = in_order(job);
    const char* how = overlap(mine.reads, other.writes, where)  ? "reads %, which % is still writing"
        : overlap(mine.writes, other.reads, where)  ? "writes %, which % is still reading"
        : overlap(mine.writes, other.writes, where) ? "writes %, which % is still writing"
                                                    : nullptr;
    if (how) {
      std::string sentence = "it ";
      const std::string parts[2] = {
          bytes_of(where.region, where.begin, where.end - where.begin),
          std::string("the ") + engine + " of operation " + std::to_string(job.operation)};
      int part = 0;
      for (const char* c = how; *c; ++c) {
        sentence += *c == '%' ? parts[part++] : std::string(1, *c);
      }
      invalid(sentence + ": a wait is missing between them");
    }
  }
}

void Memory::commit(Engine engine, uint32_t operation) {
  std::deque<Job>& own = engine == Engine::kernel ? kernels_ : transfers_;
  const size_t most = engine == Engine::kernel ? max_kernels_ : max_transfers_;
  // The engine has a limited queue: the oldest job finishes before another one starts.
  while (own.size() >= most) {
    own.pop_front();
  }
  Job job{operation, std::move(current_), false};
  refuse_overlap(job, transfers_, "transfer");
  if (engine == Engine::transfer) {
    refuse_overlap(job, kernels_, "kernel");
  }
  own.push_back(std::move(job));
}

void Memory::wait(Engine engine, unsigned count) {
  std::deque<Job>& jobs = engine == Engine::kernel ? kernels_ : transfers_;
  while (jobs.size() > count) {
    jobs.pop_front();
  }
}

} // namespace ethosu
