// Asks the host for a file and for a command, which no firmware is given.
#include <stdint.h>
#include <stdio.h>

static intptr_t call(uintptr_t operation, const void *argument) {
  register uintptr_t r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = argument;
  __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return (intptr_t)r0;
}

int main(void) {
  static const char name[] = "stolen.txt", command[] = "touch stolen.txt";
  const uintptr_t open[3] = {(uintptr_t)name, 4 /* "w" */, sizeof name - 1};
  const uintptr_t run[2] = {(uintptr_t)command, sizeof command - 1};
  printf("open %d\n", (int)call(0x01, open));
  printf("system %d\n", (int)call(0x12, run));
  return 5;
}
