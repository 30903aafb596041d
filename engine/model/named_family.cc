#include "engine/model/named_family.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/unsupported_models.h"

namespace fastdecode {
namespace {

std::string UnsupportedBecause(const std::string& what) {
  return absl::StrCat("one of ", FamilyNames(), " (", what, ")");
}

// What a config.json without a model_type may be, to be said behind what is expected; empty where there is no guess.
std::string GuessWithoutModelType(const JsonFields& fields) {
  if (const nlohmann::json* architectures = fields.Find("architectures")) {
    for (const Family& family : Families()) {
      if (*architectures != nlohmann::json::array({family.architecture})) continue;
      return absl::StrCat(" (its architectures make it ", family.model_type, ": add \"model_type\": \"",
                          family.model_type, "\")");
    }
  }
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"error", "a server's answer in place of the file; download it again, logged in if need be"},
      {"peft_type", "a LoRA adapter's; merge that into its base model first"},
      {"_class_name", "of a pipeline of diffusers, which makes pictures"},
      {"word_embedding_dimension", "of a model of sentence-transformers, which makes no text"},
      {"n_layers", "in the layout that Meta and Mistral publish besides; take the folder for transformers"}};
  for (const auto& [field, is] : kOthers) {
    if (fields.Has(field)) return absl::StrCat(" (it has ", field, ": it seems to be ", is, ")");
  }
  return "";
}

// The error for a model_type without a family: what such a model would need, where that is known.
void FailModelType(JsonFields* fields, const std::string& model_type) {
  if (!fields->Has("model_type")) {
    return fields->Fail("model_type", absl::StrCat("one of ", FamilyNames(), GuessWithoutModelType(*fields)));
  }
  if (const auto needs = WhatModelTypeNeeds(model_type)) {
    return fields->Fail("model_type", UnsupportedBecause("not supported: " + *needs));
  }
  for (const char* experts : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
    if (!fields->Has(experts)) continue;
    return fields->Fail(
        "model_type", UnsupportedBecause(absl::StrCat("it has ", experts, ": mixtures of experts are not supported")));
  }
  if (fields->BoolOr("is_encoder_decoder", false)) {
    return fields->Fail("model_type", UnsupportedBecause("encoder-decoders are not supported"));
  }
  fields->Fail("model_type", absl::StrCat("one of ", FamilyNames()));
}

// A head that gives classes, scores or spans in place of tokens.
bool MakesNoText(std::string_view architecture) {
  constexpr std::string_view kHeads[] = {"Classification", "QuestionAnswering", "MultipleChoice", "Reward"};
  return std::ranges::any_of(kHeads,
                             [&](std::string_view head) { return architecture.find(head) != std::string_view::npos; });
}

void CheckArchitectures(JsonFields* fields, const char* expected, NamedFamily* named) {
  const nlohmann::json* architectures = fields->Find("architectures");
  if (architectures == nullptr) return;
  bool is_expected = architectures->empty();
  for (const nlohmann::json& one : architectures->is_array() ? *architectures : nlohmann::json::array({nullptr})) {
    if (!one.is_string() || MakesNoText(one.get_ref<const std::string&>())) {
      return fields->Fail("architectures", absl::StrCat("[\"", expected, "\"]"));
    }
    is_expected = is_expected || one == expected;
  }
  if (is_expected) return;
  named->notes.push_back(absl::StrCat(fields->file(), ": architectures is ", ShowJson(*architectures),
                                      ": it does not count; model_type makes it a ", expected));
}

void RefuseQuantized(JsonFields* fields, NamedFamily* named) {
  const nlohmann::json* quantized = fields->Find("quantization_config");
  if (quantized == nullptr) return;
  if (IsUnknownQuantization(*quantized)) {
    named->notes.push_back(absl::StrCat(fields->file(), ": quantization_config is ", ShowJson(*quantized),
                                        ", a method that is not known: it does not count, as in transformers"));
    return;
  }
  fields->Fail("quantization_config",
               absl::StrCat("none: quantised weights are not supported (these are ", DescribeQuantization(*quantized),
                            "); take a checkpoint in bf16, f16 or f32"));
}

}  // namespace

NamedFamily ReadFamily(JsonFields* fields, absl::Status* error) {
  NamedFamily named;
  std::string model_type = fields->Has("model_type") ? fields->String("model_type") : "";
  const Wrapper* wrapper = FindWrapper(model_type);
  if (wrapper != nullptr) {
    const nlohmann::json* text_config = fields->Find("text_config");
    if (text_config == nullptr || !text_config->is_object()) {
      fields->Fail("text_config", absl::StrCat("an object that describes the text model of a ", model_type));
      return named;
    }
    named.text_config = text_config;
    JsonFields text(*text_config, fields->file(), "text_config.", error);
    model_type = text.StringOr("model_type", wrapper->text_type);
    named.family = FindFamily(model_type);
    if (named.family == nullptr) FailModelType(&text, model_type);
    RefuseQuantized(&text, &named);
  } else {
    named.family = FindFamily(model_type);
    if (named.family == nullptr) FailModelType(fields, model_type);
  }
  if (named.family == nullptr) return named;
  CheckArchitectures(fields, wrapper != nullptr ? wrapper->architecture : named.family->architecture, &named);
  RefuseQuantized(fields, &named);
  return named;
}

}  // namespace fastdecode
