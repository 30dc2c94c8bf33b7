#include "feature_map.h"

#include <algorithm>
#include <cstring>

namespace ethosu {
namespace {

constexpr int64_t kBrick = 16; // channels
constexpr int64_t kMaxElements = int64_t{1} << 28;

// Columns [begin, end) of a row inside one tile, and the address of the first.
struct Part {
  int64_t begin, end;
  int64_t address;
};

// The parts of row y, columns [0, width).
int row_parts(const FeatureMap& map, int64_t y, int64_t width, Part (&parts)[2]) {
  if (map.tiles != FeatureMap::Tiles::two_by_two) {
    not_modelled(std::string("the ") + map.name + " has 3x1 tiles");
  }
  int count = 0;
  const int64_t left = std::min(width, map.width0);
  const auto add = [&](int64_t begin, int64_t end, int64_t height, unsigned tile) {
    const bool below = y >= height;
    const int64_t base = static_cast<int64_t>(map.base[tile + (below ? 2 : 0)]);
    parts[count++] = {begin, end, base + (below ? y - height : y) * map.stride_y};
  };
  add(0, left, map.height0, 0);
  if (width > left) {
    add(left, width, map.height1, 1);
  }
  return count;
}

// Calls visit(address, elements, column, channel, step) for every run of elements that are adjacent in memory; the
// run's elements go to [column][channel..]. A run spans several columns only if it holds whole pixels; `step` is then
// the number of channels of each.
template <class Visit>
void for_runs(const FeatureMap& map, int64_t y, int64_t width, int64_t depth, Visit visit) {
  Part parts[2];
  const int count = row_parts(map, y, width, parts);
  const int64_t size = map.element_bytes;
  for (int p = 0; p < count; ++p) {
    const Part& part = parts[p];
    const int64_t columns = part.end - part.begin;
    if (map.bricks) {
      for (int64_t c = 0; c < depth; c += kBrick) {
        const int64_t channels = std::min(kBrick, depth - c);
        const int64_t at = part.address + c / kBrick * map.stride_c;
        if (channels == kBrick) {
          visit(at, columns * kBrick, part.begin, c, kBrick);
        } else {
          for (int64_t x = 0; x < columns; ++x) {
            visit(at + x * kBrick * size, channels, part.begin + x, c, channels);
          }
        }
      }
    } else if (map.stride_x == depth * size) {
      visit(part.address, columns * depth, part.begin, int64_t{0}, depth);
    } else {
      for (int64_t x = 0; x < columns; ++x) {
        visit(part.address + x * map.stride_x, depth, part.begin + x, int64_t{0}, depth);
      }
    }
  }
}

template <class Element, class T>
void load(const uint8_t* from, int64_t elements, int64_t step, int64_t pitch, int64_t zero_point, T* out) {
  for (int64_t done = 0; done < elements; done += step, out += pitch) {
    for (int64_t i = 0; i < step; ++i) {
      Element value;
      std::memcpy(&value, from + (done + i) * static_cast<int64_t>(sizeof value), sizeof value);
      out[i] = static_cast<T>(static_cast<T>(value) - static_cast<T>(zero_point));
    }
  }
}

template <class Element, class T>
void store(const T* values, int64_t elements, int64_t step, int64_t pitch, uint8_t* to) {
  for (int64_t done = 0; done < elements; done += step, values += pitch) {
    for (int64_t i = 0; i < step; ++i) {
      const Element value = static_cast<Element>(values[i]);
      std::memcpy(to + (done + i) * static_cast<int64_t>(sizeof value), &value, sizeof value);
    }
  }
}

// Calls visit(a value of the element's C++ type).
template <class Visit>
void with_element(unsigned bytes, bool is_signed, Visit visit) {
  const auto either = [&](auto without_sign, auto with_sign) { is_signed ? visit(with_sign) : visit(without_sign); };
  switch (bytes) {
    case 1: return either(uint8_t{}, int8_t{});
    case 2: return either(uint16_t{}, int16_t{});
    case 4: return either(uint32_t{}, int32_t{});
    default: return either(uint64_t{}, int64_t{});
  }
}

uint64_t checked(const FeatureMap& map, int64_t address) {
  if (address < 0) {
    invalid(std::string("the ") + map.name + " begins before its region, at byte " + std::to_string(address));
  }
  return static_cast<uint64_t>(address);
}

} // namespace

int64_t FeatureMap::least() const {
  return !is_signed ? 0 : element_bytes == 8 ? INT64_MIN : -(int64_t{1} << (8 * element_bytes - 1));
}

int64_t FeatureMap::most() const {
  if (element_bytes == 8) {
    return INT64_MAX;
  }
  return is_signed ? (int64_t{1} << (8 * element_bytes - 1)) - 1 : (int64_t{1} << (8 * element_bytes)) - 1;
}

namespace {

// Returns the bytes of a block as sorted spans [first, last].
std::vector<std::pair<int64_t, int64_t>> bytes_of(const FeatureMap& map, const Area& area) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  const int64_t size = map.element_bytes;
  for (int64_t y = area.y0; y < area.y1; ++y) {
    Part parts[2];
    const int count = row_parts(map, y, area.x1, parts);
    for (int p = 0; p < count; ++p) {
      for (int64_t x = std::max(area.x0, parts[p].begin); x < parts[p].end; ++x) {
        const int64_t column = x - parts[p].begin;
        if (!map.bricks) {
          const int64_t at = parts[p].address + column * map.stride_x;
          spans.emplace_back(at + area.c0 * size, at + area.c1 * size - 1);
          continue;
        }
        for (int64_t c = area.c0; c < area.c1; c = (c / kBrick + 1) * kBrick) {
          const int64_t end = std::min(area.c1, (c / kBrick + 1) * kBrick);
          const int64_t at = parts[p].address + c / kBrick * map.stride_c + column * kBrick * size + c % kBrick * size;
          spans.emplace_back(at, at + (end - c) * size - 1);
        }
      }
    }
  }
  std::sort(spans.begin(), spans.end());
  return spans;
}

// The first and the last byte of a block.
std::pair<int64_t, int64_t> bounds_of(const FeatureMap& map, const Area& area) {
  const int64_t size = map.element_bytes;
  const int64_t column = map.bricks ? kBrick * size : map.stride_x;
  const auto channel = [&](int64_t c) { return map.bricks ? c / kBrick * map.stride_c + c % kBrick * size : c * size; };
  const int64_t at_first = channel(area.c0), at_last = channel(area.c1 - 1);
  const int64_t c_first = std::min(at_first, at_last), c_last = std::max(at_first, at_last);
  int64_t least = INT64_MAX, most = INT64_MIN;
  for (int64_t y = area.y0; y < area.y1; ++y) {
    Part parts[2];
    const int count = row_parts(map, y, area.x1, parts);
    for (int p = 0; p < count; ++p) {
      if (parts[p].end <= area.x0) {
        continue;
      }
      const int64_t from = parts[p].address + (std::max(area.x0, parts[p].begin) - parts[p].begin) * column;
      const int64_t to = parts[p].address + (parts[p].end - 1 - parts[p].begin) * column;
      least = std::min(least, std::min(from, to) + c_first);
      most = std::max(most, std::max(from, to) + c_last + size - 1);
    }
  }
  return {least, most};
}

} // namespace

bool share_bytes(const FeatureMap& a, const Area& in_a, const FeatureMap& b, const Area& in_b) {
  if (a.region != b.region) {
    return false;
  }
  const auto around_a = bounds_of(a, in_a), around_b = bounds_of(b, in_b);
  if (around_a.second < around_b.first || around_b.second < around_a.first) {
    return false;
  }
  const auto first = bytes_of(a, in_a), second = bytes_of(b, in_b);
  // Spans of one block may be nested (strides of zero), so sweep over both lists by their ends.
  size_t j = 0;
  int64_t reach = INT64_MIN; // the greatest last byte of second[0 .. j)
  for (const auto& [begin, last] : first) {
    for (; j < second.size() && second[j].first <= last; ++j) {
      reach = std::max(reach, second[j].second);
    }
    if (reach >= begin) {
      return true;
    }
  }
  return false;
}

template <class T>
void read_row(Memory& memory, const FeatureMap& map, int64_t y, int64_t width, int64_t depth, T* out) {
  for_runs(map, y, width, depth, [&](int64_t address, int64_t elements, int64_t x, int64_t c, int64_t step) {
    const uint8_t* from =
        memory.read(map.region, checked(map, address), static_cast<uint64_t>(elements) * map.element_bytes, map.name);
    T* to = out + x * depth + c;
    // Whole pixels in a row are one run.
    const int64_t run = step == depth ? elements : step;
    if (map.element_bytes == 8 && !map.is_signed) {
      not_modelled(std::string("the ") + map.name + " has unsigned elements of 64 bits");
    }
    with_element(map.element_bytes, map.is_signed, [&](auto element) {
      load<decltype(element)>(from, elements, run, depth, map.zero_point, to);
    });
  });
}

template <class T>
void write_row(Memory& memory, const FeatureMap& map, int64_t y, int64_t width, int64_t depth, const T* values) {
  for_runs(map, y, width, depth, [&](int64_t address, int64_t elements, int64_t x, int64_t c, int64_t step) {
    uint8_t* to =
        memory.write(map.region, checked(map, address), static_cast<uint64_t>(elements) * map.element_bytes, map.name);
    const T* from = values + x * depth + c;
    const int64_t run = step == depth ? elements : step;
    with_element(map.element_bytes, map.is_signed, [&](auto element) {
      store<decltype(element)>(from, elements, run, depth, to);
    });
  });
}

template <class T>
void read_window(
    Memory& memory, const FeatureMap& map, int64_t height, int64_t width, int64_t depth, const Padding& padding,
    Upscale upscale, T fill, Plane<T>& out) {
  if (height <= 0 || width <= 0) {
    invalid(
        std::string("the ") + map.name + " is " + std::to_string(height) + " x " + std::to_string(width) +
        " after its padding: more padding than the kernel reaches");
  }
  const int64_t rows = padding.top + height + padding.bottom, columns = padding.left + width + padding.right;
  if (rows > kMaxElements || columns > kMaxElements / rows || depth > kMaxElements / (rows * columns)) {
    not_modelled(std::string("the ") + map.name + " has more than 2^28 elements");
  }
  memory.budget.spend(static_cast<uint64_t>(rows * columns * depth));
  out.shape(rows, columns, depth, fill);
  if (upscale == Upscale::none) {
    for (int64_t y = 0; y < height; ++y) {
      read_row(memory, map, y, width, depth, out.at(y + padding.top, padding.left));
    }
    return;
  }
  const int64_t sources = (width + 1) / 2;
  std::vector<T> row(static_cast<size_t>(sources * depth));
  for (int64_t y = 0; y < height; ++y) {
    T* to = out.at(y + padding.top, padding.left);
    const bool between = upscale == Upscale::zeros && y % 2;
    if (between) {
      std::fill(to, to + width * depth, T(0));
      continue;
    }
    if (y % 2 == 0) {
      read_row(memory, map, y / 2, sources, depth, row.data());
    }
    for (int64_t x = 0; x < width; ++x, to += depth) {
      if (upscale == Upscale::zeros && x % 2) {
        std::fill(to, to + depth, T(0));
      } else {
        std::copy_n(row.data() + x / 2 * depth, depth, to);
      }
    }
  }
}

#define INSTANTIATE(T) \
  template void read_row<T>(Memory&, const FeatureMap&, int64_t, int64_t, int64_t, T*); \
  template void write_row<T>(Memory&, const FeatureMap&, int64_t, int64_t, int64_t, const T*); \
  template void read_window<T>( \
      Memory&, const FeatureMap&, int64_t, int64_t, int64_t, const Padding&, Upscale, T, Plane<T>&);
INSTANTIATE(int16_t)
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)
#undef INSTANTIATE

} // namespace ethosu
