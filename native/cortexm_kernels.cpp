#include "cortexm_kernels.h"

#include "status.h"

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <cstring>
#include <exception>
#include <new>
#include <tuple>
#include <utility>

namespace micronpu::cortexm {
namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// "cortex_m::quantized_add.out" without the overload.
std::string operator_name(const char* kernel_name) {
  return {kernel_name, std::strlen(kernel_name) - std::strlen(".out")};
}

// Converters of kernel arguments. The program is an untrusted file and the runtime does not check argument types, so
// values of another type and tensors without memory are refused before a kernel reads them.
[[noreturn]] void wrong(size_t index, const char* expected) {
  refuse(
      "argument " + std::to_string(index) + " must be " + expected + ".", "compile the model again, or copy the file again");
}

template <typename Parameter>
struct Unbox;

Tensor& tensor_of(EValue& value, size_t index) {
  if (!value.isTensor()) {
    wrong(index, "a tensor");
  }
  Tensor& tensor = value.toTensor();
  if (tensor.numel() != 0 && tensor.const_data_ptr() == nullptr) {
    wrong(index, "a tensor with memory");
  }
  return tensor;
}

template <>
struct Unbox<const Tensor&> {
  using Stored = const Tensor&;
  static const Tensor& from(EValue& value, size_t index) {
    return tensor_of(value, index);
  }
};

template <>
struct Unbox<Tensor&> {
  using Stored = Tensor&;
  static Tensor& from(EValue& value, size_t index) {
    return tensor_of(value, index);
  }
};

template <>
struct Unbox<const OptionalTensor&> {
  using Stored = OptionalTensor;
  static OptionalTensor from(EValue& value, size_t index) {
    return value.isNone() ? OptionalTensor() : OptionalTensor(tensor_of(value, index));
  }
};

template <>
struct Unbox<double> {
  using Stored = double;
  static double from(EValue& value, size_t index) {
    return value.isDouble() ? value.toDouble() : (wrong(index, "a floating-point number"), 0.0);
  }
};

template <>
struct Unbox<int64_t> {
  using Stored = int64_t;
  static int64_t from(EValue& value, size_t index) {
    return value.isInt() ? value.toInt() : (wrong(index, "an integer"), 0);
  }
};

template <>
struct Unbox<bool> {
  using Stored = bool;
  static bool from(EValue& value, size_t index) {
    return value.isBool() ? value.toBool() : (wrong(index, "a truth value"), false);
  }
};

template <>
struct Unbox<ScalarType> {
  using Stored = ScalarType;
  static ScalarType from(EValue& value, size_t index) {
    const int64_t number = Unbox<int64_t>::from(value, index);
    require_range(number, 0, static_cast<int64_t>(ScalarType::NumOptions) - 1, "the number of an element type");
    return static_cast<ScalarType>(number);
  }
};

template <>
struct Unbox<Integers> {
  using Stored = Integers;
  static Integers from(EValue& value, size_t index) {
    const auto list = value.tryToIntList();
    return list.ok() ? list.get() : (wrong(index, "a list of integers"), Integers());
  }
};

// Wraps a kernel for ExecuTorch: catches every exception and stores its message as the plug-in's last error.
template <auto Function, const char* name>
struct Guarded;

template <typename... Parameters, void (*Function)(Parameters...), const char* name>
struct Guarded<Function, name> {
  static void call(KernelRuntimeContext& context, Span<EValue*> arguments) {
    try {
      unbox(context, arguments, std::index_sequence_for<Parameters...>());
    } catch (const Refusal& refusal) {
      context.fail(fail(Error::InvalidArgument, operator_name(name) + ": " + refusal.sentence));
    } catch (const std::bad_alloc&) {
      context.fail(fail(Error::MemoryAllocationFailed, operator_name(name) + ": out of memory."));
    } catch (const std::exception& error) {
      context.fail(fail(Error::Internal, operator_name(name) + ": " + error.what() + "."));
    }
  }

 private:
  template <size_t... indices>
  static void unbox(KernelRuntimeContext& context, Span<EValue*> arguments, std::index_sequence<indices...>) {
    constexpr size_t count = sizeof...(Parameters);
    if (arguments.size() < count) {
      refuse(
          "it is called with " + std::to_string(arguments.size()) + " arguments, but has " + std::to_string(count) + ".",
          "compile the model again, or copy the file again");
    }
    executorch::runtime::internal::EventTracerProfileOpScope scope(context.internal_event_tracer(), name);
    std::tuple<typename Unbox<Parameters>::Stored...> values{Unbox<Parameters>::from(*arguments[indices], indices)...};
    Function(std::get<indices>(values)...);
    executorch::runtime::internal::event_tracer_log_evalue(context.internal_event_tracer(), *arguments[count - 1]);
  }
};

#define MICRONPU_NAME(type, name) constexpr char name##_out[] = "cortex_m::" #name ".out";
#define MICRONPU_NAMES(name, home, function) MICRONPU_NAME(, name) MICRONPU_NAME(, name##_nhwc)
MICRONPU_CORTEXM_KERNELS(MICRONPU_NAME, MICRONPU_NAMES)
#undef MICRONPU_NAMES
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
  const Kernel kernels[] = {
#define MICRONPU_KERNEL(type, name) Kernel(name##_out, Guarded<&name, name##_out>::call),
#define MICRONPU_LAYOUT(name, function) Kernel(name##_out, Guarded<&function, name##_out>::call),
#define MICRONPU_WINDOW(name, home, function) \
  MICRONPU_LAYOUT(name, home<Layout::channels_second>::function) \
  MICRONPU_LAYOUT(name##_nhwc, home<Layout::channels_last>::function)
      MICRONPU_CORTEXM_KERNELS(MICRONPU_KERNEL, MICRONPU_WINDOW)
#undef MICRONPU_WINDOW
#undef MICRONPU_LAYOUT
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
