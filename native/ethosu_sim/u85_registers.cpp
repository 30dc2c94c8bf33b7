#include "u85_registers.h"

#include <cstring>

namespace ethosu::u85 {

// The prefix is NPU_ for an operation and NPU_SET_, the command that sets it, for a register.
#define NAME(name) (std::strncmp(#name, "OP_", 3) == 0 ? "NPU_" #name : "NPU_SET_" #name)
#define X(code, name) \
  case code: \
    return NAME(name);

const char* name_of_cmd0(unsigned code) {
  switch (code) {
    ETHOSU_U85_CMD0(X)
    default:
      return nullptr;
  }
}

const char* name_of_cmd1(unsigned code) {
  switch (code) {
    ETHOSU_U85_CMD1(X)
    default:
      return nullptr;
  }
}

#undef X
#undef NAME

} // namespace ethosu::u85
