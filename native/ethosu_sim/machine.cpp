#include "machine.h"

namespace ethosu {
namespace {

enum : unsigned { // operations of all accelerators
  NPU_OP_STOP = 0x000,
  NPU_OP_IRQ = 0x001,
  NPU_OP_DMA_WAIT = 0x011,
  NPU_OP_KERNEL_WAIT = 0x012,
  NPU_OP_PMU_MASK = 0x013,
};
constexpr unsigned kFirstRegister = 0x100;

} // namespace

void Machine::reset() {
  registers_ = {};
  weights.clear();
  memory.forget_tables();
  fault_offset = fault_operation = UINT64_MAX;
  forget();
}

void Machine::tell(ethosu_sim_operation& done, const Footprint& footprint) {
  const auto ranges_of = [](const std::vector<Span>& spans) {
    std::vector<ethosu_sim_range> ranges;
    ranges.reserve(spans.size());
    for (const Span& span : spans) {
      ranges.push_back({span.region, span.begin, span.end - span.begin});
    }
    return ranges;
  };
  const std::vector<ethosu_sim_range> reads = ranges_of(footprint.reads), writes = ranges_of(footprint.writes);
  done.reads = reads.data(), done.num_reads = reads.size();
  done.writes = writes.data(), done.num_writes = writes.size();
  if (callback(callback_user, &done) != 0) {
    throw Fault(ETHOSU_SIM_BAD_ARGUMENT, "the callback stopped the run");
  }
}

void Machine::run(const uint32_t* words, size_t count) {
  registers_ = {};
  memory.start_run(max_kernels_, max_transfers_);
  fault_offset = fault_operation = UINT64_MAX;
  start();
  uint32_t operations = 0;
  size_t commands = 0;
  for (size_t i = 0; i < count; ++commands) {
    const size_t offset = i * 4;
    const uint32_t word = words[i++];
    const unsigned code = word & 0x3FF, control = word >> 14 & 3;
    const uint32_t parameter = word >> 16;
    const bool has_value = control == 1;
    const char* name = control > 1 ? nullptr : has_value ? name_of_cmd1(code) : name_of_cmd0(code);
    const bool is_operation = !has_value && code < kFirstRegister;
    try {
      memory.budget.spend(1);
      if ((word & 0x3C00) != 0 || !name) {
        invalid("there is no command " + hex(word & 0xFFFF) + " on this NPU");
      }
      if (has_value) {
        if (i == count) {
          invalid("the stream ends before the value of this command");
        }
        registers_.cmd1[code] = {words[i++], static_cast<uint16_t>(parameter), true};
        continue;
      }
      if (!is_operation) {
        registers_.cmd0[code] = {parameter, static_cast<uint16_t>(parameter), true};
        continue;
      }
      switch (code) {
        case NPU_OP_STOP:
          return;
        case NPU_OP_IRQ:
        case NPU_OP_PMU_MASK:
          break;
        case NPU_OP_DMA_WAIT:
        case NPU_OP_KERNEL_WAIT:
          if (parameter >= 16) {
            not_modelled("channel " + std::to_string(parameter >> 4) + " is not modelled");
          }
          memory.wait(
              code == NPU_OP_DMA_WAIT ? Memory::Engine::transfer : Memory::Engine::kernel, parameter & 15);
          break;
        default: {
          ethosu_sim_operation done{};
          done.index = operations;
          done.offset = offset;
          done.opcode = code;
          done.parameter = parameter;
          const uint64_t before = memory.budget.spent();
          memory.begin();
          const bool transfer = operate(code, parameter, done);
          memory.commit(transfer ? Memory::Engine::transfer : Memory::Engine::kernel, operations);
          done.work = memory.budget.spent() - before;
          if (callback) {
            tell(done, memory.committed(transfer ? Memory::Engine::transfer : Memory::Engine::kernel));
          }
          ++operations;
        }
      }
    } catch (const Fault& fault) {
      fault_offset = offset;
      fault_operation = is_operation ? operations : UINT64_MAX;
      std::string place = "Command " + std::to_string(commands) + " at offset " + hex(offset);
      if (name) {
        place += std::string(" (") + name + (is_operation ? ", operation " + std::to_string(operations) : "") + ")";
      }
      throw Fault(fault.status, place + ": " + fault.sentence + ".");
    }
  }
  throw Fault(
      ETHOSU_SIM_INVALID,
      "The stream of " + std::to_string(count) + " words ends without NPU_OP_STOP: the NPU would run past its end.");
}

} // namespace ethosu
