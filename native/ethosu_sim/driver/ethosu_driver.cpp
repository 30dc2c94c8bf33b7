#include "ethosu_driver.h"

#include "../sim.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Free {
  void operator()(ethosu_sim* sim) const {
    ethosu_sim_destroy(sim);
  }
};

constexpr int kFastMemory = 2; // the base address that a driver's own fast memory replaces
constexpr int kMaxBases = 8;
constexpr uint64_t kAlignment = 16;

} // namespace

struct ethosu_driver {
  uint8_t* fast_memory = nullptr;
  size_t fast_memory_size = 0;
  std::unique_ptr<ethosu_sim, Free> sim;
  uint32_t config = 0; // of the accelerator that `sim` is
  bool has_job = false;
  int result = 0;
  std::string error;
};

namespace {

// Returns the driver action's word that names the accelerator of a stream, or 0 if it has none.
uint32_t config_of(const uint8_t* data, size_t size) {
  std::vector<uint32_t> words(size / 4);
  if (!words.empty()) {
    std::memcpy(words.data(), data, words.size() * 4);
  }
  constexpr size_t kPlaceInCop2 = 10;
  if (words.size() > kPlaceInCop2 && words[0] == 0x32504F43) {
    return words[kPlaceInCop2];
  }
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    if ((words[i] & 0xFF) == 1) {
      return words[i + 1];
    }
    if ((words[i] & 0xFF) != 5) {
      break;
    }
  }
  return 0;
}

std::string run(ethosu_driver& driver, const void* data, int size, uint64_t* bases, const size_t* sizes, int count) {
  if (!data || size <= 0 || !bases || !sizes || count < 0 || count > kMaxBases) {
    return "The arguments of the job are not usable: no stream, no base addresses, or no sizes of them.";
  }
  const uint32_t config = config_of(static_cast<const uint8_t*>(data), static_cast<size_t>(size));
  const uint32_t product = config >> 28;
  if (!config || product > 2) {
    return "The command stream does not say which Ethos-U it was compiled for.";
  }
  if (!driver.sim || driver.config != config) {
    const int32_t families[] = {55, 65, 85};
    driver.sim.reset(ethosu_sim_create(families[product], int32_t{1} << (config & 15)));
    driver.config = config;
  }
  if (!driver.sim) {
    return "The command stream was compiled for an Ethos-U that does not exist.";
  }
  std::vector<ethosu_sim_region> regions;
  for (int i = 0; i < count; ++i) {
    const bool fast = i == kFastMemory && driver.fast_memory;
    auto* base = fast ? driver.fast_memory : reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(bases[i]));
    if (reinterpret_cast<uintptr_t>(base) % kAlignment) {
      return "Base address " + std::to_string(i) + " is no multiple of 16.";
    }
    // The driver does not know which bytes are inputs: all of the memory counts as written.
    regions.push_back(
        {base, fast ? driver.fast_memory_size : sizes[i], i == 0 ? ETHOSU_SIM_CONSTANT : ETHOSU_SIM_MEMORY});
  }
  const int32_t status = ethosu_sim_run(
      driver.sim.get(), data, static_cast<uint64_t>(size), regions.data(), count, nullptr, 0);
  return status == ETHOSU_SIM_OK ? "" : ethosu_sim_error(driver.sim.get());
}

} // namespace

extern "C" {

int ethosu_init(
    ethosu_driver* driver, const void*, const void* fast_memory, size_t fast_memory_size, uint32_t, uint32_t) {
  if (!driver) {
    return -1;
  }
  driver->fast_memory = static_cast<uint8_t*>(const_cast<void*>(fast_memory));
  driver->fast_memory_size = fast_memory_size;
  return 0;
}

void ethosu_deinit(ethosu_driver* driver) {
  if (driver) {
    *driver = {};
  }
}

void ethosu_get_driver_version(ethosu_driver_version* version) {
  *version = {0, ETHOSU_SIM_VERSION, 0};
}

ethosu_driver* ethosu_reserve_driver(void) {
  static thread_local ethosu_driver driver;
  return &driver;
}

void ethosu_release_driver(ethosu_driver*) {}

int ethosu_invoke_async(
    ethosu_driver* driver, const void* custom_data_ptr, const int custom_data_size, uint64_t* const base_addr,
    const size_t* base_addr_size, const int num_base_addr, void* user_arg) {
  if (!driver) {
    return -1;
  }
  ethosu_inference_begin(driver, user_arg);
  try {
    driver->error = run(*driver, custom_data_ptr, custom_data_size, base_addr, base_addr_size, num_base_addr);
    driver->result = driver->error.empty() ? 0 : -1;
  } catch (const std::exception&) {
    driver->result = -1; // out of memory, even for a message
  }
  if (driver->result) {
    std::fprintf(stderr, "ethosu: %s\n", driver->error.c_str());
  }
  ethosu_inference_end(driver, user_arg);
  driver->has_job = true;
  return 0;
}

int ethosu_wait(ethosu_driver* driver, bool) {
  if (!driver || !driver->has_job) {
    return -2;
  }
  driver->has_job = false;
  return driver->result;
}

int ethosu_invoke_v3(
    ethosu_driver* driver, const void* custom_data_ptr, const int custom_data_size, uint64_t* const base_addr,
    const size_t* base_addr_size, const int num_base_addr, void* user_arg) {
  const int started = ethosu_invoke_async(
      driver, custom_data_ptr, custom_data_size, base_addr, base_addr_size, num_base_addr, user_arg);
  return started ? started : ethosu_wait(driver, true);
}

__attribute__((weak)) void ethosu_inference_begin(ethosu_driver*, void*) {}

__attribute__((weak)) void ethosu_inference_end(ethosu_driver*, void*) {}

const char* ethosu_sim_driver_error(const ethosu_driver* driver) {
  return driver ? driver->error.c_str() : "";
}

} // extern "C"
