#include "engine/disk/fingerprint.h"

#include <filesystem>
#include <span>

#include "base/digest/sha256.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// To be raised whenever a change of the engine changes what pages hold, or the bits of it.
constexpr int kContentVersion = 1;

void add_members(const Json& object, const std::string& left_out, std::string& text) {
  for (const auto& [key, value] : object.as_object()) {
    if (key != left_out) text += key + ":" + value.dump() + "\n";
  }
}

}  // namespace

std::string cache_fingerprint(const std::string& directory, const EngineSettings& settings, const std::string& device,
                              const CachePlan& plan) {
  std::string text = "content " + std::to_string(kContentVersion) + "\n";
  add_members(Json::parse_file(directory + "/spec.json"), "model_name", text);
  const Json manifest = Json::parse_file(directory + "/manifest.json");
  add_members(manifest, "files", text);
  for (const Json& file : manifest.at("files").as_array()) {
    const MappedFile weights((std::filesystem::path(directory) / file.as_string()).string());
    text += std::to_string(checksum(std::span(weights.data(), weights.size()))) + "\n";
  }
  text += device + " " + kernels().name + " tp " + std::to_string(settings.tp) + "\n";
  text += settings.dtype + " weights " + std::to_string(settings.weight_bits) + " cache " +
          std::to_string(settings.quant_policy) + " rope " + std::to_string(settings.rope_scaling_factor) +
          (settings.use_logn_attn ? " logn" : "") + "\n";
  text += "block " + std::to_string(plan.block_len) + " page " + std::to_string(plan.page_bytes) + "\n";
  for (const CacheGroup& group : plan.groups) {
    for (const size_t value :
         {static_cast<size_t>(group.kind), static_cast<size_t>(group.window), static_cast<size_t>(group.block_len),
          static_cast<size_t>(group.pieces), group.piece_bytes, static_cast<size_t>(group.pages)}) {
      text += std::to_string(value) + " ";
    }
    for (const int layer : group.layers) text += std::to_string(layer) + ",";
    text += "\n";
  }
  return hex(sha256(text));
}

}  // namespace turbomind
