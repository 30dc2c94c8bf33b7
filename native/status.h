// The last error message of the plug-in, one per thread.
//
// ExecuTorch's error codes cannot describe what is wrong with a payload or a tensor, so every backend stores a message
// before it returns a code; Python reads it through micronpu_last_error().
#pragma once

#include <executorch/runtime/core/error.h>

#include <string>

namespace micronpu {

// Stores the message and returns the code: `return fail(Error::InvalidProgram, "...");`
executorch::runtime::Error fail(executorch::runtime::Error code, const std::string& sentence) noexcept;

// Empty if this thread had no error since the last clear_last_error(). Valid until the next error.
const char* last_error() noexcept;
// True if the last error is that the program is for another machine: microcode of a chip, or a newer format.
bool is_for_another_machine() noexcept;
void clear_last_error() noexcept;

} // namespace micronpu
