// Loads and runs a program in a real ExecuTorch runtime whose allocators hold exactly what they are given: what
// `micronpu.targets.board` predicts is enough, and a byte less is not.
//
//   exact_pools model.pte METHOD TEMPORARY HANDLES SCRATCH DATA [operator ...]
//
// HANDLES and SCRATCH are lists of numbers, one per delegate in order, with commas between: what a delegate takes from the
// method allocator when it is loaded, and from the temporary one when it runs.  DATA names a `.ptd` file or two, with a
// comma between, for what the program looks up by name, or is empty.  Of several methods all are loaded, then each is run.  The operators named, which are not those
// of this machine's runtime, do nothing.  Prints "ok", or where it ended.
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/named_data_map/merged_data_map.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using namespace executorch::runtime;

namespace {

constexpr size_t kAlignment = 64;

// Memory that begins at a multiple of 64, as the pools of `main.cpp` do.
class Pool {
 public:
  explicit Pool(size_t size) : held_(new uint8_t[size + kAlignment]), size_(size) {}

  uint8_t* begin() const {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(held_.get()) + kAlignment - 1) & ~(kAlignment - 1));
  }

  size_t size() const {
    return size_;
  }

 private:
  std::unique_ptr<uint8_t[]> held_;
  size_t size_;
};

std::vector<size_t> numbers(const char* text) {
  std::vector<size_t> found;
  for (char* at = const_cast<char*>(text); *at != '\0'; at += *at == ',') {
    found.push_back(std::strtoul(at, &at, 10));
  }
  return found;
}

// A delegate that computes nothing and allocates what the one on the board does.
class Taking final : public BackendInterface {
 public:
  Taking(std::vector<size_t> handles, std::vector<size_t> scratch)
      : handles_(std::move(handles)), scratch_(std::move(scratch)) {}

  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer*, ArrayRef<CompileSpec>) const override {
    const size_t number = count_++;
    if (handles_[number] != 0 && context.get_runtime_allocator()->allocate(handles_[number], alignof(void*)) == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    return reinterpret_cast<DelegateHandle*>(number + 1);
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle, Span<EValue*>) const override {
    const size_t size = scratch_[reinterpret_cast<uintptr_t>(handle) - 1];
    const bool taken = size == 0 || context.get_temp_allocator()->allocate(size, 16) != nullptr;
    return taken ? Error::Ok : Error::MemoryAllocationFailed;
  }

 private:
  std::vector<size_t> handles_, scratch_;
  mutable size_t count_ = 0;
};

int end(const char* what) {
  std::puts(what);
  return 0;
}

} // namespace

int main(int, char** arguments) {
  runtime_init();
  static Taking taking(numbers(arguments[4]), numbers(arguments[5]));
  for (const char* name : {"NeutronBackend", "EthosUBackend"}) {
    if (register_backend({name, &taking}) != Error::Ok) {
      return end("a backend is refused");
    }
  }
  for (char** name = arguments + 7; *name != nullptr; ++name) {
    if (register_kernel(Kernel(*name, [](KernelRuntimeContext&, Span<EValue*>) {})) != Error::Ok) {
      return end("an operator is refused");
    }
  }
  auto loader = executorch::extension::FileDataLoader::from(arguments[1]);
  auto program = Program::load(&loader.get());
  std::vector<const char*> names;
  std::vector<size_t> largest;
  for (size_t m = 0; m < program->num_methods(); ++m) {
    names.push_back(program->get_method_name(m).get());
    auto meta = program->method_meta(names.back());
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
      largest.resize(std::max(largest.size(), i + 1));
      largest[i] = std::max(largest[i], size_t(meta->memory_planned_buffer_size(i).get()));
    }
  }
  std::vector<Pool> memories;
  std::vector<Span<uint8_t>> spans;
  for (const size_t size : largest) {
    memories.emplace_back(size);
    spans.emplace_back(memories.back().begin(), memories.back().size());
  }
  HierarchicalAllocator planned({spans.data(), spans.size()});
  const Pool method_pool(std::strtoul(arguments[2], nullptr, 10)), temporary_pool(std::strtoul(arguments[3], nullptr, 10));
  MemoryAllocator methods(uint32_t(method_pool.size()), method_pool.begin());
  MemoryAllocator temporary(uint32_t(temporary_pool.size()), temporary_pool.begin());
  MemoryManager manager(&methods, &planned, &temporary);
  const std::string data = arguments[6];
  const size_t comma = data.find(',');
  std::vector<std::unique_ptr<executorch::extension::FileDataLoader>> loaders;
  std::vector<std::unique_ptr<executorch::extension::FlatTensorDataMap>> maps;
  std::vector<const NamedDataMap*> places;
  for (const std::string& file : {data.substr(0, comma), comma == std::string::npos ? "" : data.substr(comma + 1)}) {
    if (!file.empty()) {
      loaders.push_back(std::make_unique<executorch::extension::FileDataLoader>(
          std::move(executorch::extension::FileDataLoader::from(file.c_str()).get())));
      maps.push_back(std::make_unique<executorch::extension::FlatTensorDataMap>(
          std::move(executorch::extension::FlatTensorDataMap::load(loaders.back().get()).get())));
      places.push_back(maps.back().get());
    }
  }
  std::unique_ptr<executorch::extension::merged_data_map::MergedDataMap> merged;
  if (places.size() > 1) {
    merged = std::make_unique<executorch::extension::merged_data_map::MergedDataMap>(
        std::move(executorch::extension::merged_data_map::MergedDataMap::load({places.data(), places.size()}).get()));
  }
  const NamedDataMap* map = merged ? merged.get() : places.empty() ? nullptr : places[0];
  std::vector<Method> loaded;
  loaded.reserve(names.size());
  for (const char* name : names) {  // all of them before one runs
    auto method = program->load_method(name, &manager, nullptr, map);
    if (!method.ok()) {
      return end("the method does not load");
    }
    loaded.push_back(std::move(method.get()));
  }
  for (Method& one : loaded) {
    Method* method = &one;
    std::vector<std::vector<uint8_t>> inputs;
    for (size_t i = 0; i < method->inputs_size(); ++i) {
      auto tensor = method->mutable_input(i).toTensor();
      inputs.emplace_back(tensor.nbytes());
      executorch::aten::TensorImpl own(tensor.scalar_type(), tensor.dim(), const_cast<executorch::aten::SizesType*>(tensor.sizes().data()),
          inputs.back().data(), const_cast<executorch::aten::DimOrderType*>(tensor.dim_order().data()),
          const_cast<executorch::aten::StridesType*>(tensor.strides().data()));
      if (method->set_input(EValue(executorch::aten::Tensor(&own)), i) != Error::Ok) {
        return end("an input is refused");
      }
    }
    for (int run = 0; run < 2; ++run) {  // what a run leaves behind would be missed by the second
      if (method->execute() != Error::Ok) {
        return end("the method does not run");
      }
    }
  }
  return end("ok");
}
