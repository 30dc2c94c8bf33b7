// The exception that every failure of the simulator throws.
#pragma once

#include "sim.h"

#include <exception>
#include <string>
#include <utility>

namespace ethosu {

class Fault : public std::exception {
 public:
  Fault(ethosu_sim_status status, std::string sentence) : status(status), sentence(std::move(sentence)) {}

  const char* what() const noexcept override {
    return sentence.c_str();
  }

  ethosu_sim_status status;
  std::string sentence; // begins with a small letter: the machine puts "command .. at ..: " in front
};

// The stream does something that no correct stream does.
[[noreturn]] inline void invalid(const std::string& sentence) {
  throw Fault(ETHOSU_SIM_INVALID, sentence);
}

// The stream may be right, but the simulator cannot compute it. Name the register and its value.
[[noreturn]] inline void not_modelled(const std::string& sentence) {
  throw Fault(ETHOSU_SIM_NOT_MODELLED, sentence);
}

// NPU_SET_BLOCKDEP lets a job of an operation read what a block of the operation before it has yet to write.
[[noreturn]] inline void too_early(
    int64_t ahead, int64_t job, const std::string& operand, int64_t block, int64_t blocks) {
  throw Fault(
      ETHOSU_SIM_TOO_EARLY,
      "NPU_SET_BLOCKDEP = " + std::to_string(ahead) + " lets job " + std::to_string(job) + " read its " + operand +
          " before block " + std::to_string(block) + " of the " + std::to_string(blocks) +
          " blocks of the operation before it is written");
}

// "0x1f0"
std::string hex(uint64_t value);

} // namespace ethosu
