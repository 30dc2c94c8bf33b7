// What of a deployed folder runs without ExecuTorch: functions, vectors, comparison, the program as it stands in memory.
#include "model.h"
#include "model_vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expected.h"

static int lines;
static char first[128];

static void keep(const char *line) {
  if (lines++ == 0 && first[0] == 0) {
    strncpy(first, line, sizeof first - 1);
  }
}

static int check(int good, const char *what) {
  if (!good) {
    printf("WRONG: %s\n", what);
    exit(1);
  }
  return good;
}

int main(void) {
  check((uintptr_t)model_pte % MODEL_PTE_ALIGNMENT == 0, "alignment of the program");
  uint32_t low = 1, high = 0; // Adler-32
  for (size_t i = 0; i < MODEL_PTE_BYTES; ++i) {
    low = (low + model_pte[i]) % 65521;
    high = (high + low) % 65521;
  }
  check((high << 16 | low) == EXPECTED_ADLER, "bytes of the program");
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
    check(model_quantize_input_0(numbers[i]) == integers[i], "quantize");
  }
  check(model_quantize_input_0(NAN) == INT8_MIN, "quantize of what is no number");
  check(model_quantize_input_0(INFINITY) == INT8_MAX, "quantize of infinity");
  for (int q = -128; q < 128; ++q) {
    check(model_dequantize_output_0((int8_t)q) == reals[q + 128], "dequantize");
  }
  int8_t output[MODEL_OUTPUT_0_ELEMENTS];
  for (size_t v = 0; v < MODEL_VECTORS; ++v) {
    check(model_vector_input(v, 0) != NULL, "input of a vector");
    memcpy(output, model_vector_output(v, 0), sizeof output);
    check(model_compare(v, 0, output, keep) == 0 && lines == 0, "a vector that is right");
    output[3] = (int8_t)(output[3] ^ 1);
    output[5] = (int8_t)(output[5] ^ 4);
    check(model_compare(v, 0, output, keep) == 2 && lines == 1, "a vector that is wrong");
    lines = 0;
  }
  check(model_compare(MODEL_VECTORS, 0, output, keep) == 1, "a vector that does not exist");
  printf("%sDONE %d vectors\n", first, MODEL_VECTORS);
  return 0;
}
