// Registers and commands of Ethos-U85, their names and bit fields.
//
// Facts from the public register description of Vela's regor (ethos_u85_interface.hpp) and from Mesa's ethosu driver.
#pragma once

#include <cstdint>

namespace ethosu::u85 {

// X(code, name)
#define ETHOSU_U85_CMD0(X) \
  X(0x000, OP_STOP) \
  X(0x001, OP_IRQ) \
  X(0x002, OP_CONV) \
  X(0x003, OP_DEPTHWISE) \
  X(0x005, OP_POOL) \
  X(0x006, OP_ELEMENTWISE) \
  X(0x007, OP_RESIZE) \
  X(0x010, OP_DMA_START) \
  X(0x011, OP_DMA_WAIT) \
  X(0x012, OP_KERNEL_WAIT) \
  X(0x013, OP_PMU_MASK) \
  X(0x100, IFM_PAD_TOP) \
  X(0x101, IFM_PAD_LEFT) \
  X(0x102, IFM_PAD_RIGHT) \
  X(0x103, IFM_PAD_BOTTOM) \
  X(0x104, IFM_DEPTH_M1) \
  X(0x105, IFM_PRECISION) \
  X(0x107, IFM_UPSCALE) \
  X(0x108, IFM_BROADCAST) \
  X(0x109, IFM_ZERO_POINT) \
  X(0x10A, IFM_WIDTH0_M1) \
  X(0x10B, IFM_HEIGHT0_M1) \
  X(0x10C, IFM_HEIGHT1_M1) \
  X(0x10F, IFM_REGION) \
  X(0x111, OFM_WIDTH_M1) \
  X(0x112, OFM_HEIGHT_M1) \
  X(0x113, OFM_DEPTH_M1) \
  X(0x114, OFM_PRECISION) \
  X(0x115, OFM_BLK_WIDTH_M1) \
  X(0x116, OFM_BLK_HEIGHT_M1) \
  X(0x117, OFM_BLK_DEPTH_M1) \
  X(0x118, OFM_ZERO_POINT) \
  X(0x11A, OFM_WIDTH0_M1) \
  X(0x11B, OFM_HEIGHT0_M1) \
  X(0x11C, OFM_HEIGHT1_M1) \
  X(0x11F, OFM_REGION) \
  X(0x120, KERNEL_WIDTH_M1) \
  X(0x121, KERNEL_HEIGHT_M1) \
  X(0x122, KERNEL_STRIDE) \
  X(0x124, ACC_FORMAT) \
  X(0x125, ACTIVATION) \
  X(0x126, ACTIVATION_MIN) \
  X(0x127, ACTIVATION_MAX) \
  X(0x128, WEIGHT_REGION) \
  X(0x129, SCALE_REGION) \
  X(0x12A, RESIZE_X_SCALE_N_M1) \
  X(0x12B, RESIZE_Y_SCALE_N_M1) \
  X(0x12C, RESIZE_X_OFFSET) \
  X(0x12D, RESIZE_Y_OFFSET) \
  X(0x12E, WEIGHT_FORMAT) \
  X(0x12F, BLOCKDEP) \
  X(0x130, DMA0_SRC_REGION) \
  X(0x131, DMA0_DST_REGION) \
  X(0x132, DMA0_SIZE0) \
  X(0x133, DMA0_SIZE1) \
  X(0x134, DMA0_IDX_REGION) \
  X(0x180, IFM2_BROADCAST) \
  X(0x185, IFM2_PRECISION) \
  X(0x189, IFM2_ZERO_POINT) \
  X(0x18A, IFM2_WIDTH0_M1) \
  X(0x18B, IFM2_HEIGHT0_M1) \
  X(0x18C, IFM2_HEIGHT1_M1) \
  X(0x18F, IFM2_REGION)

enum Cmd0 : unsigned {
#define X(code, name) name = code,
  ETHOSU_U85_CMD0(X)
#undef X
};

#define ETHOSU_U85_CMD1(X) \
  X(0x000, IFM_BASE0) \
  X(0x001, IFM_BASE1) \
  X(0x002, IFM_BASE2) \
  X(0x003, IFM_BASE3) \
  X(0x004, IFM_STRIDE_X) \
  X(0x005, IFM_STRIDE_Y) \
  X(0x006, IFM_STRIDE_C) \
  X(0x010, OFM_BASE0) \
  X(0x011, OFM_BASE1) \
  X(0x012, OFM_BASE2) \
  X(0x013, OFM_BASE3) \
  X(0x014, OFM_STRIDE_X) \
  X(0x015, OFM_STRIDE_Y) \
  X(0x016, OFM_STRIDE_C) \
  X(0x020, WEIGHT_BASE) \
  X(0x021, WEIGHT_LENGTH) \
  X(0x022, SCALE_BASE) \
  X(0x023, SCALE_LENGTH) \
  X(0x024, OFM_SCALE) \
  X(0x025, IFM_SCALE) \
  X(0x026, IFM2_SCALE) \
  X(0x027, OP_SCALAR) \
  X(0x030, DMA0_SRC) \
  X(0x031, DMA0_DST) \
  X(0x032, DMA0_LEN) \
  X(0x033, DMA0_SRC_STRIDE0) \
  X(0x034, DMA0_SRC_STRIDE1) \
  X(0x035, DMA0_DST_STRIDE0) \
  X(0x036, DMA0_DST_STRIDE1) \
  X(0x037, DMA0_IDX) \
  X(0x038, DMA0_IDX_MAX) \
  X(0x039, DMA0_IDX_SKIP1) \
  X(0x080, IFM2_BASE0) \
  X(0x081, IFM2_BASE1) \
  X(0x082, IFM2_BASE2) \
  X(0x083, IFM2_BASE3) \
  X(0x084, IFM2_STRIDE_X) \
  X(0x085, IFM2_STRIDE_Y) \
  X(0x086, IFM2_STRIDE_C) \
  X(0x090, WEIGHT1_BASE) \
  X(0x091, WEIGHT1_LENGTH) \
  X(0x092, WEIGHT2_BASE) \
  X(0x093, WEIGHT2_LENGTH) \
  X(0x094, WEIGHT3_BASE) \
  X(0x095, WEIGHT3_LENGTH) \
  X(0x096, RESIZE_X_STEP) \
  X(0x097, RESIZE_Y_STEP) \
  X(0x100, OP_BRANCH)

enum Cmd1 : unsigned {
#define X(code, name) name = code,
  ETHOSU_U85_CMD1(X)
#undef X
};

// POOL's parameter.
enum PoolMode : uint32_t {
  POOL_MAX = 0, POOL_AVERAGE, POOL_REDUCE_SUM, POOL_SUM, POOL_NONE, POOL_MIN, POOL_ARGMAX_X, POOL_ARGMAX_Y
};

// ELEMENTWISE's parameter.
enum ElementwiseMode : uint32_t {
  EW_MUL = 0, EW_ADD, EW_SUB, EW_MIN, EW_MAX, EW_LRELU, EW_ABS, EW_CLZ, EW_SHR, EW_SHL, EW_LSR, EW_DIV,
  EW_CMP_EQ = 16, EW_CMP_NE, EW_CMP_GE, EW_CMP_GT,
  EW_AND = 33, EW_OR, EW_XOR, EW_NOT,
  EW_AND_NOT = 42
};

// RESIZE's parameter.
enum ResizeMode : uint32_t { RESIZE_BILINEAR = 0, RESIZE_REPLICATE = 1, RESIZE_NEAREST = 2 };

// ACTIVATION, bits 0 to 4.
enum Activation : uint32_t {
  ACT_NONE = 0,
  ACT_TABLE_U8_U8 = 1,
  ACT_TABLE_S8_S8 = 4,
  ACT_TABLE_S8_S16 = 5,
  ACT_TABLE_S8_S32 = 7,
  ACT_TABLE_S16_S16 = 8,
  ACT_TABLE_S16_S32 = 9,
  ACT_TANH = 10,
  ACT_SIGMOID = 11,
};

// IFM_, IFM2_ and OFM_PRECISION, bits 14 and 15.
enum Storage : uint32_t { STORAGE_TILES_2X2 = 0, STORAGE_TILES_3X1 = 1, STORAGE_CHAINED = 2, STORAGE_NONE = 3 };

// IFM_ and IFM2_BROADCAST.
enum Broadcast : uint32_t { BROADCAST_H = 1, BROADCAST_W = 2, BROADCAST_C = 4, BROADCAST_SCALAR = 8 };

// ACC_FORMAT, bits 4 and 5.
enum AccumulatorInput : uint32_t { ACC_RESET = 0, ACC_KEEP = 1, ACC_IFM2 = 2 };

// Names of registers and commands; nullptr for unknown codes.
const char* name_of_cmd0(unsigned code);
const char* name_of_cmd1(unsigned code);

} // namespace ethosu::u85
