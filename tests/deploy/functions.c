// The small functions of a deployed folder on rows of made-up numbers: a checksum for each row, which Python compares.
#include "micronpu_nms.h"
#include "micronpu_resize.h"
#include "micronpu_smooth.h"
#include "micronpu_ssd_decode.h"
#include "micronpu_topk.h"

#include <stdio.h>
#include <string.h>

static uint32_t state;
static uint32_t number(uint32_t below) { // a full-period generator (Numerical Recipes), whose upper bits are used
  state = 1664525u * state + 1013904223u;
  return (state >> 8) % below;
}

static uint32_t sum;
static void add(uint32_t value) { // FNV-1a, a byte at a time
  for (unsigned i = 0; i < 4u; ++i) {
    sum = (sum ^ (value >> 8u * i & 255u)) * 16777619u;
  }
}

static void resize_row(void) {
  static uint8_t pixels[24 * 24 * 3];
  static int8_t result[20 * 20 * 3], table[3 * 256];
  micronpu_picture picture = {pixels, 1u + number(24), 1u + number(24), 1u + number(3), 0, 0, 0, 0};
  picture.part_width = 1u + number(picture.width);
  picture.part_height = 1u + number(picture.height);
  picture.x = number(picture.width - picture.part_width + 1u);
  picture.y = number(picture.height - picture.part_height + 1u);
  const uint32_t width = 1u + number(20), height = 1u + number(20), how = number(6);
  for (size_t i = 0; i < (size_t)picture.width * picture.height * picture.channels; ++i) {
    pixels[i] = (uint8_t)number(256);
  }
  for (size_t i = 0; i < sizeof table; ++i) {
    table[i] = (int8_t)((int32_t)number(256) - 128);
  }
  const int done = micronpu_resize(&picture, result, width, height, how % 3u == 0u ? NULL : table, how % 3u == 2u, how > 2u);
  add((uint32_t)done);
  for (size_t i = 0; i < (size_t)width * height * picture.channels; ++i) {
    add((uint32_t)(int32_t)result[i]);
  }
}

enum { MOST_BOXES = 12, CLASSES = 3 };

static void decode_row(void) {
  static int8_t deltas[MOST_BOXES][4];
  static int32_t anchors[MOST_BOXES][4], boxes[MOST_BOXES][4];
  const size_t count = 1u + number(MOST_BOXES);
  const micronpu_ssd_constants constants = {1 + (int32_t)number(1u << 24), (int32_t)number(256) - 128,
      1 + (int32_t)number(1u << 24), 1 + (int32_t)number(1u << 24)};
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < 4u; ++j) {
      deltas[i][j] = (int8_t)((int32_t)number(256) - 128);
      anchors[i][j] = (int32_t)number(131073);
    }
  }
  micronpu_ssd_decode((const int8_t (*)[4])deltas, (const int32_t (*)[4])anchors, boxes, count, &constants);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < 4u; ++j) {
      add((uint32_t)boxes[i][j]);
    }
  }
}

static void nms_row(void) {
  static int32_t boxes[MOST_BOXES][4];
  static int8_t scores[MOST_BOXES * CLASSES];
  micronpu_found found[MOST_BOXES];
  const size_t count = number(MOST_BOXES + 1u), most = number(MOST_BOXES);
  const uint32_t overlap = number(65537);
  const int8_t threshold = (int8_t)((int32_t)number(8) - 4);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < 2u; ++j) { // corners of a coarse grid: equal boxes, and equal scores
      boxes[i][j] = (int32_t)(number(4) * 8192u);
      boxes[i][j + 2u] = boxes[i][j] + (int32_t)(number(5) * 8192u);
    }
    for (size_t c = 0; c < CLASSES; ++c) {
      scores[i * CLASSES + c] = (int8_t)((int32_t)number(16) - 8);
    }
  }
  const size_t kept =
      micronpu_nms((const int32_t (*)[4])boxes, scores, count, CLASSES, threshold, overlap, found, most);
  add((uint32_t)kept);
  for (size_t i = 0; i < kept; ++i) {
    add(found[i].box);
    add(found[i].kind);
    add((uint32_t)(int32_t)found[i].score);
  }
}

static void smooth_row(void) {
  int8_t history[8 * 5], scores[5];
  micronpu_smooth_state smooth = {1u + number(5), 1u + number(8), (int32_t)number(100) - 50, number(4), 0, history, 0, 0};
  smooth.ignore = number(smooth.classes);
  for (unsigned call = 0; call < 30u; ++call) {
    for (uint32_t c = 0; c < smooth.classes; ++c) {
      scores[c] = (int8_t)((int32_t)number(256) - 128);
    }
    add((uint32_t)micronpu_smooth(&smooth, scores));
  }
}

static void topk_row(void) {
  int8_t narrow[40];
  int16_t wide[40];
  float floats[40];
  uint32_t places[40];
  const size_t count = number(41), most = number(41), lists = 3;
  for (size_t i = 0; i < count; ++i) {
    narrow[i] = (int8_t)((int32_t)number(16) - 8); // equal ones
    wide[i] = (int16_t)((int32_t)number(65536) - 32768);
    floats[i] = (float)((int32_t)number(1000) - 500) * 0.125f;
    if (number(8) == 0u) {
      floats[i] = __builtin_nanf("");
    }
  }
  for (size_t list = 0; list < lists; ++list) {
    const size_t kept = list == 0u ? micronpu_topk_int8(narrow, count, places, most)
        : list == 1u               ? micronpu_topk_int16(wide, count, places, most)
                                   : micronpu_topk_float(floats, count, places, most);
    add((uint32_t)kept);
    for (size_t i = 0; i < kept; ++i) {
      add(places[i]);
    }
  }
}

int main(void) {
  static void (*const rows[])(void) = {resize_row, decode_row, nms_row, smooth_row, topk_row};
  for (size_t function = 0; function < 5u; ++function) {
    for (uint32_t row = 0; row < 1000u; ++row) {
      state = (uint32_t)function * 100000u + row;
      sum = 2166136261u;
      rows[function]();
      printf("%lx\n", (unsigned long)sum);
    }
  }
  return 0;
}
