#include "u85_registers.h"

namespace ethosu::u85 {

const char* name_of_cmd0(unsigned code) {
  switch (code) {
    case OP_STOP:
      return "NPU_OP_STOP";
    case OP_IRQ:
      return "NPU_OP_IRQ";
    case OP_DMA_WAIT:
      return "NPU_OP_DMA_WAIT";
    case OP_KERNEL_WAIT:
      return "NPU_OP_KERNEL_WAIT";
    case OP_PMU_MASK:
      return "NPU_OP_PMU_MASK";
    case OP_CONV:
      return "NPU_OP_CONV";
    case OP_DEPTHWISE:
      return "NPU_OP_DEPTHWISE";
    case OP_POOL:
      return "NPU_OP_POOL";
    case OP_ELEMENTWISE:
      return "NPU_OP_ELEMENTWISE";
    case OP_RESIZE:
      return "NPU_OP_RESIZE";
    case OP_DMA_START:
      return "NPU_OP_DMA_START";
    case IFM_PAD_TOP:
      return "NPU_SET_IFM_PAD_TOP";
    case IFM_PAD_LEFT:
      return "NPU_SET_IFM_PAD_LEFT";
    case IFM_PAD_RIGHT:
      return "NPU_SET_IFM_PAD_RIGHT";
    case IFM_PAD_BOTTOM:
      return "NPU_SET_IFM_PAD_BOTTOM";
    case IFM_DEPTH_M1:
      return "NPU_SET_IFM_DEPTH_M1";
    case IFM_PRECISION:
      return "NPU_SET_IFM_PRECISION";
    case IFM_UPSCALE:
      return "NPU_SET_IFM_UPSCALE";
    case IFM_BROADCAST:
      return "NPU_SET_IFM_BROADCAST";
    case IFM_ZERO_POINT:
      return "NPU_SET_IFM_ZERO_POINT";
    case IFM_WIDTH0_M1:
      return "NPU_SET_IFM_WIDTH0_M1";
    case IFM_HEIGHT0_M1:
      return "NPU_SET_IFM_HEIGHT0_M1";
    case IFM_HEIGHT1_M1:
      return "NPU_SET_IFM_HEIGHT1_M1";
    case IFM_REGION:
      return "NPU_SET_IFM_REGION";
    case OFM_WIDTH_M1:
      return "NPU_SET_OFM_WIDTH_M1";
    case OFM_HEIGHT_M1:
      return "NPU_SET_OFM_HEIGHT_M1";
    case OFM_DEPTH_M1:
      return "NPU_SET_OFM_DEPTH_M1";
    case OFM_PRECISION:
      return "NPU_SET_OFM_PRECISION";
    case OFM_BLK_WIDTH_M1:
      return "NPU_SET_OFM_BLK_WIDTH_M1";
    case OFM_BLK_HEIGHT_M1:
      return "NPU_SET_OFM_BLK_HEIGHT_M1";
    case OFM_BLK_DEPTH_M1:
      return "NPU_SET_OFM_BLK_DEPTH_M1";
    case OFM_ZERO_POINT:
      return "NPU_SET_OFM_ZERO_POINT";
    case OFM_WIDTH0_M1:
      return "NPU_SET_OFM_WIDTH0_M1";
    case OFM_HEIGHT0_M1:
      return "NPU_SET_OFM_HEIGHT0_M1";
    case OFM_HEIGHT1_M1:
      return "NPU_SET_OFM_HEIGHT1_M1";
    case OFM_REGION:
      return "NPU_SET_OFM_REGION";
    case KERNEL_WIDTH_M1:
      return "NPU_SET_KERNEL_WIDTH_M1";
    case KERNEL_HEIGHT_M1:
      return "NPU_SET_KERNEL_HEIGHT_M1";
    case KERNEL_STRIDE:
      return "NPU_SET_KERNEL_STRIDE";
    case ACC_FORMAT:
      return "NPU_SET_ACC_FORMAT";
    case ACTIVATION:
      return "NPU_SET_ACTIVATION";
    case ACTIVATION_MIN:
      return "NPU_SET_ACTIVATION_MIN";
    case ACTIVATION_MAX:
      return "NPU_SET_ACTIVATION_MAX";
    case WEIGHT_REGION:
      return "NPU_SET_WEIGHT_REGION";
    case SCALE_REGION:
      return "NPU_SET_SCALE_REGION";
    case RESIZE_X_SCALE_N_M1:
      return "NPU_SET_RESIZE_X_SCALE_N_M1";
    case RESIZE_Y_SCALE_N_M1:
      return "NPU_SET_RESIZE_Y_SCALE_N_M1";
    case RESIZE_X_OFFSET:
      return "NPU_SET_RESIZE_X_OFFSET";
    case RESIZE_Y_OFFSET:
      return "NPU_SET_RESIZE_Y_OFFSET";
    case WEIGHT_FORMAT:
      return "NPU_SET_WEIGHT_FORMAT";
    case BLOCKDEP:
      return "NPU_SET_BLOCKDEP";
    case DMA0_SRC_REGION:
      return "NPU_SET_DMA0_SRC_REGION";
    case DMA0_DST_REGION:
      return "NPU_SET_DMA0_DST_REGION";
    case DMA0_SIZE0:
      return "NPU_SET_DMA0_SIZE0";
    case DMA0_SIZE1:
      return "NPU_SET_DMA0_SIZE1";
    case DMA0_IDX_REGION:
      return "NPU_SET_DMA0_IDX_REGION";
    case IFM2_BROADCAST:
      return "NPU_SET_IFM2_BROADCAST";
    case IFM2_PRECISION:
      return "NPU_SET_IFM2_PRECISION";
    case IFM2_ZERO_POINT:
      return "NPU_SET_IFM2_ZERO_POINT";
    case IFM2_WIDTH0_M1:
      return "NPU_SET_IFM2_WIDTH0_M1";
    case IFM2_HEIGHT0_M1:
      return "NPU_SET_IFM2_HEIGHT0_M1";
    case IFM2_HEIGHT1_M1:
      return "NPU_SET_IFM2_HEIGHT1_M1";
    case IFM2_REGION:
      return "NPU_SET_IFM2_REGION";
    default:
      return nullptr;
  }
}

const char* name_of_cmd1(unsigned code) {
  if (code >= IFM_BASE0 && code < IFM_BASE0 + 4) {
    static const char* const names[] = {"NPU_SET_IFM_BASE0", "NPU_SET_IFM_BASE1", "NPU_SET_IFM_BASE2", "NPU_SET_IFM_BASE3"};
    return names[code - IFM_BASE0];
  }
  if (code >= OFM_BASE0 && code < OFM_BASE0 + 4) {
    static const char* const names[] = {"NPU_SET_OFM_BASE0", "NPU_SET_OFM_BASE1", "NPU_SET_OFM_BASE2", "NPU_SET_OFM_BASE3"};
    return names[code - OFM_BASE0];
  }
  if (code >= IFM2_BASE0 && code < IFM2_BASE0 + 4) {
    static const char* const names[] = {"NPU_SET_IFM2_BASE0", "NPU_SET_IFM2_BASE1", "NPU_SET_IFM2_BASE2", "NPU_SET_IFM2_BASE3"};
    return names[code - IFM2_BASE0];
  }
  switch (code) {
    case IFM_STRIDE_X:
      return "NPU_SET_IFM_STRIDE_X";
    case IFM_STRIDE_Y:
      return "NPU_SET_IFM_STRIDE_Y";
    case IFM_STRIDE_C:
      return "NPU_SET_IFM_STRIDE_C";
    case OFM_STRIDE_X:
      return "NPU_SET_OFM_STRIDE_X";
    case OFM_STRIDE_Y:
      return "NPU_SET_OFM_STRIDE_Y";
    case OFM_STRIDE_C:
      return "NPU_SET_OFM_STRIDE_C";
    case WEIGHT_BASE:
      return "NPU_SET_WEIGHT_BASE";
    case WEIGHT_LENGTH:
      return "NPU_SET_WEIGHT_LENGTH";
    case SCALE_BASE:
      return "NPU_SET_SCALE_BASE";
    case SCALE_LENGTH:
      return "NPU_SET_SCALE_LENGTH";
    case OFM_SCALE:
      return "NPU_SET_OFM_SCALE";
    case IFM_SCALE:
      return "NPU_SET_IFM_SCALE";
    case IFM2_SCALE:
      return "NPU_SET_IFM2_SCALE";
    case OP_SCALAR:
      return "NPU_OP_SCALAR";
    case DMA0_SRC:
      return "NPU_SET_DMA0_SRC";
    case DMA0_DST:
      return "NPU_SET_DMA0_DST";
    case DMA0_LEN:
      return "NPU_SET_DMA0_LEN";
    case DMA0_SRC_STRIDE0:
      return "NPU_SET_DMA0_SRC_STRIDE0";
    case DMA0_SRC_STRIDE1:
      return "NPU_SET_DMA0_SRC_STRIDE1";
    case DMA0_DST_STRIDE0:
      return "NPU_SET_DMA0_DST_STRIDE0";
    case DMA0_DST_STRIDE1:
      return "NPU_SET_DMA0_DST_STRIDE1";
    case DMA0_IDX:
      return "NPU_SET_DMA0_IDX";
    case DMA0_IDX_MAX:
      return "NPU_SET_DMA0_IDX_MAX";
    case DMA0_IDX_SKIP1:
      return "NPU_SET_DMA0_IDX_SKIP1";
    case IFM2_STRIDE_X:
      return "NPU_SET_IFM2_STRIDE_X";
    case IFM2_STRIDE_Y:
      return "NPU_SET_IFM2_STRIDE_Y";
    case IFM2_STRIDE_C:
      return "NPU_SET_IFM2_STRIDE_C";
    case WEIGHT1_BASE:
      return "NPU_SET_WEIGHT1_BASE";
    case WEIGHT1_LENGTH:
      return "NPU_SET_WEIGHT1_LENGTH";
    case WEIGHT2_BASE:
      return "NPU_SET_WEIGHT2_BASE";
    case WEIGHT2_LENGTH:
      return "NPU_SET_WEIGHT2_LENGTH";
    case WEIGHT3_BASE:
      return "NPU_SET_WEIGHT3_BASE";
    case WEIGHT3_LENGTH:
      return "NPU_SET_WEIGHT3_LENGTH";
    case RESIZE_X_STEP:
      return "NPU_SET_RESIZE_X_STEP";
    case RESIZE_Y_STEP:
      return "NPU_SET_RESIZE_Y_STEP";
    case OP_BRANCH:
      return "NPU_OP_BRANCH";
    default:
      return nullptr;
  }
}

} // namespace ethosu::u85
