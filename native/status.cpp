#include "status.h"

namespace micronpu {
namespace {
// A static local, independent of the order of static initialisation.
std::string& slot() noexcept {
  thread_local std::string sentence;
  return sentence;
}

executorch::runtime::Error& last_code() noexcept {
  thread_local executorch::runtime::Error code = executorch::runtime::Error::Ok;
  return code;
}
} // namespace

executorch::runtime::Error fail(executorch::runtime::Error code, const std::string& sentence) noexcept {
  last_code() = code;
  try {
    slot() = sentence;
  } catch (...) {
    slot().clear(); // out of memory: only the error code remains
  }
  return code;
}

const char* last_error() noexcept {
  return slot().c_str();
}

bool is_for_another_machine() noexcept {
  return last_code() == executorch::runtime::Error::DelegateInvalidCompatibility;
}

void clear_last_error() noexcept {
  last_code() = executorch::runtime::Error::Ok;
  slot().clear();
}

} // namespace micronpu
