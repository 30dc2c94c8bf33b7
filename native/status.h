// The last error of the plug-in, one sentence per thread.
//
// ExecuTorch's error codes cannot say what is wrong with a payload or a tensor, so every backend leaves a sentence here
// before it returns a code; Python reads it through micronpu_last_error().
#pragma once

#include <executorch/runtime/core/error.h>

#include <string>

namespace micronpu {

// Keeps the sentence and gives the code back: `return fail(Error::InvalidProgram, "...");`
executorch::runtime::Error fail(executorch::runtime::Error code, const std::string& sentence) noexcept;

// Empty when nothing went wrong on this thread since the last clear_last_error(). Valid until the next error.
const char* last_error() noexcept;
// Whether the last error says that a whole program is not for this machine: microcode of a chip, or a newer format.
bool is_for_another_machine() noexcept;
void clear_last_error() noexcept;

} // namespace micronpu
