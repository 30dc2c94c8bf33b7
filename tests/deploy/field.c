// A firmware in the field: two slots with images, of which it runs the newest that it can, without being built anew.
// The slots, and a vector, stand in memory: the tests put them there.  What runs a program here is no ExecuTorch, but a
// reader of the payload of the one call of the NPU that the programs of the test consist of.
#include "micronpu_npu.h"
#include "model.h"

#include <stdio.h>
#include <string.h>

#include "ethosu_driver.h"

#define SLOT_A ((const void *)0x70400000)
#define SLOT_B ((const void *)0x70500000)
#define SLOT_BYTES 0x100000u
#define INPUT ((const uint8_t *)0x70600000)

extern uint8_t model_temporary_pool[];

static uint32_t clock_now;
uint32_t micronpu_milliseconds(void) {
  return clock_now++;
}

static unsigned switched;
void micronpu_npu_power(size_t number, int is_on) {
  (void)number;
  switched += is_on != 0;
}

static uint32_t word(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

// A block of the payload, which begins with its name in 16 bytes and its size.
static const uint8_t *block(const uint8_t *payload, const char *name) {
  while (strncmp((const char *)payload, name, 16) != 0) {
    payload += 32u + (word(payload + 16) + 15u) / 16u * 16u;
  }
  return payload;
}

static int run(const uint8_t *program, size_t bytes) {
  const uint8_t *payload = NULL;
  for (size_t at = 0; at + 16u < bytes && payload == NULL; at += 16u) {
    payload = memcmp(program + at, "vela_bin_stream", 16) == 0 ? program + at : NULL;
  }
  const uint8_t *commands = block(payload, "cmd_data"), *constants = block(payload, "weight_data");
  const uint8_t *input = block(payload, "inputs") + 32 + 4, *output = block(payload, "outputs") + 32 + 4;
  uint8_t *scratch = model_temporary_pool;
  memcpy(scratch + word(input + 28), INPUT, MODEL_INPUT_0_BYTES);
  uint64_t bases[3] = {(uintptr_t)(constants + 32), (uintptr_t)scratch, (uintptr_t)scratch};
  const size_t sizes[3] = {word(constants + 16), MODEL_TEMPORARY_POOL_BYTES, MODEL_TEMPORARY_POOL_BYTES};
  // The stream begins behind what Arm's driver reads: a magic number, the NPU that it is for, and its length.
  const uint8_t *stream = commands + 36;
  while (stream[0] != 2u) {
    stream += stream[0] == 1u ? 12 : 4;
  }
  const uint32_t length = (word(stream) >> 16 | (word(stream) & 0xFF00u) << 8) * 4u;
  micronpu_npu_rest();
  micronpu_npu_use(0, NULL, 0);
  const int failed = ethosu_invoke_v3(ethosu_reserve_driver(), stream + 4, (int)length, bases, sizes, 3, NULL);
  micronpu_npu_rest();
  if (failed != 0) {
    printf("FAIL: %s\n", micronpu_status_text(micronpu_npu_why()));
    return 2;
  }
  const int8_t *result = (const int8_t *)(scratch + word(output + 28));
  for (size_t i = 0; i < MODEL_OUTPUT_0_ELEMENTS; ++i) {
    printf("%d ", result[i]);
  }
  printf("\nclock on %u times\n", switched);
#if defined(MICRONPU_RUNS)
  printf("micronpu-npu-run model 0 0 %lu\nPASS: 1 vectors, 0 elements differ\n", (unsigned long)micronpu_print_npu("model", 0));
#endif
  return 0;
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  const void *slots[] = {SLOT_A, SLOT_B};
  for (int i = 0; i < 2; ++i) {
    printf("slot %c: %s\n", 'a' + i,
        micronpu_image_text(micronpu_image_check(slots[i], SLOT_BYTES, &model_image_firmware, NULL)));
  }
  const void *image = micronpu_image_newest(SLOT_A, SLOT_B, SLOT_BYTES, &model_image_firmware, NULL);
  if (image == NULL) {
    puts("no program");
    return 3;
  }
  size_t bytes = 0;
  const void *program = micronpu_image_program(image, &bytes);
  const micronpu_status status = micronpu_npu_use(0, program, bytes);
  if (status != MICRONPU_OK) {
    printf("FAIL: %s\n", micronpu_status_text(status));
    return 4;
  }
  printf("version %.15s: ", (const char *)image + 44);
  return run((const uint8_t *)program, bytes);
}
