#include "u55_registers.h"

#include <cstring>

namespace ethosu::u55 {
namespace {

constexpr bool all = true;
constexpr bool u65 = false;

} // namespace

// Operations carry their full name, registers lack the prefix of the command that sets them.
#define NAME(name) (std::strncmp(#name, "NPU_OP", 6) == 0 ? #name : "NPU_SET_" #name)
#define X(code, name, what) \
  case code: \
    return what || is_u65 ? NAME(name) : nullptr;

const char* name_of_cmd0(unsigned code, bool is_u65) {
  switch (code) {
    ETHOSU_U55_CMD0(X)
    default:
      return nullptr;
  }
}

const char* name_of_cmd1(unsigned code, bool is_u65) {
  switch (code) {
    ETHOSU_U55_CMD1(X)
    default:
      return nullptr;
  }
}

#undef X
#undef NAME

} // namespace ethosu::u55
