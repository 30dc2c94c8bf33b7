// A driver for one run of an Ethos-U on its registers, with an interrupt, and every form in which a core accesses them.
// What to run stands in memory: the tests put it there.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef volatile uint32_t word;

struct job {
  uint32_t registers, interrupt, stream, size, bases[3], output, bytes, product;
  uint8_t expected[64];
};
#define JOB ((const struct job *)0x70400000)
#define NPU ((word *)JOB->registers)
enum { ID, STATUS, CMD, RESET, QBASE, QREAD = 6, QSIZE = 8, CONFIG = 10, BASEP = 32 };

static volatile uint32_t interrupts;

static void handler(void) {
  ++interrupts;
  NPU[CMD] = 2; // the interrupt is taken
}

static void wait_for_interrupts(void) {
  static uintptr_t table[128] __attribute__((aligned(512)));
  word *const vtor = (word *)0xE000ED08;
  memcpy(table, (const void *)(uintptr_t)*vtor, 64);
  table[16 + JOB->interrupt] = (uintptr_t)handler;
  *vtor = (uint32_t)(uintptr_t)table;
  ((word *)0xE000E100)[JOB->interrupt / 32] = 1u << JOB->interrupt % 32;
}

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      printf("FAIL: %s, status 0x%x\n", #condition, (unsigned)NPU[STATUS]); \
      return 2;                                                              \
    }                                                                        \
  } while (0)

// Bytes, halfwords, pairs, several registers, exclusive ones: all see the same registers.
static int access_forms(void) {
  uint32_t a, b, c, d;
  const uint32_t id = NPU[ID];
  const volatile uint8_t *bytes = (const volatile uint8_t *)&NPU[ID];
  const volatile uint16_t *halves = (const volatile uint16_t *)&NPU[ID];
  CHECK((bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24) == id);
  CHECK((halves[0] | (uint32_t)halves[1] << 16) == id);
  __asm volatile("strd %0, %1, [%2]" ::"r"(0x11111111), "r"(0x22), "r"(&NPU[BASEP]) : "memory");
  __asm volatile("ldrd %0, %1, [%2]" : "=r"(a), "=r"(b) : "r"(&NPU[BASEP]));
  CHECK(a == 0x11111111 && b == 0x22);
  __asm volatile("mov r4, %0\n mov r5, %1\n mov r6, %2\n stmia %2!, {r4, r5}\n mov %0, %2\n"
                 : "+r"(a)
                 : "r"(b), "r"(&NPU[BASEP + 2])
                 : "r4", "r5", "r6", "memory");
  __asm volatile("ldmia %2, {r4, r5}\n mov %0, r4\n mov %1, r5\n"
                 : "=&r"(c), "=&r"(d)
                 : "r"(&NPU[BASEP + 2])
                 : "r4", "r5");
  CHECK(c == 0x11111111 && d == 0x22);
  // No monitor watches the page: an exclusive store says that it has failed, and a store-release stores.
  NPU[BASEP + 4] = 0x3333;
  __asm volatile("ldrex %0, [%2]\n strex %1, %3, [%2]\n stl %4, [%2]\n"
                 : "=&r"(a), "=&r"(b)
                 : "r"(&NPU[BASEP + 4]), "r"(0x55), "r"(0x33)
                 : "memory");
  CHECK(a == 0x3333 && b == 1 && NPU[BASEP + 4] == 0x33);
  *((volatile uint8_t *)&NPU[BASEP + 4] + 1) = 0x44;
  CHECK(NPU[BASEP + 4] == 0x4433);
  // In a block of conditions, only what applies is done.
  __asm volatile("cmp %0, %0\n ite eq\n streq %0, [%1]\n strne %2, [%1]\n" ::"r"(5), "r"(&NPU[BASEP + 4]), "r"(6)
                 : "cc", "memory");
  CHECK(NPU[BASEP + 4] == 5);
  return 0;
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  CHECK(NPU[CONFIG] >> 28 == JOB->product);
  NPU[RESET] = 0;
  CHECK(!(NPU[STATUS] & 8));
  if (access_forms()) {
    return 2;
  }
  wait_for_interrupts();
  NPU[RESET] = 0;
  CHECK(NPU[BASEP] == 0);
  NPU[QBASE] = JOB->stream;
  NPU[QSIZE] = JOB->size;
  for (int i = 0; i < 3; ++i) {
    NPU[BASEP + 2 * i] = JOB->bases[i];
  }
  NPU[CMD] = 1;
  unsigned polls = 0;
  while (!interrupts) {
    ++polls;
  }
  CHECK(interrupts == 1);
  if (NPU[STATUS] & 0x14) {
    printf("NPU error, status 0x%x, %u of %u bytes of commands\n", (unsigned)NPU[STATUS], (unsigned)NPU[QREAD],
           (unsigned)JOB->size);
    return 4;
  }
  CHECK(NPU[STATUS] & 0x20);
  CHECK(NPU[QREAD] == JOB->size);
  const uint8_t *found = (const uint8_t *)JOB->output;
  for (unsigned i = 0; i < JOB->bytes; ++i) {
    if (found[i] != JOB->expected[i]) {
      printf("FAIL: element %u is %d, expected %d\n", i, (int8_t)found[i], (int8_t)JOB->expected[i]);
      return 1;
    }
  }
  printf("PASS: %u bytes after %s\n", (unsigned)JOB->bytes, polls > 1000 ? "a long wait" : "a short wait");
  return 0;
}
