#include "tools/bench/serve_prompts.h"

#include <algorithm>
#include <cmath>
#include <fastdecode/fastdecode.hpp>
#include <iterator>
#include <random>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tools/option_values.h"
#include "tools/prompts.h"

namespace fastdecode::serve_bench {

namespace {

// Each is one token of most vocabularies, with the space before it.
constexpr const char* kWords[] = {
    "the",  "of",   "and",  "to",    "in",   "a",    "is",   "that", "for",  "it",    "as",    "was",   "with",
    "be",   "by",   "on",   "not",   "he",   "his",  "but",  "at",   "are",  "this",  "have",  "from",  "or",
    "had",  "an",   "they", "which", "one",  "you",  "were", "all",  "her",  "she",   "there", "would", "their",
    "we",   "him",  "been", "has",   "when", "who",  "will", "no",   "more", "if",    "out",   "so",    "up",
    "said", "what", "its",  "about", "than", "into", "them", "can",  "only", "other", "time",  "new"};

// What is to be asked once.
struct Prompt {
  nlohmann::json value;  // a text, or token ids
  int64_t tokens = 0;    // 0: not known
  int64_t tokens_max = 0;
};

int DrawLength(int length, double ratio, std::mt19937_64& random) {
  const int low = std::max(1, static_cast<int>(std::floor(length * (1 - ratio))));
  const int high = std::max(low, static_cast<int>(std::ceil(length * (1 + ratio))));
  return std::uniform_int_distribution<int>(low, high)(random);
}

Prompt DrawPrompt(const PromptOptions& options, const IdRange& ids, std::mt19937_64& random) {
  Prompt prompt;
  prompt.tokens = DrawLength(options.input_len, options.range_ratio, random);
  prompt.tokens_max = DrawLength(options.output_len, options.range_ratio, random);
  if (options.random_text) {
    std::uniform_int_distribution<size_t> word(0, std::size(kWords) - 1);
    std::string text;
    for (int64_t i = 0; i < prompt.tokens; ++i) text += std::string(i > 0 ? " " : "") + kWords[word(random)];
    prompt.value = text;
    return prompt;
  }
  std::uniform_int_distribution<int64_t> id(ids.first, ids.last);
  std::vector<int64_t> values(prompt.tokens);
  std::generate(values.begin(), values.end(), [&] { return id(random); });
  prompt.value = values;
  return prompt;
}

// A line that is a JSON object with `prompt` (a text, or token ids), and perhaps `max_tokens`.
Prompt ReadObject(const std::string& line, const std::string& where, int output_len) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded()) throw Error(FD_INVALID_ARGUMENT, where + "it begins with { and is no JSON object");
  Prompt prompt{{}, 0, output_len};
  for (const auto& [name, value] : object.items()) {
    if (name == "prompt") {
      const auto is_id = [](const nlohmann::json& id) { return id.is_number_unsigned(); };
      const bool is_ids = value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_id);
      if (!value.is_string() && !is_ids) throw Error(FD_INVALID_ARGUMENT, where + "prompt is no text and no token ids");
      prompt.value = value;
      if (is_ids) prompt.tokens = static_cast<int64_t>(value.size());
    } else if (name == "max_tokens") {
      if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 || value.get<uint64_t>() > INT32_MAX) {
        throw Error(FD_INVALID_ARGUMENT, where + "max_tokens is " + value.dump() + ", not a whole number from 1 on");
      }
      prompt.tokens_max = value.get<int64_t>();
    } else {
      throw Error(FD_INVALID_ARGUMENT, where + "it has '" + name + "'; there are prompt and max_tokens");
    }
  }
  if (prompt.value.is_null()) throw Error(FD_INVALID_ARGUMENT, where + "it has no prompt");
  return prompt;
}

std::vector<Prompt> ReadPromptsFile(const PromptOptions& options) {
  std::istringstream lines(ReadFile(options.prompts_file));
  std::vector<Prompt> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const std::string where = "--prompts-file: " + options.prompts_file + ":" + std::to_string(number) + ": ";
    if (line.front() == '{') {
      prompts.push_back(ReadObject(line, where, options.output_len));
    } else {
      prompts.push_back({line, 0, options.output_len});
    }
  }
  if (!prompts.empty()) return prompts;
  throw Error(FD_INVALID_ARGUMENT, "--prompts-file: " + options.prompts_file + ": it has no prompt; give one a line");
}

LoadRequest MakeRequest(const Prompt& prompt, const PromptOptions& options, const std::string& model) {
  nlohmann::ordered_json body = {{"model", model}, {"prompt", prompt.value}, {"max_tokens", prompt.tokens_max}};
  if (options.temperature.has_value()) body["temperature"] = *options.temperature;
  if (options.logprobs.has_value()) body["logprobs"] = *options.logprobs;
  if (options.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = options.stream;
  if (options.stream) body["stream_options"] = {{"include_usage", true}};
  return {body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), prompt.tokens, prompt.tokens_max};
}

}  // namespace

IdRange ParseIdRange(const std::string& text) {
  constexpr int64_t kIdMax = INT32_MAX;
  IdRange range;
  const size_t dash = std::min(text.find('-'), text.size());
  const std::string_view view = text;
  if (dash == text.size() || !ParseNumber(view.substr(0, dash), &range.first) ||
      !ParseNumber(view.substr(dash + 1), &range.last) || range.last < range.first || range.last > kIdMax) {
    throw Error(FD_INVALID_ARGUMENT, "--vocab: '" + text + "' is no range of token ids; give LOW-HIGH, as in 0-31999");
  }
  return range;
}

std::vector<LoadRequest> MakeRequests(const PromptOptions& options, const std::string& model, const IdRange& ids,
                                      size_t count) {
  std::vector<Prompt> prompts;
  if (options.prompt.has_value()) prompts.push_back({*options.prompt, 0, options.output_len});
  if (!options.prompts_file.empty()) prompts = ReadPromptsFile(options);
  if (count == 0) count = prompts.size();
  std::mt19937_64 random(options.seed);
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const Prompt prompt = options.is_random() ? DrawPrompt(options, ids, random) : prompts[i % prompts.size()];
    requests.push_back(MakeRequest(prompt, options, model));
  }
  return requests;
}

}  // namespace fastdecode::serve_bench
