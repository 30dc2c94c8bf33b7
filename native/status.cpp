#include "status.h"

namespace micronpu {
namespace {
// A function's static, so that no order of static initialisation matters.
std::string& slot() noexcept {
  thread_local std::string sentence;
  return sentence;
}
} // namespace

executorch::runtime::Error fail(executorch::runtime::Error code, const std::string& sentence) noexcept {
  try {
    slot() = sentence;
  } catch (...) {
    slot().clear(); // out of memory: the code alone has to do
  }
  return code;
}

const char* last_error() noexcept {
  return slot().c_str();
}

void clear_last_error() noexcept {
  slot().clear();
}

} // namespace micronpu
