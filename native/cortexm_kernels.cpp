#include "cortexm_kernels.h"

#include "status.h"

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <cstring>
#include <exception>

namespace micronpu::cortexm {
namespace {

using executorch::runtime::Error;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;

// "cortex_m::quantized_add.out" without the overload.
std::string operator_name(const char* kernel_name) {
  return {kernel_name, std::strlen(kernel_name) - std::strlen(".out")};
}

// A kernel as ExecuTorch calls it: no exception leaves, and a failure leaves its sentence as the plug-in's last error.
template <auto Function, const char* name>
struct Guarded;

template <typename... Arguments, void (*Function)(Arguments...), const char* name>
struct Guarded<Function, name> {
  static void call(KernelRuntimeContext& context, Arguments... arguments) {
    try {
      Function(arguments...);
    } catch (const Refusal& refusal) {
      context.fail(fail(Error::InvalidArgument, operator_name(name) + ": " + refusal.sentence));
    } catch (const std::bad_alloc&) {
      context.fail(fail(Error::MemoryAllocationFailed, operator_name(name) + ": out of memory."));
    } catch (const std::exception& error) {
      context.fail(fail(Error::Internal, operator_name(name) + ": " + error.what() + "."));
    }
  }
};

#define MICRONPU_NAME(type, name) constexpr char name##_out[] = "cortex_m::" #name ".out";
MICRONPU_CORTEXM_KERNELS(MICRONPU_NAME)
#undef MICRONPU_NAME

bool is_registered(const char* name) {
  // registry_has_op_function() would log an error for each kernel that is missing.
  for (const Kernel& kernel : executorch::runtime::get_registered_kernels()) {
    if (std::strcmp(kernel.name_, name) == 0) {
      return true;
    }
  }
  return false;
}

} // namespace

Error register_kernels() {
  using executorch::extension::make_boxed_kernel;
  const Kernel kernels[] = {
#define MICRONPU_KERNEL(type, name) \
  make_boxed_kernel(name##_out, EXECUTORCH_FN((Guarded<&name, name##_out>::call), name##_out)),
      MICRONPU_CORTEXM_KERNELS(MICRONPU_KERNEL)
#undef MICRONPU_KERNEL
  };
  for (const Kernel& kernel : kernels) {
    if (is_registered(kernel.name_)) {
      continue;
    }
    const Error error = executorch::runtime::register_kernel(kernel);
    if (error != Error::Ok) {
      return fail(error, "The ExecuTorch runtime did not take the kernel " + std::string(kernel.name_) + ".");
    }
  }
  return Error::Ok;
}

} // namespace micronpu::cortexm
