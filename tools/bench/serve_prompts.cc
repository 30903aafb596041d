#include "tools/bench/serve_prompts.h"

#include <algorithm>
#include <cmath>
#include <fastdecode/fastdecode.hpp>
#include <iterator>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tools/load/plan.h"
#include "tools/load/trace.h"
#include "tools/option_values.h"
#include "tools/read_file.h"

namespace fastdecode::serve_bench {

namespace {

// Each is one token of most vocabularies, with the space before it.
constexpr const char* kWords[] = {
    "the",  "of",   "and",  "to",    "in",   "a",    "is",   "that", "for",  "it",    "as",    "was",   "with",
    "be",   "by",   "on",   "not",   "he",   "his",  "but",  "at",   "are",  "this",  "have",  "from",  "or",
    "had",  "an",   "they", "which", "one",  "you",  "were", "all",  "her",  "she",   "there", "would", "their",
    "we",   "him",  "been", "has",   "when", "who",  "will", "no",   "more", "if",    "out",   "so",    "up",
    "said", "what", "its",  "about", "than", "into", "them", "can",  "only", "other", "time",  "new"};

// Tokens are drawn apart from lengths, so that other prompts of the same lengths arrive at the same times.
constexpr uint64_t kIdsSeed = 2'000'003, kRunSeed = 1'000'000'007;

load::Lengths RangeOf(int length, double ratio) {
  const auto low = static_cast<int64_t>(std::floor(length * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(length * (1 + ratio)));
  return load::Lengths::Uniform(std::max<int64_t>(1, low), std::max<int64_t>(1, high));
}

std::string DrawWords(int64_t count, load::Random& random) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += std::string(i > 0 ? " " : "") + kWords[random.Between(0, std::size(kWords) - 1)];
  }
  return text;
}

// A line that is a JSON object with `prompt` (a text, or token ids), and perhaps `max_tokens`.
PreparedRequest ReadObject(const std::string& line, const std::string& where, int output_len) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded()) throw Error(FD_INVALID_ARGUMENT, where + "it begins with { and is no JSON object");
  PreparedRequest prompt;
  prompt.output_tokens = output_len;
  bool has_prompt = false;
  for (const auto& [name, value] : object.items()) {
    if (name == "prompt") {
      const auto is_id = [](const nlohmann::json& id) {
        return id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
      };
      const bool is_ids = value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_id);
      if (!value.is_string() && !is_ids) throw Error(FD_INVALID_ARGUMENT, where + "prompt is no text and no token ids");
      has_prompt = true;
      if (is_ids) {
        prompt.ids = value.get<std::vector<int32_t>>();
        prompt.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
      } else {
        prompt.text = value.get<std::string>();
      }
    } else if (name == "max_tokens") {
      if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 || value.get<uint64_t>() > INT32_MAX) {
        throw Error(FD_INVALID_ARGUMENT, where + "max_tokens is " + value.dump() + ", not a whole number from 1 on");
      }
      prompt.output_tokens = value.get<int64_t>();
    } else {
      throw Error(FD_INVALID_ARGUMENT, where + "it has '" + name + "'; there are prompt and max_tokens");
    }
  }
  if (!has_prompt) throw Error(FD_INVALID_ARGUMENT, where + "it has no prompt");
  return prompt;
}

std::vector<PreparedRequest> ReadPromptsFile(const PromptOptions& options) {
  std::istringstream lines(ReadFile(options.prompts_file));
  std::vector<PreparedRequest> prompts;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const std::string where = "--prompts-file: " + options.prompts_file + ":" + std::to_string(number) + ": ";
    if (line.front() == '{') {
      prompts.push_back(ReadObject(line, where, options.output_len));
    } else {
      prompts.push_back({line, {}, 0, options.output_len});
    }
  }
  if (!prompts.empty()) return prompts;
  throw Error(FD_INVALID_ARGUMENT, "--prompts-file: " + options.prompts_file + ": it has no prompt; give one a line");
}

// How long the requests are, before they are scaled, and when they arrive; of a trace also what else there is.
load::Trace Plan(const PromptOptions& options, size_t count) {
  if (!options.trace.empty()) return load::ReadTrace("--trace", options.trace, count);
  load::LoadShape shape = {RangeOf(options.input_len, options.range_ratio),
                           RangeOf(options.output_len, options.range_ratio), options.arrivals, options.seed};
  if (!options.workload.empty()) {
    const load::Workload* workload = load::FindWorkload(options.workload);
    shape.prompt = workload->prompt;
    shape.output = workload->output;
  }
  load::Trace plan;
  plan.requests = load::DrawLoad(shape, count);
  return plan;
}

size_t CountOf(const PromptSource& source, size_t count) { return count == 0 ? source.given.size() : count; }

load::PlannedRequest Scaled(load::PlannedRequest request, double factor) {
  request.prompt_tokens = load::ScaleLength(request.prompt_tokens, factor);
  request.output_tokens = load::ScaleLength(request.output_tokens, factor);
  return request;
}

int64_t TokensOf(const load::PlannedRequest& request) { return request.prompt_tokens + request.output_tokens; }

// The longest; a request of no tokens: there is none.
load::PlannedRequest LongestOf(const std::vector<load::PlannedRequest>& requests, double factor) {
  load::PlannedRequest longest = {0, 0, 0};
  for (const load::PlannedRequest& request : requests) {
    const load::PlannedRequest scaled = Scaled(request, factor);
    if (TokensOf(scaled) > TokensOf(longest)) longest = scaled;
  }
  return longest;
}

// The highest factor of three digits with which all fit; 0: --scale-lengths takes none.
double FittingFactor(const std::vector<load::PlannedRequest>& unscaled, int64_t max_context) {
  constexpr int kDigits = 3;
  constexpr double kFactorMin = 1e-4;
  // No more, as two lengths that are rounded down lose a token at most.
  const double ratio = static_cast<double>(max_context + 1) / static_cast<double>(TokensOf(LongestOf(unscaled, 1)));
  const double unit = std::pow(10, kDigits - 1 - std::floor(std::log10(ratio)));
  for (auto digits = static_cast<int>(ratio * unit); digits > kFactorMin * unit; --digits) {
    const double factor = digits / unit;
    if (TokensOf(LongestOf(unscaled, factor)) <= max_context) return factor;
  }
  return 0;
}

// The lengths of given prompts, if they are known.
std::vector<load::PlannedRequest> KnownLengths(const PromptSource& source, size_t count) {
  std::vector<load::PlannedRequest> known;
  for (size_t i = 0; i < std::min(CountOf(source, count), source.given.size()); ++i) {
    const PreparedRequest& request = source.given[i];
    if (request.prompt_tokens > 0) known.push_back({0, request.prompt_tokens, request.output_tokens});
  }
  return known;
}

// Which option makes requests so long.
std::string LengthOption(const PromptOptions& options) {
  if (!options.trace.empty()) return "--trace";
  if (!options.workload.empty()) return "--workload";
  return options.is_random() ? options.len_options : "--prompts-file";
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

std::vector<PreparedRequest> ReadGivenPrompts(const PromptOptions& options) {
  if (!options.prompts_file.empty()) return ReadPromptsFile(options);
  if (!options.prompt.has_value()) return {};
  return {{*options.prompt, {}, 0, options.output_len}};
}

RequestList MakeRequests(const PromptOptions& options, const PromptSource& source, size_t count) {
  RequestList list;
  load::Random random(options.seed + kIdsSeed + options.run * kRunSeed);
  const load::Trace plan = Plan(options, CountOf(source, count));
  for (const load::PlannedRequest& unscaled : plan.requests) {
    PreparedRequest& request = list.requests.emplace_back();
    if (!source.given.empty()) {
      request = source.given[(list.requests.size() - 1) % source.given.size()];
    } else {
      const load::PlannedRequest planned = Scaled(unscaled, options.scale_lengths);
      request.prompt_tokens = planned.prompt_tokens;
      request.output_tokens = planned.output_tokens;
      if (options.random_text) {
        request.text = DrawWords(planned.prompt_tokens, random);
      } else {
        request.ids = load::DrawIds(planned.prompt_tokens, static_cast<int32_t>(source.ids.first),
                                    static_cast<int32_t>(source.ids.last), random);
      }
    }
    request.arrival = unscaled.arrival;
  }
  list.forced = options.has_lengths();
  list.own_rate = plan.rate;
  list.left_out = plan.left_out;
  return list;
}

void CheckContext(const PromptOptions& options, const PromptSource& source, size_t count, int64_t max_context) {
  if (max_context == 0) return;
  const std::vector<load::PlannedRequest> unscaled =
      source.given.empty() ? Plan(options, count).requests : KnownLengths(source, count);
  const load::PlannedRequest longest = LongestOf(unscaled, options.scale_lengths);
  if (TokensOf(longest) <= max_context) return;
  std::string text = LengthOption(options) + ": a prompt of " + std::to_string(longest.prompt_tokens) +
                     " tokens and an answer of " + std::to_string(longest.output_tokens);
  if (!source.given.empty()) text += " (max_tokens, or --random-output-len)";
  text += " do not fit the context of " + std::to_string(max_context);
  if (options.has_lengths()) {
    char hint[64] = "";
    const double factor = FittingFactor(unscaled, max_context);
    if (factor > 0) std::snprintf(hint, sizeof(hint), "; give --scale-lengths %g or less", factor);
    text += hint;
  }
  throw Error(FD_INVALID_ARGUMENT, text);
}

}  // namespace fastdecode::serve_bench
