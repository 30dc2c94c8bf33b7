#include "delegate.h"

#include "family.h"
#include "payload.h"
#include "status.h"
#include "tensor_layout.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/platform/platform.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace micronpu {
namespace {

using executorch::aten::ArrayRef;
using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::EventTracerDebugLogLevel;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;

Executor g_executor;
thread_local int32_t t_mode = 0;

// One loaded partition. The executor owns the model.
struct Program {
  const Family* family = nullptr;
  Payload payload;
  bool is_own = false; // True: the executor of this backend computes it and takes tensors in their memory layout
  int64_t executor = 0;
  // Reused by each call: tensors for the executor, and memory for those whose layout must change.
  std::vector<micronpu_tensor> inputs, outputs;
  std::vector<std::vector<uint8_t>> input_memory, output_memory;
};

// Logs the operators of a traced run: one event each and, at the level that keeps values, its output. Either all
// operators have outputs or none has: the Inspector fails on an event whose output is missing.
struct TraceContext {
  EventTracer* tracer;
  bool logs_outputs;
};

void log_operator(
    void* context,
    int32_t operator_index,
    const char* operator_name,
    uint64_t nanoseconds,
    const micronpu_tensor* outputs,
    int32_t num_outputs) {
  try {
    const auto* trace = static_cast<TraceContext*>(context);
    const auto ratio = et_pal_ticks_to_ns_multiplier();
    const auto ticks = static_cast<et_timestamp_t>(
        static_cast<double>(nanoseconds) * static_cast<double>(ratio.denominator) /
        static_cast<double>(ratio.numerator));
    const et_timestamp_t end = et_pal_current_ticks();
    executorch::runtime::event_tracer_log_profiling_delegate(
        trace->tracer,
        nullptr,
        static_cast<executorch::runtime::DebugHandle>(operator_index),
        end > ticks ? end - ticks : 0,
        end,
        operator_name,
        std::strlen(operator_name));
    if (!trace->logs_outputs) {
      return;
    }
    std::vector<std::unique_ptr<TensorImpl>> implementations;
    std::vector<std::vector<SizesType>> sizes(static_cast<size_t>(num_outputs));
    std::vector<std::vector<DimOrderType>> orders(sizes.size());
    std::vector<std::vector<StridesType>> strides(sizes.size());
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const micronpu_tensor& output = outputs[i];
      const size_t rank = static_cast<size_t>(output.rank);
      sizes[i].assign(output.shape, output.shape + rank);
      orders[i].resize(rank);
      strides[i].resize(rank);
      StridesType stride = 1;
      for (size_t axis = rank; axis-- > 0;) {
        orders[i][axis] = static_cast<DimOrderType>(axis);
        strides[i][axis] = stride;
        stride *= sizes[i][axis];
      }
      implementations.push_back(std::make_unique<TensorImpl>(
          static_cast<ScalarType>(output.scalar_type), static_cast<ssize_t>(rank), sizes[i].data(), output.data,
          orders[i].data(), strides[i].data()));
      tensors.emplace_back(implementations.back().get());
    }
    const auto identifier = static_cast<executorch::runtime::DebugHandle>(operator_index);
    if (tensors.size() == 1) {
      executorch::runtime::event_tracer_log_output_delegate<Tensor>(trace->tracer, nullptr, identifier, tensors[0]);
    } else {
      executorch::runtime::event_tracer_log_output_delegate<ArrayRef<Tensor>>(
          trace->tracer, nullptr, identifier, ArrayRef<Tensor>(tensors.data(), tensors.size()));
    }
  } catch (...) {
    // Out of memory while tracing: lose the event instead of throwing through Python's frames.
  }
}

class Delegate final : public BackendInterface {
 public:
  explicit Delegate(const Family& family) : family_(family) {}

  const char* name() const {
    return family_.backend;
  }

  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(
      BackendInitContext& context, FreeableBuffer* processed, ArrayRef<CompileSpec>) const override {
    try {
      auto program = std::make_unique<Program>();
      program->family = &family_;
      std::string error;
      Source source;
      const auto status = family_.load(context, *processed, t_mode, source, error);
      if (status != PayloadStatus::ok) {
        return fail(
            status == PayloadStatus::incompatible ? Error::DelegateInvalidCompatibility : Error::InvalidProgram, error);
      }
      if (g_executor.create == nullptr) {
        return fail(
            Error::InvalidState,
            std::string(name()) +
                " has no executor installed. Try: load the program with micronpu.runtime.HostProgram.");
      }
      program->payload = source.payload;
      program->is_own = source.is_own;
      Payload& payload = program->payload;
      program->inputs.resize(payload.inputs.size());
      program->outputs.resize(payload.outputs.size());
      program->input_memory.resize(payload.inputs.size());
      program->output_memory.resize(payload.outputs.size());
      const int32_t mode = t_mode | (context.event_tracer() != nullptr ? MICRONPU_MODE_TRACED : 0);
      const void* graph = source.is_own ? payload.model : nullptr; // null if the payload carries no graph
      program->executor = g_executor.create(
          source.is_own ? name() : "", source.is_own ? source.content.data() : payload.model,
          source.is_own ? source.content.size() : payload.model_size, graph,
          graph == nullptr ? 0 : payload.model_size, mode, static_cast<int32_t>(payload.inputs.size()),
          static_cast<int32_t>(payload.outputs.size()));
      if (program->executor == 0) {
        return Error::InvalidProgram; // the executor has set the message
      }
      // The executor has its own copy of the model.
      payload.model = nullptr;
      processed->Free();
      return static_cast<DelegateHandle*>(program.release());
    } catch (const std::exception& error) {
      return fail(Error::Internal, std::string(name()) + " could not load the program: " + error.what() + ".");
    } catch (...) {
      return fail(Error::Internal, std::string(name()) + " could not load the program.");
    }
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle, Span<EValue*> arguments) const override {
    try {
      return run(context, *static_cast<Program*>(handle), arguments);
    } catch (const std::exception& error) {
      return fail(Error::Internal, std::string(name()) + " could not run the program: " + error.what() + ".");
    } catch (...) {
      return fail(Error::Internal, std::string(name()) + " could not run the program.");
    }
  }

  void destroy(DelegateHandle* handle) const override {
    auto* program = static_cast<Program*>(handle);
    if (program != nullptr && g_executor.destroy != nullptr) {
      g_executor.destroy(program->executor);
    }
    delete program;
  }

 private:
  static Error run(BackendExecutionContext& context, Program& program, Span<EValue*> arguments) {
    const Payload& payload = program.payload;
    const size_t expected = payload.num_arguments + payload.outputs.size();
    if (arguments.size() != expected) {
      return fail(
          Error::InvalidArgument,
          std::string(program.family->backend) + " was called with " + std::to_string(arguments.size()) + " arguments, but its payload has " +
              std::to_string(payload.num_arguments) + " inputs and " + std::to_string(payload.outputs.size()) +
              " outputs. Try: compile the model again with this version of micronpu.");
    }
    if (g_executor.run == nullptr) {
      return fail(
          Error::InvalidState,
          std::string(program.family->backend) + " has no executor any more, because Python is shutting down.");
    }
    for (size_t i = 0; i < payload.inputs.size(); ++i) {
      const EValue& value = *arguments[payload.inputs[i].index];
      Layout layout;
      const Error error = prepare(
          *program.family, "Input", i, value, payload.inputs[i], program.is_own, program.input_memory[i],
          program.inputs[i], layout);
      if (error != Error::Ok) {
        return error;
      }
      if (layout == Layout::permute) {
        to_channels_last(value.toTensor(), program.inputs[i].data);
      }
    }
    std::vector<Layout> layouts(payload.outputs.size());
    for (size_t i = 0; i < payload.outputs.size(); ++i) {
      const EValue& value = *arguments[payload.num_arguments + payload.outputs[i].index];
      const Error error = prepare(
          *program.family, "Output", i, value, payload.outputs[i], program.is_own, program.output_memory[i],
          program.outputs[i], layouts[i]);
      if (error != Error::Ok) {
        return error;
      }
    }

    const int32_t num_inputs = static_cast<int32_t>(program.inputs.size());
    const int32_t num_outputs = static_cast<int32_t>(program.outputs.size());
    EventTracer* tracer = context.event_tracer();
    TraceContext trace{
        tracer,
        tracer != nullptr && tracer->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs};
    const int32_t status = g_executor.run(
        program.executor, program.inputs.data(), num_inputs, program.outputs.data(), num_outputs,
        tracer == nullptr ? nullptr : log_operator, &trace);
    if (status != 0) {
      return Error::Internal; // the executor has set the message
    }

    for (size_t i = 0; i < payload.outputs.size(); ++i) {
      if (layouts[i] == Layout::permute) {
        const EValue& value = *arguments[payload.num_arguments + payload.outputs[i].index];
        from_channels_last(program.outputs[i].data, value.toTensor());
      }
    }
    return Error::Ok;
  }

  const Family& family_;
};

Error register_backend(Delegate& backend) {
  auto* registered = executorch::runtime::get_backend_class(backend.name());
  if (registered == &backend) {
    return Error::Ok;
  }
  const std::string name = backend.name();
  if (registered != nullptr) {
    return fail(
        Error::RegistrationAlreadyRegistered,
        "Another library has already registered the delegate " + name +
            " in this process. Try: load programs through one installation of micronpu per process.");
  }
  const Error error = executorch::runtime::register_backend({backend.name(), &backend});
  if (error != Error::Ok) {
    return fail(
        error,
        "ExecuTorch refused to register the delegate " + name +
            ". Try: a process in which fewer delegates are registered.");
  }
  return Error::Ok;
}

// A static local: it is constructed before the first registration, in any order of translation units.
std::vector<Family>& registered_families() {
  static std::vector<Family> all;
  return all;
}

} // namespace

const std::vector<Family>& families() {
  return registered_families();
}

Registration::Registration(const Family& family) {
  registered_families().push_back(family);
}

void set_executor(const Executor& executor) {
  g_executor = executor;
}

void set_mode(int32_t mode) {
  t_mode = mode;
}

Error register_backends() {
  static const std::vector<std::unique_ptr<Delegate>> delegates = [] {
    std::vector<std::unique_ptr<Delegate>> made;
    for (const Family& family : families()) {
      made.push_back(std::make_unique<Delegate>(family));
    }
    return made;
  }();
  for (const auto& delegate : delegates) {
    if (const Error error = register_backend(*delegate); error != Error::Ok) {
      return error;
    }
  }
  return Error::Ok;
}

} // namespace micronpu
