/* Prints, and ends as its only argument says: by an exit, by a fault, or not at all. */
#include <stdio.h>
#include <stdlib.h>

#ifndef ENDING
#define ENDING 0
#endif

__attribute__((noinline)) static int reads_nothing(void) {
  return *(volatile int *)0xF0000000u;
}

int main(void) {
  printf("PASS: 2 vectors, 0 elements differ\n");
#if ENDING == 1
  return reads_nothing();
#elif ENDING == 2
  for (;;) {
  }
#endif
  (void)reads_nothing;
  return ENDING;
}
