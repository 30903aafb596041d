#include "engine/model/activation_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"gelu_python", Activation::kGelu},
    {"gelu_python_tanh", Activation::kGeluTanh},
    {"gelu_accurate", Activation::kGeluTanh},
};

}  // namespace

std::optional<Activation> FindActivation(const std::string& name) {
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return activation;
  }
  return std::nullopt;
}

std::string ActivationNames() {
  std::string names;
  for (const auto& [name, activation] : kActivations) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return names;
}

const char* ActivationName(Activation activation) {
  const auto* found = std::ranges::find_if(kActivations, [&](const auto& entry) { return entry.second == activation; });
  return found->first;
}

}  // namespace fastdecode
