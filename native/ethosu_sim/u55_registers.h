// Names of the registers and operations of Ethos-U55 and Ethos-U65. Source of the numbers: ethos_u55_regs.py of Vela's
// public Python package.
#pragma once

namespace ethosu::u55 {

// X(code, NAME, what): what is `all`, or `u65` for registers that Ethos-U55 lacks.
#define ETHOSU_U55_CMD0(X) \
  X(0x000, NPU_OP_STOP, all) \
  X(0x001, NPU_OP_IRQ, all) \
  X(0x002, NPU_OP_CONV, all) \
  X(0x003, NPU_OP_DEPTHWISE, all) \
  X(0x005, NPU_OP_POOL, all) \
  X(0x006, NPU_OP_ELEMENTWISE, all) \
  X(0x010, NPU_OP_DMA_START, all) \
  X(0x011, NPU_OP_DMA_WAIT, all) \
  X(0x012, NPU_OP_KERNEL_WAIT, all) \
  X(0x013, NPU_OP_PMU_MASK, all) \
  X(0x100, IFM_PAD_TOP, all) \
  X(0x101, IFM_PAD_LEFT, all) \
  X(0x102, IFM_PAD_RIGHT, all) \
  X(0x103, IFM_PAD_BOTTOM, all) \
  X(0x104, IFM_DEPTH_M1, all) \
  X(0x105, IFM_PRECISION, all) \
  X(0x107, IFM_UPSCALE, all) \
  X(0x109, IFM_ZERO_POINT, all) \
  X(0x10A, IFM_WIDTH0_M1, all) \
  X(0x10B, IFM_HEIGHT0_M1, all) \
  X(0x10C, IFM_HEIGHT1_M1, all) \
  X(0x10D, IFM_IB_END, all) \
  X(0x10F, IFM_REGION, all) \
  X(0x111, OFM_WIDTH_M1, all) \
  X(0x112, OFM_HEIGHT_M1, all) \
  X(0x113, OFM_DEPTH_M1, all) \
  X(0x114, OFM_PRECISION, all) \
  X(0x115, OFM_BLK_WIDTH_M1, all) \
  X(0x116, OFM_BLK_HEIGHT_M1, all) \
  X(0x117, OFM_BLK_DEPTH_M1, all) \
  X(0x118, OFM_ZERO_POINT, all) \
  X(0x11A, OFM_WIDTH0_M1, all) \
  X(0x11B, OFM_HEIGHT0_M1, all) \
  X(0x11C, OFM_HEIGHT1_M1, all) \
  X(0x11F, OFM_REGION, all) \
  X(0x120, KERNEL_WIDTH_M1, all) \
  X(0x121, KERNEL_HEIGHT_M1, all) \
  X(0x122, KERNEL_STRIDE, all) \
  X(0x123, PARALLEL_MODE, u65) \
  X(0x124, ACC_FORMAT, all) \
  X(0x125, ACTIVATION, all) \
  X(0x126, ACTIVATION_MIN, all) \
  X(0x127, ACTIVATION_MAX, all) \
  X(0x128, WEIGHT_REGION, all) \
  X(0x129, SCALE_REGION, all) \
  X(0x12D, AB_START, all) \
  X(0x12F, BLOCKDEP, all) \
  X(0x130, DMA0_SRC_REGION, all) \
  X(0x131, DMA0_DST_REGION, all) \
  X(0x132, DMA0_SIZE0, u65) \
  X(0x133, DMA0_SIZE1, u65) \
  X(0x180, IFM2_BROADCAST, all) \
  X(0x181, IFM2_SCALAR, all) \
  X(0x185, IFM2_PRECISION, all) \
  X(0x189, IFM2_ZERO_POINT, all) \
  X(0x18A, IFM2_WIDTH0_M1, all) \
  X(0x18B, IFM2_HEIGHT0_M1, all) \
  X(0x18C, IFM2_HEIGHT1_M1, all) \
  X(0x18D, IFM2_IB_START, all) \
  X(0x18F, IFM2_REGION, all)

#define ETHOSU_U55_CMD1(X) \
  X(0x000, IFM_BASE0, all) \
  X(0x001, IFM_BASE1, all) \
  X(0x002, IFM_BASE2, all) \
  X(0x003, IFM_BASE3, all) \
  X(0x004, IFM_STRIDE_X, all) \
  X(0x005, IFM_STRIDE_Y, all) \
  X(0x006, IFM_STRIDE_C, all) \
  X(0x010, OFM_BASE0, all) \
  X(0x011, OFM_BASE1, all) \
  X(0x012, OFM_BASE2, all) \
  X(0x013, OFM_BASE3, all) \
  X(0x014, OFM_STRIDE_X, all) \
  X(0x015, OFM_STRIDE_Y, all) \
  X(0x016, OFM_STRIDE_C, all) \
  X(0x020, WEIGHT_BASE, all) \
  X(0x021, WEIGHT_LENGTH, all) \
  X(0x022, SCALE_BASE, all) \
  X(0x023, SCALE_LENGTH, all) \
  X(0x024, OFM_SCALE, all) \
  X(0x025, OPA_SCALE, all) \
  X(0x026, OPB_SCALE, all) \
  X(0x030, DMA0_SRC, all) \
  X(0x031, DMA0_DST, all) \
  X(0x032, DMA0_LEN, all) \
  X(0x033, DMA0_SKIP0, u65) \
  X(0x034, DMA0_SKIP1, u65) \
  X(0x080, IFM2_BASE0, all) \
  X(0x081, IFM2_BASE1, all) \
  X(0x082, IFM2_BASE2, all) \
  X(0x083, IFM2_BASE3, all) \
  X(0x084, IFM2_STRIDE_X, all) \
  X(0x085, IFM2_STRIDE_Y, all) \
  X(0x086, IFM2_STRIDE_C, all) \
  X(0x090, WEIGHT1_BASE, u65) \
  X(0x091, WEIGHT1_LENGTH, u65) \
  X(0x092, SCALE1_BASE, u65) \
  X(0x093, SCALE1_LENGTH, u65)

enum Cmd0 : unsigned {
#define X(code, name, what) name = code,
  ETHOSU_U55_CMD0(X)
#undef X
};

enum Cmd1 : unsigned {
#define X(code, name, what) name = code,
  ETHOSU_U55_CMD1(X)
#undef X
};

// Names as in Vela and Arm's manuals; nullptr if the NPU has no such code.
const char* name_of_cmd0(unsigned code, bool u65);
const char* name_of_cmd1(unsigned code, bool u65);

} // namespace ethosu::u55
