// Damaged images against the check: every one has to be refused. The image is linked in as `image_begin`.
#include "micronpu_image.h"

#include <stdio.h>
#include <string.h>

#include "expected.h"

static _Alignas(32) uint8_t slot[IMAGE_BYTES], other[IMAGE_BYTES];
static int verified;

static int verify(const uint8_t signature[64], const void *const parts[3], const size_t sizes[3]) {
  uint8_t sum = 0; // no cryptography: a sum of the signed bytes stands in for it
  for (size_t p = 0; p < 3; ++p) {
    for (size_t i = 0; i < sizes[p]; ++i) {
      sum = (uint8_t)(sum + ((const uint8_t *)parts[p])[i]);
    }
  }
  ++verified;
  return signature[0] == sum && signature[1] == 0x5a;
}

static uint32_t random_state = 1;
static uint32_t next(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

#define EXPECT(condition)                             \
  if (!(condition)) {                                 \
    printf("WRONG: line %d: %s\n", __LINE__, #condition); \
    return 1;                                         \
  }

int main(void) {
  micronpu_image_firmware firmware = model_image_firmware;
  memcpy(slot, image_bytes, IMAGE_BYTES);
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_OK);
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, verify) == MICRONPU_IMAGE_OK && verified == 1);
  size_t bytes = 0;
  const uint8_t *program = (const uint8_t *)micronpu_image_program(slot, &bytes);
  EXPECT(bytes == PROGRAM_BYTES && program + bytes == slot + IMAGE_BYTES && memcmp(program + 4, "ET12", 4) == 0);

  for (uint32_t i = 0; i < DAMAGED; ++i) {
    const uint32_t at = next() % IMAGE_BYTES, bit = 1u << (next() % 8u);
    slot[at] ^= (uint8_t)bit;
    const micronpu_image_status status = micronpu_image_check(slot, IMAGE_BYTES, &firmware, verify);
    EXPECT(status == MICRONPU_IMAGE_NONE || status == MICRONPU_IMAGE_DAMAGED);
    slot[at] ^= (uint8_t)bit;
  }
  for (size_t cut = 0; cut < IMAGE_BYTES; cut += 97) {
    EXPECT(micronpu_image_check(slot, cut, &firmware, NULL) == MICRONPU_IMAGE_NONE);
  }
  EXPECT(micronpu_image_check(NULL, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_NONE);
  EXPECT(micronpu_image_check(slot + 1, IMAGE_BYTES - 1, &firmware, NULL) == MICRONPU_IMAGE_NONE);

  firmware.method_pool -= 1;
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_POOLS);
  firmware = model_image_firmware;
  firmware.planned[0] -= 1;
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_POOLS);
  firmware = model_image_firmware;
  firmware.kernel_count -= 1;
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_KERNEL);
  firmware = model_image_firmware;
  firmware.border ^= 1;
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_BORDER);
  firmware = model_image_firmware;
  firmware.runtime = "1.4";
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_RUNTIME);
  firmware = model_image_firmware;
  firmware.accelerator = "ethos-u55-64";
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_ACCELERATOR);
  firmware = model_image_firmware;
  firmware.memory_mode = "Sram_Only_";
  EXPECT(micronpu_image_check(slot, IMAGE_BYTES, &firmware, NULL) == MICRONPU_IMAGE_MEMORY_MODE);
  firmware = model_image_firmware;

  memcpy(other, newer_bytes, IMAGE_BYTES);
  EXPECT(micronpu_image_newest(slot, other, IMAGE_BYTES, &firmware, NULL) == other);
  EXPECT(micronpu_image_newest(other, slot, IMAGE_BYTES, &firmware, NULL) == other);
  EXPECT(micronpu_image_check(other, IMAGE_BYTES, &firmware, verify) == MICRONPU_IMAGE_SIGNATURE); // another key's
  EXPECT(micronpu_image_newest(slot, other, IMAGE_BYTES, &firmware, verify) == slot);
  other[IMAGE_BYTES - 1] ^= 1;
  EXPECT(micronpu_image_newest(slot, other, IMAGE_BYTES, &firmware, NULL) == slot);
  slot[0] = 0;
  EXPECT(micronpu_image_newest(slot, other, IMAGE_BYTES, &firmware, NULL) == NULL);
  EXPECT(strcmp(micronpu_image_text(MICRONPU_IMAGE_OK), "the image can be used") == 0);
  EXPECT(strcmp(micronpu_image_text((micronpu_image_status)77), "an unknown status") == 0);
  puts("DONE");
  return 0;
}
