// Calls methods of one program in turn, and prints what they give: bytes in hexadecimal, a line each.
#include "notes.h"
#include "notes_forward.h"
#include "notes_peek.h"

#include <stdio.h>

static void show(const float *values) {
  const unsigned char *bytes = (const unsigned char *)values;
  for (size_t i = 0; i < NOTES_PEEK_OUTPUT_0_BYTES; ++i) {
    printf("%02x", bytes[i]);
  }
  puts("");
}

int main(void) {
  static float in[4], out[4];
  const void *const inputs[] = {in};
  void *const outputs[] = {out};
  if (notes_forward_invoke(inputs, outputs) != MICRONPU_NOT_READY || notes_init() != MICRONPU_OK) {
    return 1;
  }
  for (int round = 0; round < 2; ++round) {
    for (int call = 0; call < 3; ++call) {
      for (int i = 0; i < 4; ++i) {
        in[i] = (float)(call + i) * 0.25f;
      }
      if (notes_forward_invoke(inputs, outputs) != MICRONPU_OK) {
        return 2;
      }
      if (notes_peek_invoke(inputs, outputs) != MICRONPU_OK) {
        return 3;
      }
      show(out);
    }
    if (notes_reset() != MICRONPU_OK) {
      return 4;
    }
  }
  return 0;
}
