#include "u85_machine.h"

#include <algorithm>

namespace ethosu::u85 {
namespace {

struct Operation {
  uint32_t mode;
  const char* name;
  bool unary;
  bool scales_inputs; // by IFM_SCALE and IFM2_SCALE
  bool scales_output; // by OFM_SCALE
};

constexpr Operation kOperations[] = {
    {EW_MUL, "multiply", false, false, true},
    {EW_ADD, "add", false, true, true},
    {EW_SUB, "subtract", false, true, true},
    {EW_MIN, "minimum", false, true, true},
    {EW_MAX, "maximum", false, true, true},
    {EW_LRELU, "leaky ReLU", true, false, true},
    {EW_ABS, "absolute value", true, true, true},
    {EW_CLZ, "leading zeros", true, false, false},
    {EW_SHR, "shift right", false, false, false},
    {EW_SHL, "shift left", false, false, false},
    {EW_LSR, "logical shift right", false, false, false},
    {EW_DIV, "divide", false, false, false},
    {EW_CMP_EQ, "equal", false, true, false},
    {EW_CMP_NE, "not equal", false, true, false},
    {EW_CMP_GE, "greater or equal", false, true, false},
    {EW_CMP_GT, "greater", false, true, false},
    {EW_AND, "and", false, false, false},
    {EW_OR, "or", false, false, false},
    {EW_XOR, "exclusive or", false, false, false},
    {EW_NOT, "not", true, false, false},
    {EW_AND_NOT, "and not", false, false, false},
};

bool is_one(const Scale& scale) {
  return scale.scale == uint64_t{1} << scale.shift;
}

// Only meaningless streams reach the limits of 64 bits; their results must still be defined.
int64_t wrapped(uint64_t value) {
  return static_cast<int64_t>(value);
}

int64_t leading_zeros(int64_t value) {
  int64_t count = 0;
  for (int64_t bit = int64_t{1} << 31; bit && !(value & bit); bit >>= 1) {
    ++count;
  }
  return count;
}

// Sign-extends the lowest bits of a value.
int64_t low_bits(uint64_t value, unsigned bits) {
  return static_cast<int64_t>(value << (64 - bits)) >> (64 - bits);
}

template <class Function>
void each(const int64_t* a, const int64_t* b, int64_t count, int64_t* out, Function function) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = function(a[i], b[i]);
  }
}

// One operand, read row by row and broadcast to the size of the output.
struct Operand {
  bool is_scalar = false, along_height = false, along_width = false, along_depth = false; // broadcast
  bool is_scaled = false;
  Scale scale;
  const Plane<int64_t>* chained = nullptr;
  FeatureMap map;
  int64_t zero_point = 0;
  Size size; // of what is read of each row
  std::vector<int64_t> narrow, row;
  int64_t held = -1; // the row that `row` holds
};

const int64_t* row_of(Operand& operand, Memory& memory, int64_t y, int64_t width, int64_t depth) {
  const int64_t source = operand.along_height || operand.is_scalar ? 0 : y;
  if (operand.held == source) {
    return operand.row.data();
  }
  operand.held = source;
  if (operand.is_scalar) {
    return operand.row.data(); // filled once
  }
  const bool direct = !operand.along_width && !operand.along_depth;
  int64_t* values = direct ? operand.row.data() : operand.narrow.data();
  const int64_t count = operand.size.width * operand.size.depth;
  if (operand.chained) {
    for (int64_t x = 0; x < operand.size.width; ++x) {
      const int64_t* from = operand.chained->at(source, x);
      for (int64_t c = 0; c < operand.size.depth; ++c) {
        values[x * operand.size.depth + c] = from[c] - operand.zero_point;
      }
    }
  } else {
    read_row(memory, operand.map, source, operand.size.width, operand.size.depth, values);
  }
  if (operand.is_scaled) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] = scaled(values[i], operand.scale);
    }
  }
  if (!direct) {
    int64_t* to = operand.row.data();
    for (int64_t x = 0; x < width; ++x, to += depth) {
      const int64_t* from = values + (operand.along_width ? 0 : x) * operand.size.depth;
      if (operand.along_depth) {
        std::fill(to, to + depth, *from);
      } else {
        std::copy_n(from, depth, to);
      }
    }
  }
  return operand.row.data();
}

} // namespace

void U85Machine::elementwise(uint32_t mode, ethosu_sim_operation& done) {
  const Operation* operation = nullptr;
  for (const Operation& o : kOperations) {
    operation = o.mode == mode ? &o : operation;
  }
  if (!operation) {
    not_modelled("NPU_OP_ELEMENTWISE's mode " + std::to_string(mode) + " is unknown");
  }
  Output out;
  open(out, false);
  done.name = operation->name;
  describe(out, done);
  const int64_t width = out.size.width, depth = out.size.depth, count = width * depth;
  memory.budget.spend(static_cast<uint64_t>(out.size.count()));

  Operand operands[2];
  const int num_operands = operation->unary ? 1 : 2;
  for (int i = 0; i < num_operands; ++i) {
    const Input input = i ? Input::ifm2 : Input::ifm;
    const uint32_t broadcast = get(i ? IFM2_BROADCAST : IFM_BROADCAST);
    Operand& operand = operands[i];
    operand.is_scalar = (broadcast & BROADCAST_SCALAR) || storage(input) == STORAGE_NONE;
    operand.along_height = broadcast & BROADCAST_H;
    operand.along_width = broadcast & BROADCAST_W;
    operand.along_depth = broadcast & BROADCAST_C;
    operand.is_scaled = operation->scales_inputs;
    operand.scale = ifm_scale(input);
    operand.size = {
        operand.along_height ? 1 : out.size.height, operand.along_width ? 1 : width, operand.along_depth ? 1 : depth};
    if (!operation->scales_inputs && mode != EW_LRELU && !is_one(operand.scale)) {
      not_modelled(
          std::string(i ? "NPU_SET_IFM2_SCALE" : "NPU_SET_IFM_SCALE") + " is not 1 in an operation that does not scale (" +
          operation->name + ")");
    }
    operand.row.resize(static_cast<size_t>(count));
    if (operand.is_scalar) {
      const int64_t value = scalar(input);
      std::fill(operand.row.begin(), operand.row.end(), operand.is_scaled ? scaled(value, operand.scale) : value);
      continue;
    }
    operand.narrow.resize(static_cast<size_t>(operand.size.width * operand.size.depth));
    if (storage(input) == STORAGE_CHAINED) {
      operand.chained = &chained(input);
      operand.zero_point = get_signed(i ? IFM2_ZERO_POINT : IFM_ZERO_POINT);
      if (operand.chained->height < operand.size.height || operand.chained->width < operand.size.width ||
          operand.chained->depth < operand.size.depth) {
        invalid("the chained buffer that the operation reads is smaller than what it reads");
      }
    } else {
      operand.map = feature_map(input);
    }
  }
  std::vector<Source> sources;
  bool chained_input = false;
  for (int i = 0; i < num_operands; ++i) {
    const Operand& operand = operands[i];
    chained_input = chained_input || operand.chained;
    if (!operand.is_scalar && !operand.chained) {
      sources.push_back(Source::same(operand.map, operand.size));
    }
  }
  check_overlap(out, chained_input, sources);
  if (!operation->scales_output && !is_one(out.scale)) {
    not_modelled(
        std::string("NPU_SET_OFM_SCALE is not 1 in an operation that does not scale (") + operation->name + ")");
  }
  const unsigned ifm_bits = 8 * element_bytes(Input::ifm);
  if (ifm_bits > 32 || (!operation->unary && element_bytes(Input::ifm2) > 4)) {
    not_modelled(std::string(operation->name) + " of elements of 64 bits is not modelled");
  }
  if (mode == EW_CLZ && ifm_bits != 32) {
    not_modelled("leading zeros of elements of " + std::to_string(ifm_bits) + " bits are not modelled");
  }
  Scale output_scale = out.scale;
  if (mode == EW_MUL && ifm_bits == 32) {
    // Products of 32-bit values use only the shift. They are rounded twice if the register requests it: LiteRT's mean
    // needs it, although TOSA's product does not.
    output_scale.scale = 1;
  }
  const Scale slope = mode == EW_LRELU ? ifm_scale(Input::ifm2) : Scale{};
  const uint64_t mask = ifm_bits >= 64 ? UINT64_MAX : (uint64_t{1} << ifm_bits) - 1;
  const auto shift_of = [&](int64_t by) {
    if (by < 0 || by > 63) {
      not_modelled("a shift by " + std::to_string(by) + " is not modelled");
    }
    return static_cast<unsigned>(by);
  };

  std::vector<int64_t> values(static_cast<size_t>(count));
  int64_t* v = values.data();
  for (int64_t y = 0; y < out.size.height; ++y) {
    const int64_t* a = row_of(operands[0], memory, y, width, depth);
    const int64_t* b = operation->unary ? a : row_of(operands[1], memory, y, width, depth);
    switch (mode) {
      case EW_MUL:
        each(a, b, count, v, [](int64_t p, int64_t q) { return wrapped(static_cast<uint64_t>(p) * static_cast<uint64_t>(q)); });
        break;
      case EW_ADD:
        each(a, b, count, v, [](int64_t p, int64_t q) { return wrapped(static_cast<uint64_t>(p) + static_cast<uint64_t>(q)); });
        break;
      case EW_SUB:
        each(a, b, count, v, [](int64_t p, int64_t q) { return wrapped(static_cast<uint64_t>(p) - static_cast<uint64_t>(q)); });
        break;
      case EW_MIN:
        each(a, b, count, v, [](int64_t p, int64_t q) { return std::min(p, q); });
        break;
      case EW_MAX:
        each(a, b, count, v, [](int64_t p, int64_t q) { return std::max(p, q); });
        break;
      case EW_LRELU:
        each(a, b, count, v, [&](int64_t p, int64_t) { return scaled(p, p >= 0 ? operands[0].scale : slope); });
        break;
      case EW_ABS:
        each(a, b, count, v, [](int64_t p, int64_t) { return p < 0 ? wrapped(-static_cast<uint64_t>(p)) : p; });
        break;
      case EW_CLZ:
        each(a, b, count, v, [](int64_t p, int64_t) { return leading_zeros(p); });
        break;
      case EW_SHR:
        each(a, b, count, v, [&](int64_t p, int64_t q) {
          return scaled(p, {1, shift_of(q), out.scale.rounding, 0});
        });
        break;
      case EW_SHL:
        each(a, b, count, v, [&](int64_t p, int64_t q) {
          return low_bits(static_cast<uint64_t>(p) << shift_of(q), ifm_bits);
        });
        break;
      case EW_LSR:
        each(a, b, count, v, [&](int64_t p, int64_t q) {
          return low_bits((static_cast<uint64_t>(p) & mask) >> shift_of(q), ifm_bits);
        });
        break;
      case EW_DIV:
        each(a, b, count, v, [](int64_t p, int64_t q) {
          if (q == 0) {
            not_modelled("a division by zero is not modelled");
          }
          return p / q;
        });
        break;
      case EW_CMP_EQ: // true: all bits are one
        each(a, b, count, v, [](int64_t p, int64_t q) { return -int64_t{p == q}; });
        break;
      case EW_CMP_NE:
        each(a, b, count, v, [](int64_t p, int64_t q) { return -int64_t{p != q}; });
        break;
      case EW_CMP_GE:
        each(a, b, count, v, [](int64_t p, int64_t q) { return -int64_t{p >= q}; });
        break;
      case EW_CMP_GT:
        each(a, b, count, v, [](int64_t p, int64_t q) { return -int64_t{p > q}; });
        break;
      case EW_AND:
        each(a, b, count, v, [](int64_t p, int64_t q) { return p & q; });
        break;
      case EW_OR:
        each(a, b, count, v, [](int64_t p, int64_t q) { return p | q; });
        break;
      case EW_XOR:
        each(a, b, count, v, [](int64_t p, int64_t q) { return p ^ q; });
        break;
      case EW_NOT:
        each(a, b, count, v, [](int64_t p, int64_t) { return ~p; });
        break;
      case EW_AND_NOT:
        each(a, b, count, v, [](int64_t p, int64_t q) { return p & ~q; });
        break;
    }
    if (operation->scales_output && !is_one(output_scale)) {
      for (int64_t i = 0; i < count; ++i) {
        v[i] = scaled(v[i], output_scale);
      }
    }
    put_row(out, y, v);
  }
  close(out);
}

} // namespace ethosu::u85
