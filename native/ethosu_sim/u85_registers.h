// Registers and commands of Ethos-U85, their names, and what their bits mean.
//
// Facts from the public register description of Vela's regor (ethos_u85_interface.hpp) and from Mesa's ethosu driver.
#pragma once

#include <cstdint>

namespace ethosu::u85 {

enum Cmd0 : unsigned {
  OP_STOP = 0x000,
  OP_IRQ = 0x001,
  OP_CONV = 0x002,
  OP_DEPTHWISE = 0x003,
  OP_POOL = 0x005,
  OP_ELEMENTWISE = 0x006,
  OP_RESIZE = 0x007,
  OP_DMA_START = 0x010,
  OP_DMA_WAIT = 0x011,
  OP_KERNEL_WAIT = 0x012,
  OP_PMU_MASK = 0x013,
  IFM_PAD_TOP = 0x100,
  IFM_PAD_LEFT = 0x101,
  IFM_PAD_RIGHT = 0x102,
  IFM_PAD_BOTTOM = 0x103,
  IFM_DEPTH_M1 = 0x104,
  IFM_PRECISION = 0x105,
  IFM_UPSCALE = 0x107,
  IFM_BROADCAST = 0x108,
  IFM_ZERO_POINT = 0x109,
  IFM_WIDTH0_M1 = 0x10A,
  IFM_HEIGHT0_M1 = 0x10B,
  IFM_HEIGHT1_M1 = 0x10C,
  IFM_REGION = 0x10F,
  OFM_WIDTH_M1 = 0x111,
  OFM_HEIGHT_M1 = 0x112,
  OFM_DEPTH_M1 = 0x113,
  OFM_PRECISION = 0x114,
  OFM_BLK_WIDTH_M1 = 0x115,
  OFM_BLK_HEIGHT_M1 = 0x116,
  OFM_BLK_DEPTH_M1 = 0x117,
  OFM_ZERO_POINT = 0x118,
  OFM_WIDTH0_M1 = 0x11A,
  OFM_HEIGHT0_M1 = 0x11B,
  OFM_HEIGHT1_M1 = 0x11C,
  OFM_REGION = 0x11F,
  KERNEL_WIDTH_M1 = 0x120,
  KERNEL_HEIGHT_M1 = 0x121,
  KERNEL_STRIDE = 0x122,
  ACC_FORMAT = 0x124,
  ACTIVATION = 0x125,
  ACTIVATION_MIN = 0x126,
  ACTIVATION_MAX = 0x127,
  WEIGHT_REGION = 0x128,
  SCALE_REGION = 0x129,
  RESIZE_X_SCALE_N_M1 = 0x12A,
  RESIZE_Y_SCALE_N_M1 = 0x12B,
  RESIZE_X_OFFSET = 0x12C,
  RESIZE_Y_OFFSET = 0x12D,
  WEIGHT_FORMAT = 0x12E,
  BLOCKDEP = 0x12F,
  DMA0_SRC_REGION = 0x130,
  DMA0_DST_REGION = 0x131,
  DMA0_SIZE0 = 0x132,
  DMA0_SIZE1 = 0x133,
  DMA0_IDX_REGION = 0x134,
  IFM2_BROADCAST = 0x180,
  IFM2_PRECISION = 0x185,
  IFM2_ZERO_POINT = 0x189,
  IFM2_WIDTH0_M1 = 0x18A,
  IFM2_HEIGHT0_M1 = 0x18B,
  IFM2_HEIGHT1_M1 = 0x18C,
  IFM2_REGION = 0x18F,
};

enum Cmd1 : unsigned {
  IFM_BASE0 = 0x000,
  IFM_STRIDE_X = 0x004,
  IFM_STRIDE_Y = 0x005,
  IFM_STRIDE_C = 0x006,
  OFM_BASE0 = 0x010,
  OFM_STRIDE_X = 0x014,
  OFM_STRIDE_Y = 0x015,
  OFM_STRIDE_C = 0x016,
  WEIGHT_BASE = 0x020,
  WEIGHT_LENGTH = 0x021,
  SCALE_BASE = 0x022,
  SCALE_LENGTH = 0x023,
  OFM_SCALE = 0x024,
  IFM_SCALE = 0x025,
  IFM2_SCALE = 0x026,
  OP_SCALAR = 0x027,
  DMA0_SRC = 0x030,
  DMA0_DST = 0x031,
  DMA0_LEN = 0x032,
  DMA0_SRC_STRIDE0 = 0x033,
  DMA0_SRC_STRIDE1 = 0x034,
  DMA0_DST_STRIDE0 = 0x035,
  DMA0_DST_STRIDE1 = 0x036,
  DMA0_IDX = 0x037,
  DMA0_IDX_MAX = 0x038,
  DMA0_IDX_SKIP1 = 0x039,
  IFM2_BASE0 = 0x080,
  IFM2_STRIDE_X = 0x084,
  IFM2_STRIDE_Y = 0x085,
  IFM2_STRIDE_C = 0x086,
  WEIGHT1_BASE = 0x090,
  WEIGHT1_LENGTH = 0x091,
  WEIGHT2_BASE = 0x092,
  WEIGHT2_LENGTH = 0x093,
  WEIGHT3_BASE = 0x094,
  WEIGHT3_LENGTH = 0x095,
  RESIZE_X_STEP = 0x096,
  RESIZE_Y_STEP = 0x097,
  OP_BRANCH = 0x100,
};

// POOL's parameter.
enum PoolMode : uint32_t {
  POOL_MAX = 0,
  POOL_AVERAGE = 1,
  POOL_REDUCE_SUM = 2,
  POOL_SUM = 3,
  POOL_NONE = 4,
  POOL_MIN = 5,
  POOL_ARGMAX_X = 6,
  POOL_ARGMAX_Y = 7,
};

// ELEMENTWISE's parameter.
enum ElementwiseMode : uint32_t {
  EW_MUL = 0,
  EW_ADD = 1,
  EW_SUB = 2,
  EW_MIN = 3,
  EW_MAX = 4,
  EW_LRELU = 5,
  EW_ABS = 6,
  EW_CLZ = 7,
  EW_SHR = 8,
  EW_SHL = 9,
  EW_LSR = 10,
  EW_DIV = 11,
  EW_CMP_EQ = 16,
  EW_CMP_NE = 17,
  EW_CMP_GE = 18,
  EW_CMP_GT = 19,
  EW_AND = 33,
  EW_OR = 34,
  EW_XOR = 35,
  EW_NOT = 36,
  EW_AND_NOT = 42,
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

// Names of registers and commands, nullptr where there is none.
const char* name_of_cmd0(unsigned code);
const char* name_of_cmd1(unsigned code);

} // namespace ethosu::u85
