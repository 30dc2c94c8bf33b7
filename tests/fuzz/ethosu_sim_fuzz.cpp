// Command streams changed at random, in the Ethos-U simulator: whatever it answers, it ends and stays inside its memory.
// Build it with -fsanitize=address,undefined together with native/ethosu_sim/*.cpp.
//
//     ethosu_sim_fuzz first_number count seed_file...
//
// A seed file is: family, MACs, size of the commands, of the constants, of both scratch memories (32 bits each),
// then commands and constants. The same numbers give the same changes.
#include "sim.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

namespace {

struct Seed {
  uint32_t family = 0, macs = 0, scratch = 0, fast = 0;
  std::vector<uint8_t> commands, constants;
};

bool read(const char* path, Seed& seed) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint32_t head[6];
  if (bytes.size() < sizeof head) {
    return false;
  }
  std::memcpy(head, bytes.data(), sizeof head);
  if (bytes.size() != sizeof head + head[2] + head[3]) {
    return false;
  }
  seed.family = head[0], seed.macs = head[1], seed.scratch = head[4], seed.fast = head[5];
  const auto begin = bytes.begin() + sizeof head;
  seed.commands.assign(begin, begin + head[2]);
  seed.constants.assign(begin + head[2], bytes.end());
  return true;
}

void change(std::vector<uint8_t>& bytes, std::mt19937& random, size_t first) {
  if (bytes.size() <= first + 8) {
    return;
  }
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  const size_t words = (bytes.size() - first) / 4, at = first + 4 * below(words);
  uint32_t word;
  std::memcpy(&word, bytes.data() + at, 4);
  static const uint32_t telling[] = {0, 1, 2, 15, 16, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF,
                                     0x80000000, 0xFFFFFFFF, 0xFFFFFFF0};
  switch (below(8)) {
    case 0:
      word ^= uint32_t{1} << below(32);
      break;
    case 1:
      word = (word & 0xFFFF) | telling[below(std::size(telling))] << 16;
      break;
    case 2:
      word = telling[below(std::size(telling))];
      break;
    case 3:
      word = random();
      break;
    case 4: { // a word of elsewhere
      std::memcpy(&word, bytes.data() + first + 4 * below(words), 4);
      break;
    }
    case 5:
      bytes.erase(bytes.begin() + static_cast<long>(at), bytes.begin() + static_cast<long>(at) + 4);
      return;
    case 6: {
      const uint8_t* b = reinterpret_cast<const uint8_t*>(&word);
      bytes.insert(bytes.begin() + static_cast<long>(at), b, b + 4);
      return;
    }
    default:
      word += static_cast<uint32_t>(below(9)) - 4;
  }
  std::memcpy(bytes.data() + at, &word, 4);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s first count seed...\n", argv[0]);
    return 2;
  }
  const unsigned first = static_cast<unsigned>(std::atol(argv[1])), count = static_cast<unsigned>(std::atol(argv[2]));
  constexpr size_t kActions = 32; // bytes of driver actions, changed less often
  unsigned statuses[6] = {};
  for (int i = 3; i < argc; ++i) {
    Seed seed;
    if (!read(argv[i], seed)) {
      std::fprintf(stderr, "%s is no seed file\n", argv[i]);
      return 2;
    }
    const std::unique_ptr<ethosu_sim, void (*)(ethosu_sim*)> owner(
        ethosu_sim_create(static_cast<int32_t>(seed.family), static_cast<int32_t>(seed.macs)), ethosu_sim_destroy);
    ethosu_sim* sim = owner.get();
    if (!sim) {
      std::fprintf(stderr, "%s: there is no such accelerator\n", argv[i]);
      return 2;
    }
    ethosu_sim_set_work_limit(sim, 2000000);
    for (unsigned number = first; number < first + count; ++number) {
      std::mt19937 random(number * 1000003u + static_cast<unsigned>(i));
      Seed changed = seed;
      const unsigned changes = number ? 1 + random() % 4 : 0;
      for (unsigned k = 0; k < changes; ++k) {
        const unsigned where = random() % 16;
        if (where == 0) {
          change(changed.commands, random, 0);
        } else if (where < 4 && !changed.constants.empty()) {
          change(changed.constants, random, 0);
        } else {
          change(changed.commands, random, kActions);
        }
      }
      // On the heap and of exactly this size, so that the sanitizer sees every step outside.
      std::vector<uint8_t> scratch(seed.scratch), fast(seed.fast);
      const int32_t kind = number % 4 == 1 ? ETHOSU_SIM_SCRATCH : ETHOSU_SIM_MEMORY;
      const ethosu_sim_region regions[] = {
          {changed.constants.data(), changed.constants.size(), ETHOSU_SIM_CONSTANT},
          {scratch.data(), scratch.size(), kind},
          {fast.data(), fast.size(), kind},
      };
      const ethosu_sim_range all = {1, 0, seed.scratch / 2};
      const int32_t status = ethosu_sim_run(
          sim, changed.commands.data(), changed.commands.size(), regions, 3, &all, 1);
      const bool said = *ethosu_sim_error(sim) != 0;
      const bool is_wrong = status == ETHOSU_SIM_INVALID || status == ETHOSU_SIM_TOO_EARLY;
      if (status < 0 || status > ETHOSU_SIM_TOO_EARLY || said != (status != ETHOSU_SIM_OK) || (number == 0 && is_wrong)) {
        std::fprintf(stderr, "%s, change %u: status %d, \"%s\"\n", argv[i], number, status, ethosu_sim_error(sim));
        return 1;
      }
      ++statuses[status];
    }
  }
  std::printf("ok %u invalid %u not_modelled %u bad_argument %u too_much_work %u too_early %u\n", statuses[0],
      statuses[1], statuses[2], statuses[3], statuses[4], statuses[5]);
  return 0;
}
