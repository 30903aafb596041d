#include "tools/answer.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

constexpr int64_t kSignalCheckNs = 50'000'000;

const char* FinishName(int32_t finish) {
  switch (finish) {
    case FD_FINISH_STOP:
      return "stop";
    case FD_FINISH_LENGTH:
      return "length";
    case FD_FINISH_CANCELLED:
      return "cancelled";
    case FD_FINISH_ERROR:
      return "error";
    case FD_FINISH_DEADLINE:
      return "deadline";
  }
  return "error";
}

nlohmann::json LogprobJson(const Answer::Token& token) {
  nlohmann::json entry = {{"token", token.id}, {"logprob", token.logprob}, {"top", nlohmann::json::array()}};
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

// An event has several tokens where its caller has fallen behind.
void TakeTokens(const TokenEvent& event, Answer* answer) {
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    Answer::Token& token = answer->tokens.emplace_back();
    token.id = event.tokens[i];
    token.time_ns = event.time_ns;
    if (!event.logprobs.empty()) token.logprob = event.logprobs[i];
    if (!event.top_logprobs.empty()) token.top_logprobs = event.top_logprobs[i];
  }
}

std::string JoinIds(const std::vector<Answer::Token>& tokens, size_t first) {
  std::string ids;
  for (size_t i = first; i < tokens.size(); ++i) ids += (i == 0 ? "" : ",") + std::to_string(tokens[i].id);
  return ids;
}

}  // namespace

RequestTimes Answer::Times() const {
  RequestTimes times;
  times.submit_ns = submit_ns;
  for (const Token& token : tokens) times.token_ns.push_back(token.time_ns);
  return times;
}

std::vector<Answer> ReadAnswers(TokenStream& stream, uint32_t choices, LiveOutput live,
                                const std::function<void()>& on_token) {
  std::vector<Answer> answers(choices);
  bool cancelled = false;
  for (uint32_t ended = 0; ended < choices;) {
    if (!cancelled && InterruptGuard::Signal() != 0) {
      stream.Cancel();
      cancelled = true;
    }
    std::optional<TokenEvent> event = stream.Next(kSignalCheckNs);
    if (!event) continue;
    if (!event->finished && on_token) on_token();
    Answer& answer = answers[event->choice];
    const LiveOutput out = event->choice == 0 ? live : LiveOutput::kNone;
    answer.text += event->text;
    if (out == LiveOutput::kText) WriteOut(event->text);
    const size_t known = answer.tokens.size();
    TakeTokens(*event, &answer);
    if (out == LiveOutput::kTokenIds) WriteOut(JoinIds(answer.tokens, known));
    if (!event->finished) continue;
    ++ended;
    answer.finish = event->finish;
    answer.error = event->error;
    answer.choice = event->choice;
    answer.prompt_tokens = event->prompt_tokens;
    answer.cached_tokens = event->cached_tokens;
    answer.submit_ns = event->submit_ns;
    answer.end_ns = event->time_ns;
  }
  return answers;
}

Answer ReadAnswer(TokenStream& stream, LiveOutput live) { return std::move(ReadAnswers(stream, 1, live)[0]); }

std::vector<Answer> NoAnswers(uint32_t choices, const std::string& refusal) {
  std::vector<Answer> answers(choices);
  for (uint32_t choice = 0; choice < choices; ++choice) {
    answers[choice].choice = choice;
    answers[choice].finish = refusal.empty() ? FD_FINISH_CANCELLED : FD_FINISH_ERROR;
    answers[choice].error = refusal;
  }
  return answers;
}

std::string AnswerText(const Answer& answer, LiveOutput live) {
  return live == LiveOutput::kText ? answer.text : JoinIds(answer.tokens, 0);
}

std::string AnswerJson(size_t index, const Answer& answer, bool several, bool logprobs) {
  nlohmann::ordered_json out;
  out["index"] = index;
  if (several) out["choice"] = answer.choice;
  out["text"] = answer.text;
  nlohmann::json ids = nlohmann::json::array();
  for (const Answer::Token& token : answer.tokens) ids.push_back(token.id);
  out["token_ids"] = std::move(ids);
  if (logprobs) {
    nlohmann::json list = nlohmann::json::array();
    for (const Answer::Token& token : answer.tokens) list.push_back(LogprobJson(token));
    out["logprobs"] = std::move(list);
  }
  out["finish_reason"] = FinishName(answer.finish);
  if (answer.finish == FD_FINISH_ERROR) out["error"] = answer.error;
  out["prompt_tokens"] = answer.prompt_tokens;
  out["cached_tokens"] = answer.cached_tokens;
  out["generated_tokens"] = answer.tokens.size();
  out["times"] = TimesJson(answer.Times(), answer.end_ns);
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fastdecode
