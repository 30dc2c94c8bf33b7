#include "u85_machine.h"

#include <algorithm>
#include <cstring>

namespace ethosu::u85 {
namespace {

constexpr int64_t kRecord = 10; // bytes of a channel's bias, scale and shift

int64_t little_endian(const uint8_t* bytes, unsigned count) {
  uint64_t value = 0;
  for (unsigned i = 0; i < count; ++i) {
    value |= static_cast<uint64_t>(bytes[i]) << 8 * i;
  }
  return static_cast<int64_t>(value);
}

int64_t sign_extend(int64_t value, unsigned bits) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) << (64 - bits)) >> (64 - bits);
}

[[noreturn]] void refuse_sum() {
  not_modelled("a sum does not fit in its accumulator");
}

// Axis of the computed result that each axis (H, W, C) of the written one is; the transpose field of OFM_PRECISION.
constexpr int kAxes[8][3] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {1, 2, 0}, {-1, -1, -1}, {-1, -1, -1}, {2, 0, 1}, {2, 1, 0}};

struct Table {
  unsigned size; // bytes
  int64_t least, most; // of the index
};

Table table_of(unsigned activation) {
  switch (activation) {
    case ACT_TABLE_U8_U8:
      return {256, 0, 255};
    case ACT_TABLE_S8_S8:
      return {256, -128, 127};
    case ACT_TABLE_S8_S16:
      return {512, -128, 127};
    case ACT_TABLE_S8_S32:
      return {1024, -128, 127};
    case ACT_TABLE_S16_S16:
    case ACT_TABLE_S16_S32:
      return {2048, -(1 << 15), (1 << 15) - 1};
    // The lowest number is excluded: with it, sigmoid would saturate at 0, where LiteRT's saturates at 1.
    case ACT_TANH:
      return {2048, 1 - (1 << 16), (1 << 16) - 1};
    case ACT_SIGMOID:
      return {2048, 1 - (1 << 17), (1 << 17) - 1};
    default:
      return {0, 0, 0};
  }
}

} // namespace

Size U85Machine::transposed(const Output& out) {
  const int64_t size[3] = {out.size.height, out.size.width, out.size.depth};
  const int* axes = kAxes[out.transpose];
  return {size[axes[0]], size[axes[1]], size[axes[2]]};
}

void U85Machine::open(Output& out, bool with_scales) {
  const uint32_t precision = get(OFM_PRECISION), activation = get(ACTIVATION);
  out.size = ofm_size();
  out.map = ofm_map();
  out.scale = ofm_scale();
  out.reverse = precision >> 9 & 3;
  out.transpose = precision >> 11 & 7;
  if (kAxes[out.transpose][0] < 0) {
    not_modelled("NPU_SET_OFM_PRECISION is " + hex(precision) + ": the transposition of its bits 11 to 13 is unknown");
  }
  const uint32_t storage = precision >> 14;
  out.chained = storage == STORAGE_CHAINED;
  out.chain = out.chained ? get(OFM_REGION) & 7 : 0;
  out.stored = storage != STORAGE_NONE;
  if (storage == STORAGE_TILES_3X1) {
    not_modelled("NPU_SET_OFM_PRECISION is " + hex(precision) + ": tiles of 3x1 are not modelled");
  }
  if ((out.chained || out.reverse) && out.transpose) {
    invalid(
        "NPU_SET_OFM_PRECISION is " + hex(precision) + ": a transposed output may neither be chained nor reversed");
  }
  out.whole = out.chained || out.reverse || out.transpose;
  if (out.whole) {
    memory.budget.spend(static_cast<uint64_t>(out.size.count()));
    out.plane.shape(out.size.height, out.size.width, out.size.depth);
  }
  if (with_scales && is_channelwise()) {
    read_scales(out);
  }

  // The clamp.
  if (!(activation >> 12 & 1)) {
    out.least = get_signed(ACTIVATION_MIN);
    out.most = get_signed(ACTIVATION_MAX);
    if (!out.map.is_signed) {
      out.least &= 0xFFFF;
      out.most &= 0xFFFF;
    }
    if (out.least > out.most) {
      not_modelled(
          "NPU_SET_ACTIVATION_MIN " + hex(get(ACTIVATION_MIN)) + " is above NPU_SET_ACTIVATION_MAX " +
          hex(get(ACTIVATION_MAX)));
    }
  }

  // The table.
  out.activation = activation & 31;
  if (out.activation != ACT_NONE) {
    const Table table = table_of(out.activation);
    const uint32_t number = activation >> 5 & 7;
    if (!table.size) {
      not_modelled("NPU_SET_ACTIVATION is " + hex(activation) + ": its function is unknown");
    }
    out.table = memory.table(uint64_t{number} * table.size, table.size);
  }
}

void U85Machine::read_scales(Output& out) {
  const bool wide = get(ACC_FORMAT) & 1; // 48 bits
  const int64_t length = value(SCALE_LENGTH), needed = out.size.depth * kRecord;
  if (length < needed) {
    invalid(
        "NPU_SET_SCALE_LENGTH is " + std::to_string(length) + ", but " + std::to_string(out.size.depth) +
        " channels need " + std::to_string(needed) + " bytes");
  }
  const uint8_t* record = memory.read(
      get(SCALE_REGION) & 7, address(SCALE_BASE), static_cast<uint64_t>(needed), "scales");
  out.bias.resize(static_cast<size_t>(out.size.depth));
  out.channel_scales.assign(static_cast<size_t>(out.size.depth), out.scale);
  for (size_t c = 0; c < out.bias.size(); ++c, record += kRecord) {
    const unsigned bias_bytes = wide ? 6 : 4;
    out.bias[c] = sign_extend(little_endian(record, bias_bytes), 8 * bias_bytes);
    out.channel_scales[c].scale =
        static_cast<uint32_t>(wide ? little_endian(record + 6, 2) & 0x7FFF : little_endian(record + 4, 4) & 0x7FFFFFFF);
    out.channel_scales[c].shift = record[8] & 63;
  }
}

template <class Sum>
void U85Machine::put_sums(Output& out, int64_t y, const Sum* sums) {
  const int64_t width = out.size.width, depth = out.size.depth;
  out.row.resize(static_cast<size_t>(width * depth));
  int64_t* values = out.row.data();
  const int64_t limit = int64_t{1} << (get(ACC_FORMAT) & 1 ? 47 : 31);
  bool fits = true;
  if (out.channel_scales.empty()) {
    for (int64_t i = 0; i < width * depth; ++i) {
      values[i] = scaled(sums[i], out.scale);
    }
  } else {
    const int64_t* bias = out.bias.data();
    const Scale* scales = out.channel_scales.data();
    for (int64_t x = 0; x < width; ++x, sums += depth, values += depth) {
      for (int64_t c = 0; c < depth; ++c) {
        const int64_t sum = sums[c] + bias[c];
        fits = fits && sum >= -limit && sum < limit;
        values[c] = scaled(sum, scales[c]);
      }
    }
    if (!fits) {
      refuse_sum();
    }
  }
  put_row(out, y, out.row.data());
}

template void U85Machine::put_sums<int32_t>(Output&, int64_t, const int32_t*);
template void U85Machine::put_sums<int64_t>(Output&, int64_t, const int64_t*);

void U85Machine::put_row(Output& out, int64_t y, int64_t* values) {
  const int64_t count = out.size.width * out.size.depth, zero_point = out.map.zero_point;
  if (out.activation == ACT_NONE) {
    const int64_t least = std::max(out.least, out.map.least()), most = std::min(out.most, out.map.most());
    if (least > most) {
      not_modelled("the clamp of NPU_SET_ACTIVATION_MIN and MAX lies outside the type of the OFM");
    }
    if (zero_point == 0) {
      for (int64_t i = 0; i < count; ++i) {
        values[i] = clamp(values[i], least, most);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        values[i] = clamp(clamp(values[i], INT64_MIN / 2, INT64_MAX / 2) + zero_point, least, most);
      }
    }
  } else {
    // Inputs of tanh and sigmoid have up to 18 bits: their clamp can only be one of results.
    const bool clamps = out.activation != ACT_TANH && out.activation != ACT_SIGMOID;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = clamp(values[i], INT64_MIN / 2, INT64_MAX / 2) + zero_point;
      values[i] = clamps ? clamp(value, out.least, out.most) : value;
    }
    look_up(out, values, count);
  }
  if (out.whole) {
    std::copy_n(values, count, out.plane.at(y, 0));
  } else if (out.stored) {
    write_row(memory, out.map, y, out.size.width, out.size.depth, values);
  }
}

void U85Machine::look_up(const Output& out, int64_t* values, int64_t count) const {
  const Table table = table_of(out.activation);
  const auto entry = [&out](int64_t index, auto value) {
    std::memcpy(&value, out.table + index * static_cast<int64_t>(sizeof value), sizeof value);
    return static_cast<int64_t>(value);
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = clamp(values[i], table.least, table.most), index = v - table.least;
    switch (out.activation) {
      case ACT_TABLE_U8_U8:
        values[i] = entry(index, uint8_t{});
        break;
      case ACT_TABLE_S8_S8:
        values[i] = entry(index, int8_t{});
        break;
      case ACT_TABLE_S8_S16:
        values[i] = entry(index, int16_t{});
        break;
      case ACT_TABLE_S8_S32:
        values[i] = entry(index, int32_t{});
        break;
      default: {
        // 512 pairs of base and slope; the lowest bits of the value interpolate between two entries.
        const unsigned bits = out.activation == ACT_TANH ? 8 : out.activation == ACT_SIGMOID ? 9 : 7;
        const int64_t place = v + (256 << bits), pair = 2 * (place >> bits), between = place & ((1 << bits) - 1);
        const int64_t fine = entry(pair, int16_t{}) * (int64_t{1} << bits) + entry(pair + 1, int16_t{}) * between;
        if (out.activation == ACT_TABLE_S16_S32) {
          values[i] = fine;
        } else if (out.activation == ACT_TABLE_S16_S16) {
          values[i] = clamp((fine + 64) >> bits, INT16_MIN, INT16_MAX);
        } else {
          // Like LiteRT's kernels: the sigmoid table holds 2 * sigmoid(x) - 1, and ties of negative values round down.
          const int64_t down = v < 0;
          values[i] = clamp(
              out.activation == ACT_TANH ? (fine + 128 - down) >> 8 : (fine + (1 << 24) + 512 - down) >> 10, INT16_MIN,
              INT16_MAX);
        }
      }
    }
  }
  const bool clamps = out.activation == ACT_TANH || out.activation == ACT_SIGMOID;
  const int64_t least = std::max(out.map.least(), clamps ? out.least : INT64_MIN),
                most = std::min(out.map.most(), clamps ? out.most : INT64_MAX);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = std::min(std::max(values[i], least), most);
  }
}

void U85Machine::close(Output& out) {
  if (!out.whole) {
    return;
  }
  Plane<int64_t>& plane = out.plane;
  if (out.reverse) {
    const auto row = [&plane](int64_t y) { return plane.data.begin() + y * plane.width * plane.depth; };
    switch (out.reverse) {
      case 1:
        for (int64_t y = 0; y < plane.height / 2; ++y) {
          std::swap_ranges(row(y), row(y + 1), row(plane.height - 1 - y));
        }
        break;
      case 2:
        for (int64_t y = 0; y < plane.height; ++y) {
          for (int64_t x = 0; x < plane.width / 2; ++x) {
            std::swap_ranges(plane.at(y, x), plane.at(y, x) + plane.depth, plane.at(y, plane.width - 1 - x));
          }
        }
        break;
      default:
        for (int64_t i = 0; i < plane.height * plane.width; ++i) {
          std::reverse(plane.data.begin() + i * plane.depth, plane.data.begin() + (i + 1) * plane.depth);
        }
    }
  }
  if (out.chained) {
    chains_[out.chain] = std::move(plane);
    return;
  }
  if (!out.stored) {
    return;
  }
  const int64_t size[3] = {plane.height, plane.width, plane.depth};
  const int64_t steps[3] = {plane.width * plane.depth, plane.depth, 1};
  const int* axes = kAxes[out.transpose];
  const int64_t height = size[axes[0]], width = size[axes[1]], depth = size[axes[2]];
  out.row.resize(static_cast<size_t>(width * depth));
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t* from = plane.data.data() + y * steps[axes[0]] + x * steps[axes[1]];
      for (int64_t c = 0; c < depth; ++c) {
        out.row[static_cast<size_t>(x * depth + c)] = from[c * steps[axes[2]]];
      }
    }
    write_row(memory, out.map, y, width, depth, out.row.data());
  }
}

void U85Machine::open_accumulators(const Output& out) {
  const uint32_t format = get(ACC_FORMAT);
  Accumulators& a = accumulators_;
  if ((format & 3) > 1) {
    not_modelled("NPU_SET_ACC_FORMAT is " + hex(format) + ": the format of its bits 0 and 1 is unknown");
  }
  a.is_wide = format & 1;
  a.input = format >> 4 & 3;
  a.output = !(format >> 6 & 1);
  switch (a.input) {
    case ACC_RESET:
      break;
    case ACC_KEEP:
      if (a.kept.height != out.size.height || a.kept.width != out.size.width || a.kept.depth != out.size.depth) {
        invalid(
            "NPU_SET_ACC_FORMAT is " + hex(format) +
            ": it begins with accumulators that no operation of the same size has kept");
      }
      break;
    case ACC_IFM2:
      a.ifm2 = feature_map(Input::ifm2);
      a.row.resize(static_cast<size_t>(out.size.width * out.size.depth));
      break;
    default:
      not_modelled("NPU_SET_ACC_FORMAT is " + hex(format) + ": the input of its bits 4 and 5 is unknown");
  }
  if (!a.output) {
    memory.budget.spend(static_cast<uint64_t>(out.size.count()));
    a.next.shape(out.size.height, out.size.width, out.size.depth);
  }
}

template <class Sum>
void U85Machine::put_accumulators(Output& out, int64_t y, Sum* sums) {
  Accumulators& a = accumulators_;
  const int64_t count = out.size.width * out.size.depth;
  if (a.input == ACC_RESET && a.output) {
    if (sizeof(Sum) > sizeof(int32_t)) {
      const int64_t limit = int64_t{1} << (a.is_wide ? 47 : 31);
      const auto [least, greatest] = std::minmax_element(sums, sums + count);
      if (*least < -limit || *greatest >= limit) {
        refuse_sum();
      }
    }
    put_sums(out, y, sums);
    return;
  }
  if (a.input == ACC_IFM2) {
    read_row(memory, a.ifm2, y, out.size.width, out.size.depth, a.row.data());
  } else if (a.input == ACC_KEEP) {
    a.row.assign(a.kept.at(y, 0), a.kept.at(y, 0) + count);
  } else {
    a.row.assign(static_cast<size_t>(count), 0);
  }
  const int64_t limit = int64_t{1} << (a.is_wide ? 47 : 31);
  for (int64_t i = 0; i < count; ++i) {
    int64_t& sum = a.row[static_cast<size_t>(i)];
    if (sum < -limit || sum >= limit) {
      invalid("IFM2 holds a number that does not fit in an accumulator");
    }
    sum += sums[i];
    if (sum < -limit || sum >= limit) {
      refuse_sum();
    }
  }
  if (a.output) {
    put_sums(out, y, a.row.data());
  } else {
    std::copy_n(a.row.data(), count, a.next.at(y, 0));
  }
  if (y == out.size.height - 1) {
    a.kept = a.output ? Plane<int64_t>{} : std::move(a.next);
  }
}

template void U85Machine::put_accumulators<int32_t>(Output&, int64_t, int32_t*);
template void U85Machine::put_accumulators<int64_t>(Output&, int64_t, int64_t*);

} // namespace ethosu::u85
