#include <cmath>
#include <cstdio>

#include "kernels/sampler.h"

namespace fastdecode {
namespace {

template <class... Args>
std::string Format(const char* format, Args... args) {
  char text[160];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// Empty if low <= value <= high; NaN is not.
std::string CheckRange(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return "";
  return Format("%s: %g is not in [%g, %.10g]", field, value, low, high);
}

std::string CheckId(const char* field, int32_t token, int vocab) {
  if (token >= 0 && token < vocab) return "";
  return Format("%s: token %d is not in [0, %d)", field, token, vocab);
}

}  // namespace

std::string ValidateSampling(const SamplingParams& params) {
  const struct {
    const char* field;
    double value, low, high;  // limits of a float as floats, so that it can be at its limit
  } ranges[] = {{"temperature", params.temperature, 0, 100},
                {"top_k", static_cast<double>(params.top_k), 0, 2147483647.0},
                {"top_p", params.top_p, 1e-6f, 1},
                {"min_p", params.min_p, 0, 1},
                {"repetition_penalty", params.repetition_penalty, 0.01f, 100},
                {"presence_penalty", params.presence_penalty, -2, 2},
                {"frequency_penalty", params.frequency_penalty, -2, 2},
                {"logprobs", static_cast<double>(params.logprobs), -1, kMaxLogprobs}};
  for (const auto& range : ranges) {
    std::string message = CheckRange(range.field, range.value, range.low, range.high);
    if (!message.empty()) return message;
  }
  return "";
}

std::string ValidateTokens(int vocab, std::span<const LogitBias> bias, std::span<const int32_t> allowed,
                           std::span<const int32_t> banned) {
  std::string message;
  for (size_t i = 0; i < bias.size() && message.empty(); ++i) {
    message = CheckId("logit_bias", bias[i].token, vocab);
    if (!std::isfinite(bias[i].bias)) {
      message = Format("logit_bias: the bias of token %d is %g", bias[i].token, double{bias[i].bias});
    }
    if (i > 0 && bias[i].token == bias[i - 1].token) {
      message = Format("logit_bias: token %d is there twice", bias[i].token);
    } else if (i > 0 && bias[i].token < bias[i - 1].token) {
      message = Format("logit_bias: token %d comes after token %d", bias[i].token, bias[i - 1].token);
    }
  }
  for (size_t i = 0; i < allowed.size() && message.empty(); ++i) message = CheckId("allowed", allowed[i], vocab);
  for (size_t i = 0; i < banned.size() && message.empty(); ++i) message = CheckId("banned", banned[i], vocab);
  return message;
}

}  // namespace fastdecode
