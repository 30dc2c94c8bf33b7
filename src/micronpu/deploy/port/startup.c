// Start of a bare-metal program on a Cortex-M: vectors, memory, coprocessors, constructors, faults.
#include <stdint.h>
#include <stdlib.h>

// Only linker scripts that place programs in RAM have them; elsewhere their address is 0, and nothing is copied.
extern uint32_t micronpu_programs_load __attribute__((weak)), micronpu_programs_start __attribute__((weak)),
    micronpu_programs_end __attribute__((weak));
extern uint32_t __stack_top, __stack_limit, __data_load, __data_start, __data_end, __bss_start, __bss_end;
extern void __libc_init_array(void);
extern int main(void);
extern void semihosting_write0(const char *text);
extern _Noreturn void semihosting_exit(int code);
extern void micronpu_npu_interrupt(void) __attribute__((weak));
void reset_handler(void);
void start(void);
void report_fault(const uint32_t *frame);
void fault_handler(void);
void systick_handler(void);
void _init(void);
void _fini(void);

#define CCR (*(volatile uint32_t *)0xE000ED14u)
#define CFSR (*(volatile uint32_t *)0xE000ED28u)

// The number of the NPU's interrupt; without micronpu_npu.c its place stays empty.
#ifndef BOARD_NPU_IRQ
#define BOARD_NPU_IRQ 56
#endif

// No stack frame, no vector instructions before the coprocessors are on.
__attribute__((naked, noreturn)) void reset_handler(void) {
  __asm volatile(
      "ldr r0, =0xE000ED88\n ldr r1, [r0]\n orr r1, r1, #(0xF << 20)\n str r1, [r0]\n dsb\n isb\n"
      "ldr r0, =__stack_top\n mov sp, r0\n"
      "b start\n");
}

static void copy(const uint32_t *from, uint32_t *to, const uint32_t *end) {
  while (from != to && to < end) {
    *to++ = *from++;
  }
}

static void write_number(const char *before, uint32_t value, uint32_t base, const char *behind) {
  char text[12];
  uint32_t at = sizeof text - 1u;
  text[at] = '\0';
  do {
    at -= 1u;
    text[at] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0u);
  semihosting_write0(before);
  semihosting_write0(&text[at]);
  semihosting_write0(behind);
}

// With -DBOARD_STACK the last line of what is printed is how deep the stack was.
#if defined(BOARD_STACK)
#define UNUSED 0xA5A5A5A5u

static void fill_stack(void) {
  uint32_t here = 0;
  const uintptr_t end = (uintptr_t)&here - 128u; // below what this function itself uses
  for (volatile uint32_t *word = &__stack_limit; (uintptr_t)word < end; ++word) {
    *word = UNUSED;
  }
}

static void write_stack(void) {
  const uint32_t *word = &__stack_limit;
  while (word < &__stack_top && *word == UNUSED) {
    ++word;
  }
  write_number("stack: ", (uint32_t)((uintptr_t)&__stack_top - (uintptr_t)word), 10u, " bytes\n");
}
#endif

__attribute__((used, noreturn)) void start(void) {
#if defined(__ARM_FEATURE_MVE)
  CCR |= 1u << 19; // low overhead loops: the branch cache
#endif
  copy(&__data_load, &__data_start, &__data_end);
  // Programs whose weights the NPU reads from SRAM; others are used in place.
  copy(&micronpu_programs_load, &micronpu_programs_start, &micronpu_programs_end);
  for (uint32_t *to = &__bss_start; to < &__bss_end;) {
    *to++ = 0;
  }
#if defined(BOARD_STACK)
  fill_stack();
#endif
  __libc_init_array();
  const int code = main();
#if defined(BOARD_STACK)
  write_stack();
#endif
  exit(code);
}

__attribute__((used)) void report_fault(const uint32_t *frame) {
  write_number("FAULT cfsr 0x", CFSR, 16u, "\n");
  write_number("pc 0x", frame[6], 16u, "\n");
  write_number("lr 0x", frame[5], 16u, "\n");
  semihosting_exit(3);
}

__attribute__((naked)) void fault_handler(void) {
  __asm volatile("mrs r0, msp\n b report_fault\n");
}

// newlib's __libc_init_array calls them; without crti.o they are not there.
void _init(void) {}
void _fini(void) {}
// Objects with destructors, such as ExecuTorch's delegates, name it.
extern void *__dso_handle;
void *__dso_handle;

volatile uint32_t systick_wraps;

void systick_handler(void) {
  systick_wraps = systick_wraps + 1u;
}

typedef union {
  const void *address;
  void (*handler)(void);
} vector;

#define FAULT {.handler = fault_handler}
extern const vector vectors[16 + BOARD_NPU_IRQ + 1];
__attribute__((section(".vectors"), used)) const vector vectors[16 + BOARD_NPU_IRQ + 1] = {
    {.address = &__stack_top}, {.handler = reset_handler}, FAULT, FAULT, FAULT, FAULT, FAULT, FAULT,
    FAULT, FAULT, FAULT, FAULT, FAULT, FAULT, FAULT, {.handler = systick_handler},
    [16 + BOARD_NPU_IRQ] = {.handler = micronpu_npu_interrupt}};
