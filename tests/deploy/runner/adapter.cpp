// What lets sources that are compiled for ExecuTorch 1.5 call the older runtime inside Arm's runner, as it is loaded.
//
// Three things differ between the two: `load_method` has more parameters, a tensor says on which device it is, and two virtual
// functions stand in front of `reset` of an allocator.  Fields that both have are at the same places: those of 1.5 are behind.
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

namespace executorch {
namespace runtime {

namespace etensor {

TensorImpl::TensorImpl(ScalarType type, ssize_t dim, SizesType* sizes, void* data, DimOrderType* dim_order,
    StridesType* strides, TensorShapeDynamism dynamism, DeviceType device, DeviceIndex index)
    : sizes_(sizes),
      dim_order_(dim_order),
      strides_(strides),
      data_(data),
      dim_(dim),
      numel_(compute_numel(sizes, dim)),
      numel_bound_(static_cast<size_t>(numel_)),
      type_(type),
      shape_dynamism_(dynamism),
      device_(device, index) {}

} // namespace etensor

namespace {

constexpr std::size_t kMethod = 72; // bytes of the older Method, its state in the last word
constexpr std::size_t kMost = 4; // programs of a test

// An allocator of ours as the older runtime calls it.
class Older {
 public:
  virtual ~Older() = default;
  virtual void* allocate(std::size_t size, std::size_t alignment) {
    return to->allocate(size, alignment);
  }
  virtual uint8_t* base_address() const {
    return to->base_address();
  }
  virtual uint32_t size() const {
    return to->size();
  }
  virtual void reset() {
    to->reset();
  }

  MemoryAllocator* to = nullptr;
};

struct Older4 {
  Older method, temporary;
  alignas(MemoryManager) unsigned char manager[sizeof(MemoryManager)];
} programs[kMost];
std::size_t used;

} // namespace

struct Loaded {
  uint32_t words[kMethod / 4]; // or an error in the first
  bool ok;
};

Loaded load_older(const Program* program, const char* name, MemoryManager* manager, EventTracer* tracer, const NamedDataMap* data) asm(
    "_ZNK10executorch7runtime7Program11load_methodEPKcPNS0_13MemoryManagerEPNS0_11EventTracerEPKNS0_12NamedDataMapE");

Result<Method> Program::load_method(const char* name, MemoryManager* manager, EventTracer* tracer, const NamedDataMap* data,
    const LoadBackendOptionsMap*, Span<const Kernel>) const {
  static_assert(sizeof(Method) == kMethod + 8, "another ExecuTorch");
  Older4& mine = programs[used++ % kMost];
  mine.method.to = manager->method_allocator();
  mine.temporary.to = manager->temp_allocator();
  auto* older = new (mine.manager) MemoryManager(reinterpret_cast<MemoryAllocator*>(&mine.method),
      manager->planned_memory(), reinterpret_cast<MemoryAllocator*>(&mine.temporary));
  const Loaded loaded = load_older(this, name, older, tracer, data);
  if (!loaded.ok) {
    return static_cast<Error>(loaded.words[0]);
  }
  alignas(Method) unsigned char room[sizeof(Method)] = {};
  std::memcpy(room, loaded.words, kMethod);
  room[kMethod + 4] = 1; // initialized, at its new place as at the old one
  return Result<Method>(std::move(*reinterpret_cast<Method*>(room)));
}

static bool silent;

// Which the runner does not have either: one instruction, the end being where there is none.
Error Method::step() {
  silent = true;
  const Error error = execute_instruction();
  silent = false;
  if (error != Error::Internal) {
    return error;
  }
  step_state_ = {n_chains_, 0};
  return Error::EndOfMethod;
}

bool registry_has_op_function(const char* name, Span<const TensorMeta> meta) { // which the runner does not have
  silent = true; // it says that there is none
  const bool has = get_op_function_from_registry(name, meta).ok();
  silent = false;
  return has;
}

} // namespace runtime
} // namespace executorch

extern "C" {

struct runner_patch {
  uint32_t at, to;
};
extern const runner_patch runner_patches[]; // functions of the runner in whose place the folder's own are called
extern const uint32_t runner_constructors[]; // of its runtime; both end with 0

void runner_log(uint64_t, int level, const char*, const char*, std::size_t, const char* message, std::size_t) {
  if (!executorch::runtime::silent && (level == 'E' || level == 'F')) {
    std::printf("ExecuTorch: %s\n", message);
  }
}

// The two are one image, linked in two steps: a weak function of the first that the second has as well is the second's.
__attribute__((constructor(101))) void runner_begin() {
  for (const runner_patch* patch = runner_patches; patch->at != 0; ++patch) {
    if ((patch->to & ~1u) == patch->at) {
      continue; // the folder has none
    }
    const uint32_t offset = ((patch->to & 0x0FFFFFFEu) - patch->at - 4) >> 1; // B.W, encoding T4
    const uint32_t s = offset >> 23 & 1, j1 = ~((offset >> 22) ^ s) & 1, j2 = ~((offset >> 21) ^ s) & 1;
    volatile auto* code = reinterpret_cast<volatile uint16_t*>(patch->at);
    code[0] = static_cast<uint16_t>(0xF000u | s << 10 | (offset >> 11 & 0x3FF));
    code[1] = static_cast<uint16_t>(0x9000u | j1 << 13 | j2 << 11 | (offset & 0x7FF));
  }
  __asm volatile("dsb\n isb" ::: "memory");
  for (const uint32_t* constructor = runner_constructors; *constructor != 0; ++constructor) {
    reinterpret_cast<void (*)()>(*constructor)();
  }
}

void ethosu_deinit(void*) { // which the runner's driver does not have: programs for two NPUs would call it
  std::puts("WRONG: ethosu_deinit");
}
}
