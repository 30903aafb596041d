#include "engine/start/model_json.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/families.h"
#include "engine/request/build_request.h"
#include "nlohmann/json.hpp"

namespace fastdecode {

namespace {

// Whether the tokenizer puts bos before a text, and eos behind it.
struct Surroundings {
  bool bos = false, eos = false;
};

Surroundings FindSurroundings(const Tokenizer& tokenizer) {
  constexpr int32_t kText = -1;  // stands for the text; it is no token
  const std::vector<int32_t> text = {kText};
  const Tokenizer::Part part = {"", /*special=*/false, text};
  const std::vector<int32_t> ids = tokenizer.EncodeParts({&part, 1}, /*add_special_tokens=*/true);
  const auto at = std::find(ids.begin(), ids.end(), kText);
  const std::optional<int> bos = tokenizer.bos_id(), eos = tokenizer.eos_id();
  return {bos.has_value() && std::find(ids.begin(), at, *bos) != at,
          eos.has_value() && std::find(at, ids.end(), *eos) != ids.end()};
}

}  // namespace

std::string ModelToJson(const std::string& model, const ModelSpec& spec, int max_context, const Tokenizer* tokenizer) {
  const Family* const family = FindFamily(spec.family);
  nlohmann::json out = {{"model", model},
                        {"architecture", family == nullptr ? spec.family : family->architecture},
                        {"vocab_size", spec.vocab},
                        {"max_context", max_context},
                        {"tokenizer_file", nullptr},
                        {"stop_token_ids", ModelStopTokens(spec, tokenizer)}};
  const auto add_token = [&](const std::string& name, std::optional<int> id) {
    out[name] = nullptr;
    out[name + "_id"] = nullptr;
    if (!id.has_value()) return;
    out[name] = tokenizer->TokenBytes(*id);
    out[name + "_id"] = *id;
  };
  add_token("bos_token", tokenizer == nullptr ? std::nullopt : tokenizer->bos_id());
  add_token("eos_token", tokenizer == nullptr ? std::nullopt : tokenizer->eos_id());
  Surroundings added;
  if (tokenizer != nullptr) {
    out["tokenizer_file"] = tokenizer->file();
    added = FindSurroundings(*tokenizer);
  }
  out["add_bos_token"] = added.bos;
  out["add_eos_token"] = added.eos;
  // Names of files are bytes.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fastdecode
