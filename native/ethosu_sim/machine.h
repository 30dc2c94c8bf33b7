// Base class of the accelerators: driver actions, the loop over commands, waits, and errors with their position.
// Derived classes add registers and operations.
#pragma once

#include "memory.h"
#include "weights.h"

#include <cstdint>
#include <memory>
#include <string>

namespace ethosu {

// A register file: every register has 16 bits of parameter; those of CMD1 have 32 bits of value besides.
struct Registers {
  struct Value {
    uint32_t value = 0; // CMD1's word; CMD0: the parameter
    uint16_t parameter = 0;
    bool set = false;
  };
  Value cmd0[0x400], cmd1[0x400];

  uint32_t small(unsigned code) const {
    return cmd0[code].value;
  }
  int32_t small_signed(unsigned code) const {
    return static_cast<int16_t>(cmd0[code].value);
  }
  uint32_t low(unsigned code) const {
    return cmd1[code].value;
  }
  uint32_t high(unsigned code) const {
    return cmd1[code].parameter;
  }
  // value with the parameter's low `bits` bits above it.
  uint64_t wide(unsigned code, unsigned bits = 16) const {
    return cmd1[code].value | static_cast<uint64_t>(cmd1[code].parameter & ((1u << bits) - 1)) << 32;
  }
};

class Machine {
 public:
  virtual ~Machine() = default;

  // Runs the words of a command stream; throws Fault with the position in its message.
  void run(const uint32_t* words, size_t count);
  void reset();

  // Names of registers and commands; nullptr for unknown codes.
  virtual const char* name_of_cmd0(unsigned code) const = 0;
  virtual const char* name_of_cmd1(unsigned code) const = 0;

  Memory memory;
  WeightCache weights;
  ethosu_sim_callback callback = nullptr;
  void* callback_user = nullptr;
  uint64_t fault_offset = UINT64_MAX, fault_operation = UINT64_MAX;

 protected:
  // Runs an operation (codes below 0x100 but stop, irq, waits, pmu) and fills `done` (name, ofm, transfer). It must call
  // neither memory.begin() nor memory.commit(). True: a transfer.
  virtual bool operate(unsigned code, uint32_t parameter, ethosu_sim_operation& done) = 0;
  virtual void forget() {} // clears further state on a reset
  virtual void start() {} // before the first command of a run; registers are zero

  // Calls the callback.
  void tell(ethosu_sim_operation& done, const Footprint& footprint);

  unsigned max_kernels_ = 3, max_transfers_ = 1;
  Registers registers_;
};

// Factories of the accelerators; nullptr for an unknown number of MACs.
std::unique_ptr<Machine> make_u55(int32_t macs); // u55_machine.cpp
std::unique_ptr<Machine> make_u65(int32_t macs); // u55_machine.cpp
std::unique_ptr<Machine> make_u85(int32_t macs); // u85_machine.cpp

} // namespace ethosu
