#ifndef FASTDECODE_TOOLS_ANSWER_H_
#define FASTDECODE_TOOLS_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tools/latency_report.h"

namespace fastdecode {

// What came of one request, or of one of its choices.
struct Answer {
  struct Token {
    int32_t id = 0;
    uint64_t time_ns = 0;
    float logprob = 0;
    std::vector<fd_token_logprob> top_logprobs;
  };

  std::string text;
  std::vector<Token> tokens;
  int32_t finish = FD_FINISH_CANCELLED;  // fd_finish
  std::string error;
  uint32_t choice = 0;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of these, those whose KV other requests had computed
  uint64_t submit_ns = 0, end_ns = 0;

  RequestTimes Times() const;
};

// How an answer goes out while it comes in.
enum class LiveOutput { kNone, kText, kTokenIds };

// Reads one request of so many choices to its end. A signal noted by InterruptGuard cancels it; what has come until
// then are the answers. `live`: of the first choice, since the others come at the same time. `on_token`: called once
// each token has come and before it goes out, if there is one.
std::vector<Answer> ReadAnswers(TokenStream& stream, uint32_t choices, LiveOutput live,
                                const std::function<void()>& on_token = nullptr);
// The same of a request with one choice.
Answer ReadAnswer(TokenStream& stream, LiveOutput live);

// Of a request that the engine did not take: why (finish_reason error), or nothing (cancelled).
std::vector<Answer> NoAnswers(uint32_t choices, const std::string& refusal);

// What ReadAnswers would have written live of this choice. REQUIRES: not kNone.
std::string AnswerText(const Answer& answer, LiveOutput live);

// One line: index, choice if there are several, text, token_ids, logprobs if asked for, finish_reason, error if there
// is one, prompt_tokens, cached_tokens, generated_tokens, times (total_ms, ttft_ms, tpot_ms; docs/GLOSSARY.md).
std::string AnswerJson(size_t index, const Answer& answer, bool several, bool logprobs);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_ANSWER_H_
