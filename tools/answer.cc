#include "tools/answer.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

constexpr int64_t kSignalCheckNs = 50'000'000;

const char* FinishName(fd_finish finish) {
  switch (finish) {
    case FD_FINISH_STOP:
      return "stop";
    case FD_FINISH_LENGTH:
      return "length";
    case FD_FINISH_CANCELLED:
      return "cancelled";
    case FD_FINISH_ERROR:
      return "error";
  }
  return "error";
}

nlohmann::json LogprobJson(const TokenEvent& token) {
  nlohmann::json entry = {{"token", token.token}, {"logprob", token.logprob}, {"top", nlohmann::json::array()}};
  for (const fd_token_logprob& top : token.top_logprobs) {
    entry["top"].push_back({{"token", top.token}, {"logprob", top.logprob}});
  }
  return entry;
}

nlohmann::json TimesJson(const RequestTimes& times, uint64_t end_ns) {
  const auto ms = [](uint64_t later_ns, uint64_t earlier_ns) {
    return static_cast<double>(later_ns - earlier_ns) * 1e-6;
  };
  nlohmann::json out;
  out["total_ms"] = ms(end_ns, times.submit_ns);
  const std::vector<uint64_t>& tokens = times.token_ns;
  if (!tokens.empty()) out["ttft_ms"] = ms(tokens.front(), times.submit_ns);
  if (tokens.size() > 1) out["tpot_ms"] = ms(tokens.back(), tokens.front()) / static_cast<double>(tokens.size() - 1);
  return out;
}

}  // namespace

RequestTimes Answer::Times() const {
  RequestTimes times;
  times.submit_ns = end.submit_ns;
  for (const TokenEvent& token : tokens) times.token_ns.push_back(token.time_ns);
  return times;
}

Answer ReadAnswer(TokenStream& stream, LiveOutput live, const std::function<void()>& on_token) {
  Answer answer;
  bool cancelled = false;
  for (;;) {
    if (!cancelled && InterruptGuard::Signal() != 0) {
      stream.Cancel();
      cancelled = true;
    }
    std::optional<TokenEvent> event = stream.Next(kSignalCheckNs);
    if (!event) continue;
    if (!event->finished && on_token) on_token();
    answer.text += event->text;
    if (live == LiveOutput::kText) WriteOut(event->text);
    if (live == LiveOutput::kTokenIds && !event->finished) {
      WriteOut((answer.tokens.empty() ? "" : ",") + std::to_string(event->token));
    }
    if (event->finished) {
      answer.end = *std::move(event);
      return answer;
    }
    answer.tokens.push_back(*std::move(event));
  }
}

Answer NoAnswer(const std::string& refusal) {
  Answer answer;
  answer.end.finish = refusal.empty() ? FD_FINISH_CANCELLED : FD_FINISH_ERROR;
  answer.end.error = refusal;
  return answer;
}

std::string AnswerText(const Answer& answer, LiveOutput live) {
  if (live == LiveOutput::kText) return answer.text;
  std::string ids;
  for (const TokenEvent& token : answer.tokens) ids += (ids.empty() ? "" : ",") + std::to_string(token.token);
  return ids;
}

std::string AnswerJson(size_t index, const Answer& answer, bool logprobs) {
  nlohmann::ordered_json out;
  out["index"] = index;
  out["text"] = answer.text;
  nlohmann::json ids = nlohmann::json::array();
  for (const TokenEvent& token : answer.tokens) ids.push_back(token.token);
  out["token_ids"] = std::move(ids);
  if (logprobs) {
    nlohmann::json list = nlohmann::json::array();
    for (const TokenEvent& token : answer.tokens) list.push_back(LogprobJson(token));
    out["logprobs"] = std::move(list);
  }
  out["finish_reason"] = FinishName(answer.end.finish);
  if (answer.end.finish == FD_FINISH_ERROR) out["error"] = answer.end.error;
  out["prompt_tokens"] = answer.end.prompt_tokens;
  out["generated_tokens"] = answer.end.generated_tokens;
  out["times"] = TimesJson(answer.Times(), answer.end.time_ns);
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fastdecode
