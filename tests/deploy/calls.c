// The C interface of a folder with a program that holds a state (`first`) and one that holds none (`second`).
#include "first.h"
#include "first_vectors.h"
#include "second.h"
#include "second_vectors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int good, const char *what) {
  if (!good) {
    printf("WRONG: %s\n", what);
    exit(1);
  }
}

static _Alignas(32) unsigned char copy[SECOND_PTE_BYTES + 32];
static float state_out[2][FIRST_OUTPUT_0_ELEMENTS];
static unsigned char out[SECOND_OUTPUT_0_BYTES + 64];

int main(void) {
  char text[160];
  const void *in_first[FIRST_INPUTS] = {first_vector_input(0, 0)};
  void *to_first[FIRST_OUTPUTS] = {state_out[0]};
  const void *in_second[SECOND_INPUTS] = {second_vector_input(0, 0)};
  void *to_second[SECOND_OUTPUTS] = {out};

  check(micronpu_program_count == 2 && micronpu_find("second") != NULL, "the table of programs");
  check(micronpu_find("third") == NULL && micronpu_find(NULL) == NULL, "a program that does not exist");
  check(second_invoke(in_second, to_second) == MICRONPU_NOT_READY, "a call before init");
  check(second_reset() == MICRONPU_NOT_READY, "a reset before init");
  micronpu_error_text(second_error(), text, sizeof text);
  check(strcmp(text, "init was not called, or did not succeed") == 0, text);

  memcpy(copy, second_pte, SECOND_PTE_BYTES);
  check(second_init_from(copy + 1, SECOND_PTE_BYTES) == MICRONPU_PROGRAM, "a program that is not aligned");
  check(second_init_from(NULL, 0) == MICRONPU_ARGUMENT, "no program");
  check(second_init_from(copy, 40) == MICRONPU_PROGRAM, "a program that is cut");
  copy[4] ^= 1; // its identifier
  check(second_init_from(copy, SECOND_PTE_BYTES) == MICRONPU_PROGRAM, "a damaged program");
  micronpu_error_text(second_error(), text, sizeof text);
  check(strstr(text, "ExecuTorch's error 0x") != NULL, text);
  check(second_invoke(in_second, to_second) == MICRONPU_PROGRAM, "a call of what did not load");
  copy[4] ^= 1;
  check(second_init_from(copy, SECOND_PTE_BYTES) == MICRONPU_OK, "the program from another place");
  check(second_invoke(NULL, to_second) == MICRONPU_ARGUMENT, "no inputs");
  in_second[0] = NULL;
  check(second_invoke(in_second, to_second) == MICRONPU_ARGUMENT, "an input that is NULL");
  in_second[0] = second_vector_input(0, 0);

  check(first_init() == MICRONPU_OK, "the other program");
  for (size_t round = 0; round < 2; ++round) { // the second program runs between steps of the first
    to_first[0] = state_out[round];
    for (size_t vector = 0; vector < 3; ++vector) {
      in_first[0] = first_vector_input(vector, 0);
      to_first[0] = NULL; // is refused before the states move, or the step that follows would differ
      check(first_invoke(in_first, to_first) == MICRONPU_ARGUMENT, "an output that is NULL");
      to_first[0] = state_out[round];
      check(first_invoke(in_first, to_first) == MICRONPU_OK, "a step");
      check(first_compare(vector, 0, state_out[round], NULL) == 0, "a step's result");
      check(second_invoke(in_second, to_second) == MICRONPU_OK, "the program beside");
      check(second_compare(0, 0, out, NULL) == 0, "its result");
    }
    check(first_reset() == MICRONPU_OK, "a reset");
  }
  check(memcmp(state_out[0], state_out[1], sizeof state_out[0]) == 0, "the sequence begins anew");
  check(second_init() == MICRONPU_OK && second_init() == MICRONPU_OK, "init again");
  check(second_invoke(in_second, to_second) == MICRONPU_OK && second_compare(0, 0, out, NULL) == 0, "after init");
  check(strncmp(first_version(), "first ", 6) == 0 && strstr(first_version(), "micronpu") != NULL, "the version");
  check(micronpu_error_text(first_error(), text, 3) == 2 && text[2] == '\0', "a text that is cut");
  check(strcmp(micronpu_status_text((micronpu_status)99), "an unknown status") == 0, "an unknown status");
  const micronpu_error small = {MICRONPU_TEMPORARY_POOL, 212, 0x21};
  micronpu_error_text(&small, text, sizeof text);
  check(strcmp(text, "the pool of the temporary allocator is too small by 212 bytes (ExecuTorch's error 0x21)") == 0, text);
  puts("DONE");
  return 0;
}
