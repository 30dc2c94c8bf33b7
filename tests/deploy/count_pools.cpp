// Loads and runs a program in a real ExecuTorch runtime with allocators that count: what `micronpu.deploy.pools` predicts.
//
//   count_pools model.pte [operator ...]
//
// Delegates, and the operators named, do nothing and allocate nothing.  Prints what the method and the temporary allocator
// handed out.
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

using namespace executorch::runtime;

namespace {

class Counting : public MemoryAllocator {
 public:
  Counting(uint32_t size, uint8_t* base) : MemoryAllocator(size, base) {}

  void* allocate(size_t size, size_t alignment) override {
    void* found = MemoryAllocator::allocate(size, alignment);
    most_ = std::max(most_, used_size());
    return found;
  }

  size_t most() const {
    return most_;
  }

 private:
  size_t most_ = 0;
};

class Nothing final : public BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer*, ArrayRef<CompileSpec>) const override {
    return nullptr;
  }

  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*>) const override {
    return Error::Ok;
  }
};

constexpr uint32_t kPool = 1u << 22;
alignas(64) uint8_t method_pool[kPool];
alignas(64) uint8_t temporary_pool[kPool];

int fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  return 1;
}

} // namespace

int main(int count, char** arguments) {
  runtime_init();
  static Nothing nothing;
  for (const char* name : {"NeutronBackend", "EthosUBackend"}) {
    if (register_backend({name, &nothing}) != Error::Ok) {
      return fail("a backend is refused");
    }
  }
  for (int i = 2; i < count; ++i) {
    if (register_kernel(Kernel(arguments[i], [](KernelRuntimeContext&, Span<EValue*>) {})) != Error::Ok) {
      return fail("an operator is refused");
    }
  }
  auto loader = executorch::extension::FileDataLoader::from(arguments[1]);
  if (!loader.ok()) {
    return fail("no file");
  }
  auto program = Program::load(&loader.get());
  if (!program.ok()) {
    return fail("no program");
  }
  auto meta = program->method_meta("forward");
  std::vector<std::unique_ptr<uint8_t[]>> memories;
  std::vector<Span<uint8_t>> spans;
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
    const size_t size = size_t(meta->memory_planned_buffer_size(i).get());
    memories.push_back(std::make_unique<uint8_t[]>(size + 64));
    auto* begin = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memories.back().get()) + 63) & ~uintptr_t{63});
    spans.emplace_back(begin, size);
  }
  HierarchicalAllocator planned({spans.data(), spans.size()});
  Counting methods(kPool, method_pool), temporary(kPool, temporary_pool);
  MemoryManager manager(&methods, &planned, &temporary);
  auto method = program->load_method("forward", &manager);
  if (!method.ok()) {
    return fail("the method does not load");
  }
  const size_t loaded = methods.used_size(), lookup = temporary.most();
  std::vector<std::vector<uint8_t>> inputs;
  for (size_t i = 0; i < method->inputs_size(); ++i) {
    auto tensor = method->mutable_input(i).toTensor();
    inputs.emplace_back(tensor.nbytes());
    executorch::aten::TensorImpl own(tensor.scalar_type(), tensor.dim(), const_cast<executorch::aten::SizesType*>(tensor.sizes().data()),
        inputs.back().data(), const_cast<executorch::aten::DimOrderType*>(tensor.dim_order().data()),
        const_cast<executorch::aten::StridesType*>(tensor.strides().data()));
    if (method->set_input(EValue(executorch::aten::Tensor(&own)), i) != Error::Ok) {
      return fail("an input is refused");
    }
  }
  std::printf("method %zu\nlookup %zu\n", loaded, lookup);
  const bool ran = method->execute() == Error::Ok;
  std::printf("ran %d\nmethod_after %zu\ntemporary %zu\n", int(ran), methods.used_size(), temporary.most());
  return 0;
}
