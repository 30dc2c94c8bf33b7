// C interface of the plug-in: registration, installation of the executor, and the last error. Called through ctypes.
//
// Registration is a function, not a static initialiser: it can report errors, and loading the library twice is safe.
#include "cortexm_kernels.h"
#include "delegate.h"
#include "status.h"

#define MICRONPU_EXPORT extern "C" __attribute__((visibility("default")))

// Changes with every signature of this interface; the loader checks it.
MICRONPU_EXPORT int32_t micronpu_abi_version() {
  return 7;
}

// Returns 0, or an ExecuTorch error code with a message in micronpu_last_error().
MICRONPU_EXPORT int32_t micronpu_register() {
  const executorch::runtime::Error error = micronpu::register_backends();
  return static_cast<int32_t>(
      error == executorch::runtime::Error::Ok ? micronpu::cortexm::register_kernels() : error);
}

// Null pointers detach the executor; programs then fail with a message.
MICRONPU_EXPORT void micronpu_set_executor(
    micronpu_create create, micronpu_run run, micronpu_destroy destroy) {
  micronpu::Executor executor;
  executor.create = create;
  executor.run = run;
  executor.destroy = destroy;
  micronpu::set_executor(executor);
}

// Sets the bits of MICRONPU_MODE_* for programs that this thread loads from now on.
MICRONPU_EXPORT void micronpu_set_mode(int32_t mode) {
  micronpu::set_mode(mode);
}

// Sets the message of the executor's failure. UTF-8.
MICRONPU_EXPORT void micronpu_set_error(const char* sentence) {
  try {
    micronpu::fail(executorch::runtime::Error::Internal, sentence == nullptr ? "" : sentence);
  } catch (...) {
    micronpu::clear_last_error();
  }
}

MICRONPU_EXPORT const char* micronpu_last_error() {
  return micronpu::last_error();
}

MICRONPU_EXPORT int32_t micronpu_is_for_another_machine() {
  return micronpu::is_for_another_machine() ? 1 : 0;
}

MICRONPU_EXPORT void micronpu_clear_error() {
  micronpu::clear_last_error();
}
