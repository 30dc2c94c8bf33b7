// Arm Ethos-U: the payload is the command stream that the chip runs; the integer graph that it was compiled from may
// accompany it as named data.
#include "delegate.h"
#include "ethosu.h"
#include "family.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace micronpu::ethosu {
namespace {

using executorch::runtime::BackendInitContext;
using executorch::runtime::FreeableBuffer;

// Loads the integer graph of an Ethos-U payload; `source.graph` stays empty if the program does not carry it.
PayloadStatus load_graph(
    const FreeableBuffer& processed,
    const EthosUBorder& border,
    const executorch::runtime::NamedDataMap* named_data,
    Source& source,
    std::string& error) {
  const auto* data = static_cast<const uint8_t*>(processed.data());
  if (named_data == nullptr) {
    return PayloadStatus::ok;
  }
  auto found = named_data->get_data(host_graph_key(data, processed.size()).c_str());
  if (!found.ok()) {
    return PayloadStatus::ok;
  }
  source.graph.emplace(std::move(found.get()));
  Payload& payload = source.payload;
  const PayloadStatus read =
      parse_payload(static_cast<const uint8_t*>(source.graph->data()), source.graph->size(), payload, error);
  if (read == PayloadStatus::ok &&
      (payload.num_arguments != border.num_inputs || payload.outputs.size() != border.num_outputs)) {
    error = "The integer graph beside the Ethos-U payload has another number of inputs or outputs than the payload. "
            "Try: compile the model again with this version of micronpu.";
    return PayloadStatus::malformed;
  }
  return read;
}

PayloadStatus load(
    BackendInitContext& context, const FreeableBuffer& processed, int32_t mode, Source& source, std::string& error) {
  const auto* data = static_cast<const uint8_t*>(processed.data());
  EthosUBorder border;
  PayloadStatus status = check_ethosu_payload(data, processed.size(), border, error);
  if (status != PayloadStatus::ok) {
    return status;
  }
  const auto* named_data = context.get_named_data_map();
  status = load_graph(processed, border, named_data, source, error);
  if (status != PayloadStatus::ok) {
    return status;
  }
  if ((mode & MICRONPU_MODE_GRAPH) != 0) {
    if (source.graph) {
      return PayloadStatus::ok;
    }
    error = "The Ethos-U program carries no integer graph that could run in the place of its command stream. "
            "Try: compile it with carry_graph=True.";
    return PayloadStatus::incompatible;
  }
  const auto find = [named_data](const std::string& key, std::vector<uint8_t>& content) {
    if (named_data == nullptr) {
      return false;
    }
    auto found = named_data->get_data(key.c_str());
    if (found.ok()) {
      const auto* bytes = static_cast<const uint8_t*>(found->data());
      content.assign(bytes, bytes + found->size());
    }
    return found.ok();
  };
  if (!inline_blocks(data, processed.size(), find, source.content, error)) {
    return source.graph ? PayloadStatus::ok : PayloadStatus::incompatible;
  }
  source.is_own = true;
  Payload& payload = source.payload;
  payload.inputs.clear();
  payload.outputs.clear();
  if (border.num_inputs > UINT8_MAX || border.num_outputs > UINT8_MAX) {
    error = "The Ethos-U payload has more than 255 inputs or outputs, which no delegate call has.";
    return PayloadStatus::malformed;
  }
  for (size_t i = 0; i < border.num_inputs; ++i) {
    payload.inputs.push_back({static_cast<uint8_t>(i), false});
  }
  for (size_t i = 0; i < border.num_outputs; ++i) {
    payload.outputs.push_back({static_cast<uint8_t>(i), false});
  }
  payload.num_arguments = border.num_inputs;
  return PayloadStatus::ok;
}

const Registration registration({"EthosUBackend", load, false, false});

} // namespace
} // namespace micronpu::ethosu
