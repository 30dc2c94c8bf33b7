// ExecuTorch's runtime for callers that have arrays and no torch: load a method, run it, read its outputs.
//
// Called through ctypes from src/micronpu/runtime/native.py, which has checked the program's plan. A function that
// fails sets the message of micronpu_last_error(), unless a delegate has set one already.
#include "status.h"

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#define MICRONPU_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {

// An input or output of a method. Inputs have the method's order of axes.
struct micronpu_host_tensor {
  void* data;
  uint64_t size; // bytes; of outputs only
  int32_t scalar_type;
  int32_t rank;
  const int32_t* shape;
  const uint8_t* dim_order;
};

} // extern "C"

namespace {

using executorch::extension::BufferDataLoader;
using executorch::extension::MallocMemoryAllocator;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using executorch::runtime::Tag;
using executorch::runtime::etensor::ScalarType;
using executorch::runtime::etensor::Tensor;
using executorch::runtime::etensor::TensorImpl;

// Largest alignment that a kernel's load requires; planned offsets are multiples of at most this.
constexpr size_t kAlignment = 64;

struct Free {
  void operator()(uint8_t* data) const noexcept {
    ::operator delete[](data, std::align_val_t(kAlignment));
  }
};
using Memory = std::unique_ptr<uint8_t[], Free>;
using Shared = std::shared_ptr<uint8_t[]>;

// Zeroed, so that a program that reads unwritten memory computes the same on every run.
Memory allocate(size_t size) {
  const size_t bytes = size == 0 ? 1 : size;
  Memory memory(static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t(kAlignment))));
  std::fill_n(memory.get(), bytes, uint8_t{0});
  return memory;
}

// First error that ExecuTorch logged during a call: the cause; later lines say who propagated it.
std::string& logged() noexcept {
  thread_local std::string line;
  return line;
}

// Keeps the delegate's message, which is more precise than an error code.
Error report(Error code) {
  if (micronpu::last_error()[0] != '\0') {
    return code;
  }
  const std::string reason = logged().empty() ? executorch::runtime::to_string(code) : logged();
  return micronpu::fail(code, "the ExecuTorch runtime reports: " + reason + ".");
}

// Members are destroyed in reverse order: the method first, the program's bytes last.
struct Host {
  Host(const void* data, size_t size) : loader(data, size) {}

  Error load(const char* name, const Host* beside);
  Error share(const Host* beside);
  Error run(const micronpu_host_tensor* inputs, size_t count);
  Error output(size_t index, micronpu_host_tensor& found);

  BufferDataLoader loader;
  std::optional<Program> program;
  std::vector<Memory> planned;
  std::vector<Shared> shared; // memories from the second on, common to all methods of a program
  std::vector<Span<uint8_t>> spans;
  std::vector<Memory> outputs;
  MallocMemoryAllocator method_allocator;
  MallocMemoryAllocator temporary_allocator;
  std::optional<HierarchicalAllocator> planned_allocator;
  std::optional<MemoryManager> manager;
  std::optional<Method> method;
};

// Allocates the memories that the methods of a program share, each with the largest size that a method needs, or takes
// those of a method that is already loaded.
Error Host::share(const Host* beside) {
  if (beside != nullptr) {
    shared = beside->shared;
    return Error::Ok;
  }
  std::vector<size_t> sizes;
  for (size_t m = 0; m < program->num_methods(); ++m) {
    const Result<const char*> name = program->get_method_name(m);
    if (!name.ok()) {
      return name.error();
    }
    const Result<MethodMeta> meta = program->method_meta(name.get());
    if (!meta.ok()) {
      return meta.error();
    }
    for (size_t i = 1; i < meta->num_memory_planned_buffers(); ++i) {
      const Result<int64_t> size = meta->memory_planned_buffer_size(i);
      if (!size.ok() || size.get() < 0) {
        return size.ok() ? Error::InvalidProgram : size.error();
      }
      sizes.resize(std::max(sizes.size(), i));
      sizes[i - 1] = std::max(sizes[i - 1], static_cast<size_t>(size.get()));
    }
  }
  for (const size_t size : sizes) {
    shared.emplace_back(allocate(size));
  }
  return Error::Ok;
}

Error Host::load(const char* name, const Host* beside) {
  Result<Program> loaded = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!loaded.ok()) {
    return loaded.error();
  }
  program.emplace(std::move(loaded.get()));
  Result<MethodMeta> meta = program->method_meta(name);
  if (!meta.ok()) {
    return meta.error();
  }
  const Error sharing = share(beside);
  if (sharing != Error::Ok) {
    return sharing;
  }
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
    const Result<int64_t> size = meta->memory_planned_buffer_size(i);
    if (!size.ok()) {
      return size.error();
    }
    if (size.get() < 0) {
      return Error::InvalidProgram;
    }
    uint8_t* begin = nullptr;
    if (i == 0) {
      planned.push_back(allocate(static_cast<size_t>(size.get())));
      begin = planned.back().get();
    } else {
      begin = shared[i - 1].get();
    }
    spans.emplace_back(begin, static_cast<size_t>(size.get()));
  }
  planned_allocator.emplace(Span<Span<uint8_t>>(spans.data(), spans.size()));
  manager.emplace(&method_allocator, &*planned_allocator, &temporary_allocator);
  Result<Method> made = program->load_method(name, &*manager);
  if (!made.ok()) {
    return made.error();
  }
  method.emplace(std::move(made.get()));
  for (size_t i = 0; i < meta->num_outputs(); ++i) {
    const Result<Tag> tag = meta->output_tag(i);
    if (!tag.ok() || tag.get() != Tag::Tensor) {
      continue;
    }
    const auto info = meta->output_tensor_meta(i);
    if (!info.ok()) {
      return info.error();
    }
    if (info->is_memory_planned()) {
      continue;
    }
    outputs.push_back(allocate(info->nbytes()));
    const Error error = method->set_output_data_ptr(outputs.back().get(), info->nbytes(), i);
    if (error != Error::Ok) {
      return error;
    }
  }
  return Error::Ok;
}

Error Host::run(const micronpu_host_tensor* inputs, size_t count) {
  if (count != method->inputs_size()) {
    return Error::InvalidArgument;
  }
  for (size_t i = 0; i < count; ++i) {
    const micronpu_host_tensor& given = inputs[i];
    const size_t rank = static_cast<size_t>(given.rank);
    // Copies, because the runtime may write into them.
    std::vector<TensorImpl::SizesType> sizes(given.shape, given.shape + rank);
    std::vector<TensorImpl::DimOrderType> order(given.dim_order, given.dim_order + rank);
    std::vector<TensorImpl::StridesType> strides(rank);
    TensorImpl::StridesType step = 1;
    for (size_t j = rank; j-- > 0;) {
      strides[order[j]] = step;
      step *= sizes[order[j]] == 0 ? 1 : sizes[order[j]];
    }
    TensorImpl tensor(
        static_cast<ScalarType>(given.scalar_type), given.rank, sizes.data(), given.data, order.data(), strides.data());
    // The method copies the bytes, or keeps the address of `data`, never that of the sizes.
    const Error error = method->set_input(EValue(Tensor(&tensor)), i);
    if (error != Error::Ok) {
      return error;
    }
  }
  return method->execute();
}

Error Host::output(size_t index, micronpu_host_tensor& found) {
  if (index >= method->outputs_size() || !method->get_output(index).isTensor()) {
    return Error::InvalidArgument;
  }
  const Tensor& tensor = method->get_output(index).toTensor();
  if (tensor.nbytes() != 0 && tensor.const_data_ptr() == nullptr) {
    return Error::InvalidState;
  }
  found.data = tensor.mutable_data_ptr();
  found.size = tensor.nbytes();
  found.scalar_type = static_cast<int32_t>(tensor.scalar_type());
  found.rank = static_cast<int32_t>(tensor.dim());
  found.shape = tensor.sizes().data();
  found.dim_order = tensor.dim_order().data();
  return Error::Ok;
}

// True while this thread is in a call of this library; the first error logged then becomes part of its error message.
thread_local bool is_ours = false;
// The log function of all other calls; null where there is none but this library's.
std::atomic<pal_emit_log_message_method> others{nullptr};

void keep_errors(
    et_timestamp_t timestamp,
    et_pal_log_level_t level,
    const char* filename,
    const char* function,
    size_t line,
    const char* message,
    size_t length) {
  // ExecuTorch's Python interface, imported later, replaces this logging on purpose; the runtime reports that as an
  // error nevertheless.
  if (function != nullptr && std::string_view(function) == "register_pal") {
    return;
  }
  const auto other = others.load();
  if (other != nullptr && (!is_ours || level == et_pal_log_level_t::kFatal)) {
    other(timestamp, level, filename, function, line, message, length);
  } else if (level == et_pal_log_level_t::kFatal) { // the process ends
    std::fprintf(stderr, "[%s:%zu] %s\n", filename, line, message);
    std::fflush(stderr);
  } else if (level == et_pal_log_level_t::kError && logged().empty()) {
    try {
      logged() = message;
    } catch (...) { // out of memory: only the error code remains
    }
  }
}

// A call of this library. The runtime has one log function per process; it stays the one of all other calls. It is
// replaced in place, because `register_pal` logs an error itself.
struct Call {
  Call() {
    auto* pal = const_cast<executorch::runtime::PalImpl*>(executorch::runtime::get_pal_impl());
    if (pal->emit_log_message != keep_errors) {
      others = pal->emit_log_message;
      pal->emit_log_message = keep_errors;
    }
    is_ours = true;
    logged().clear();
  }
  ~Call() {
    is_ours = false;
  }
};

// Catches every exception, which must not cross the C interface; only allocation fails here.
template <typename Work>
int32_t guarded(Work work) noexcept {
  try {
    const Call call;
    const Error error = work();
    return static_cast<int32_t>(error == Error::Ok ? error : report(error));
  } catch (...) {
    return static_cast<int32_t>(micronpu::fail(Error::MemoryAllocationFailed, "there is not enough memory."));
  }
}

} // namespace

// Suppresses the log output of ExecuTorch's libraries outside of calls, too. For processes without torch; ExecuTorch's
// Python interface replaces this logging when it is imported.
MICRONPU_EXPORT void micronpu_host_quiet() {
  executorch::runtime::runtime_init();
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(keep_errors, __FILE__));
}

// Returns 1 if the runtime has the kernel, for example "aten::add.out".
MICRONPU_EXPORT int32_t micronpu_host_has_operator(const char* name) {
  for (const auto& kernel : executorch::runtime::get_registered_kernels()) {
    if (std::string_view(kernel.name_) == name) {
      return 1;
    }
  }
  return 0;
}

// Loads a method of a program whose bytes outlive it; null on failure. Delegates get the mode of micronpu_set_mode().
// `beside`: another method of the same bytes, or null; the two share the planned memories from the second on. Loading a
// method initializes its states, so load all methods that share states before running one.
MICRONPU_EXPORT void* micronpu_host_load(const void* data, uint64_t size, const char* method, const void* beside) {
  std::unique_ptr<Host> host;
  const int32_t failed = guarded([&] {
    executorch::runtime::runtime_init();
    host = std::make_unique<Host>(data, size);
    return host->load(method, static_cast<const Host*>(beside));
  });
  return failed ? nullptr : host.release();
}

// Runs once. Keep the inputs alive until the outputs are read: an output may alias an input. Returns 0 or an ExecuTorch
// error code.
MICRONPU_EXPORT int32_t micronpu_host_run(void* host, const micronpu_host_tensor* inputs, int32_t count) {
  return guarded([&] { return static_cast<Host*>(host)->run(inputs, static_cast<size_t>(count)); });
}

// Returns an output tensor of the last run, valid until the next. 0 or an ExecuTorch error code.
MICRONPU_EXPORT int32_t micronpu_host_output(void* host, int32_t index, micronpu_host_tensor* found) {
  return guarded([&] { return static_cast<Host*>(host)->output(static_cast<size_t>(index), *found); });
}

MICRONPU_EXPORT void micronpu_host_free(void* host) {
  delete static_cast<Host*>(host);
}
