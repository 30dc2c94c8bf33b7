// The one way in which anything here fails.
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

// The stream does what no correct stream does.
[[noreturn]] inline void invalid(const std::string& sentence) {
  throw Fault(ETHOSU_SIM_INVALID, sentence);
}

// The stream may be right, but the simulator cannot compute it. Name the register and its value.
[[noreturn]] inline void not_modelled(const std::string& sentence) {
  throw Fault(ETHOSU_SIM_NOT_MODELLED, sentence);
}

// "0x1f0"
std::string hex(uint64_t value);

} // namespace ethosu
