#include "sim.h"

#include "machine.h"

#include <algorithm>
#include <cstring>
#include <new>

using namespace ethosu;

struct ethosu_sim {
  int32_t family = 0, macs = 0;
  std::unique_ptr<Machine> machine;
  std::string error;
  uint64_t work_limit = 0;
};

namespace {

constexpr uint32_t kCop1 = 0x31504F43, kCop2 = 0x32504F43;

[[noreturn]] void malformed(const std::string& sentence) {
  throw Fault(ETHOSU_SIM_INVALID, "The driver actions " + sentence + ".");
}

// Reader of driver actions, with bounds checks.
class Words {
 public:
  Words(const uint8_t* data, uint64_t size) : data_(data), count_(size / 4) {}

  uint64_t left() const {
    return count_ - at_;
  }
  uint64_t at() const {
    return at_;
  }
  uint32_t take() {
    if (!left()) {
      malformed("end too early");
    }
    uint32_t word;
    std::memcpy(&word, data_ + 4 * at_++, 4);
    return word;
  }
  void skip(uint64_t words) {
    if (words > left()) {
      malformed("end too early");
    }
    at_ += words;
  }
  std::vector<uint32_t> copy(uint64_t words) {
    if (words > left()) {
      malformed(
          "announce a command stream of " + std::to_string(words) + " words, but " + std::to_string(left()) +
          " are left");
    }
    std::vector<uint32_t> out(words);
    if (words) {
      std::memcpy(out.data(), data_ + 4 * at_, 4 * words);
    }
    at_ += words;
    return out;
  }

 private:
  const uint8_t* data_;
  uint64_t count_, at_ = 0;
};

// Checks the configuration word of the stream: log2 of the MACs in bits 0-3, product in bits 28-31.
void check_config(const ethosu_sim& sim, uint32_t config) {
  const uint32_t products[] = {0, 1, 2};
  const uint32_t product = config >> 28, log2 = config & 15;
  const int32_t family = product == products[0] ? 55 : product == products[1] ? 65 : product == products[2] ? 85 : 0;
  if (family != sim.family || int32_t{1} << log2 != sim.macs) {
    const std::string made = family ? "Ethos-U" + std::to_string(family) + " with " + std::to_string(1u << log2) + " MACs"
                                    : "an unknown NPU (configuration " + hex(config) + ")";
    malformed(
        "are compiled for " + made + ", but the simulator is an Ethos-U" + std::to_string(sim.family) + " with " +
        std::to_string(sim.macs) + " MACs");
  }
}

std::vector<uint32_t> stream_of_cop1(const ethosu_sim& sim, Words& words) {
  enum : uint32_t { kConfig = 1, kStream = 2, kNop = 5 };
  while (words.left()) {
    const uint32_t word = words.take();
    switch (word & 0xFF) {
      case kConfig:
        check_config(sim, words.take());
        words.take(); // architecture version
        break;
      case kNop:
        break;
      case kStream:
        return words.copy(word >> 16 | (word >> 8 & 0xFF) << 16);
      default:
        malformed("hold the unknown action " + hex(word & 0xFF) + " in word " + std::to_string(words.at() - 1));
    }
  }
  malformed("hold no command stream");
}

std::vector<uint32_t> stream_of_cop2(const ethosu_sim& sim, Words& words) {
  const uint32_t version = words.take();
  if ((version & 0xFFFF) != 1) {
    malformed("have version " + std::to_string(version & 0xFFFF) + "." + std::to_string(version >> 16) + ", not 1");
  }
  uint64_t total = words.take();
  total |= static_cast<uint64_t>(words.take()) << 32; // bytes of all entries
  if (total % 4 || total / 4 > words.left()) {
    malformed("announce " + std::to_string(total) + " bytes, but " + std::to_string(4 * words.left()) + " are left");
  }
  const uint32_t type = words.take(), length = words.take();
  if (type != 1) {
    malformed("begin with the unknown entry " + std::to_string(type) + ", not with a command stream");
  }
  const uint64_t start = words.at();
  const uint32_t metadata = words.take(); // bytes of the metadata after this word
  if (metadata % 4 || length % 4 || metadata < 32 || static_cast<uint64_t>(metadata) + 4 > length) {
    malformed("have metadata of " + std::to_string(metadata) + " bytes in an entry of " + std::to_string(length));
  }
  words.take(); // four letters that name the compiler
  words.take(); // version
  words.take(); // length of the data
  check_config(sim, words.take());
  words.skip(metadata / 4 + 1 - (words.at() - start));
  return words.copy((length - 4 - metadata) / 4);
}

std::vector<uint32_t> stream_of(const ethosu_sim& sim, const void* commands, uint64_t size) {
  Words words(static_cast<const uint8_t*>(commands), size);
  if (size % 4) {
    malformed("have " + std::to_string(size) + " bytes, which is no multiple of 4");
  }
  const uint32_t first = words.take();
  if (first == kCop1) {
    return stream_of_cop1(sim, words);
  }
  if (first == kCop2) {
    return stream_of_cop2(sim, words);
  }
  malformed("begin with " + hex(first) + ", not with COP1 or COP2");
}

} // namespace

int32_t ethosu_sim_version(void) {
  return ETHOSU_SIM_VERSION;
}

ethosu_sim* ethosu_sim_create(int32_t family, int32_t macs) {
  try {
    auto sim = std::make_unique<ethosu_sim>();
    sim->family = family;
    sim->macs = macs;
    sim->machine = family == 55 ? make_u55(macs) : family == 65 ? make_u65(macs) : family == 85 ? make_u85(macs) : nullptr;
    return sim->machine ? sim.release() : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void ethosu_sim_destroy(ethosu_sim* sim) {
  delete sim;
}

void ethosu_sim_reset(ethosu_sim* sim) {
  sim->machine->reset();
  sim->error.clear();
}

void ethosu_sim_set_callback(ethosu_sim* sim, ethosu_sim_callback callback, void* user) {
  sim->machine->callback = callback;
  sim->machine->callback_user = user;
}

void ethosu_sim_set_work_limit(ethosu_sim* sim, uint64_t limit) {
  sim->work_limit = limit;
}

void ethosu_sim_set_weight_limit(ethosu_sim* sim, uint64_t bytes) {
  sim->machine->weights.set_limit(static_cast<size_t>(bytes));
}

const char* ethosu_sim_command_name(const ethosu_sim* sim, uint32_t word) {
  constexpr uint32_t kCode = 0x3FF, kHasValue = 0x4000;
  return (word & kHasValue) != 0 ? sim->machine->name_of_cmd1(word & kCode) : sim->machine->name_of_cmd0(word & kCode);
}

int32_t ethosu_sim_run(
    ethosu_sim* sim, const void* commands, uint64_t commands_size, const ethosu_sim_region* regions,
    int32_t num_regions, const ethosu_sim_range* ranges, int32_t num_ranges) {
  Machine& machine = *sim->machine;
  sim->error.clear();
  machine.fault_offset = machine.fault_operation = UINT64_MAX;
  try {
    machine.memory.budget.start(sim->work_limit);
    const std::vector<uint32_t> words = stream_of(*sim, commands, commands_size);
    try {
      machine.memory.bind(regions, num_regions, ranges, num_ranges);
    } catch (const Fault& fault) {
      throw Fault(fault.status, "The regions are not usable: " + fault.sentence + ".");
    }
    machine.run(words.data(), words.size());
    return ETHOSU_SIM_OK;
  } catch (const Fault& fault) {
    sim->error = fault.sentence;
    return fault.status;
  } catch (const std::bad_alloc&) {
    sim->error = "The simulator has no memory left.";
    return ETHOSU_SIM_NOT_MODELLED;
  }
}

uint64_t ethosu_sim_unwritten(const ethosu_sim* sim, uint32_t region, uint64_t offset, uint64_t size) {
  return sim->machine->memory.unwritten(region, offset, size);
}

int64_t ethosu_sim_decode_weights(const void* stream, uint64_t size, int16_t* weights, uint64_t capacity) {
  try {
    std::vector<int16_t> decoded;
    decode_mlw(static_cast<const uint8_t*>(stream), size, capacity, decoded);
    std::copy(decoded.begin(), decoded.end(), weights);
    return static_cast<int64_t>(decoded.size());
  } catch (const std::exception&) {
    return -1;
  }
}

const char* ethosu_sim_error(const ethosu_sim* sim) {
  return sim->error.c_str();
}

uint64_t ethosu_sim_error_offset(const ethosu_sim* sim) {
  return sim->machine->fault_offset;
}

uint64_t ethosu_sim_error_operation(const ethosu_sim* sim) {
  return sim->machine->fault_operation;
}
