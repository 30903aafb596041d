#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_ENGINE_RUNS_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_ENGINE_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode_bench.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fastdecode {

// Option names and values, in the order in which they are set; a later one replaces an earlier one.
using OptionList = std::vector<std::pair<std::string, std::string>>;

OptionList operator+(OptionList left, const OptionList& right);

// Throws Error as the engine does. Unless told otherwise, it waits for its homes much longer than the default.
std::unique_ptr<InferenceEngine> MakeEngine(const OptionList& options);
// What creating an engine throws; FD_OK and no message if it can be made.
Error EngineError(const OptionList& options);

// How one request went.
struct Answer {
  bool ended = false;  // its last event came within kAnswerTimeoutNs
  int32_t finish = FD_FINISH_ERROR;
  std::string error;
  std::vector<int32_t> tokens;
  std::vector<int32_t> pauses;  // which homes were lost
  fd_request_times times = {};
  uint64_t end_ns = 0;               // engine clock
  std::vector<float> prompt_logits;  // [prompt tokens][vocab], if asked for
};

// Generous: the machine may be busy with other things, and sanitizers are slow. A request that takes longer is lost.
inline constexpr int64_t kAnswerTimeoutNs = 120'000'000'000;

// Submits all of them at once and reads every answer to its end.
std::vector<Answer> RunAll(InferenceEngine& engine, const std::vector<GenerateRequest>& requests, bool with_logits);
// The rest of one stream, behind what `answer` has.
void ReadToEnd(TokenStream& stream, Answer* answer);
// Adds one event.
void Record(const TokenEvent& event, Answer* answer);

GenerateRequest GreedyRequest(std::vector<int32_t> prompt_ids, uint32_t max_tokens);
// Every field that shapes the tokens is drawn at random; greedy in one of four.
GenerateRequest RandomRequest(std::mt19937_64& random, int vocab, uint32_t prompt_tokens, uint32_t max_tokens);
std::vector<int32_t> RandomPrompt(std::mt19937_64& random, int vocab, uint32_t tokens);

// A fastdecode checkpoint of two layers in `dir`/NAME, whose context is max_context tokens. Returns its path.
std::string WriteTinyModel(const std::string& dir, const std::string& name, int max_context, uint64_t seed);

// Waits until a number in the engine's statistics, written now and then, has this value; fails the test if it never
// has.
void ExpectSoon(const InferenceEngine& engine, const std::string& name, double value);
// The value of a number in the engine's statistics; fails the test if there is none.
double Statistic(const InferenceEngine& engine, const std::string& name);
// How many homes are up, and how many there are.
struct HomeCounts {
  int up = 0;
  int all = 0;
};
HomeCounts CountHomes(const InferenceEngine& engine);
// What a home said last of its pages; nothing: it does not answer.
struct HomesPages {
  uint64_t all = 0, used = 0, free = 0, held = 0, age_ns = 0;
};
std::optional<HomesPages> AskForPages(const InferenceEngine& engine, int home);
// The same, waited for until the home has said what fulfils the condition; nothing: it has not before kAnswerTimeoutNs
// had passed.
std::optional<HomesPages> AwaitPages(
    const InferenceEngine& engine, int home,
    const std::function<bool(const HomesPages&)>& condition = [](const HomesPages&) { return true; });
// Hops of all homes whose names begin so, since the last reset.
double HopsOfHome(const InferenceEngine& engine, const std::string& name);
// Whether all homes are up before kAnswerTimeoutNs has passed.
bool WaitForAllHomes(const InferenceEngine& engine);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_ENGINE_RUNS_H_
