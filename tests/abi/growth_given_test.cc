// Structs that a caller fills in, of callers who know an older or a newer header than the library: what they lack has
// its default, what only a newer library knows is refused unless it is 0, and sizes that are none are refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/abi/sized_buffer.h"
#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

std::string TakeMessage(fd_status* status) {
  const std::string message = fd_status_message(status);
  fd_status_destroy(status);
  return message;
}

// How a request went: why it was refused, or its first answer, and how many it has.
struct Outcome {
  std::string refusal;
  int choices = 0;
  std::vector<int32_t> tokens;
  size_t logprobs = 0;  // that events had
  void* user = nullptr;
  int32_t finish = FD_FINISH_ERROR;

  bool operator==(const Outcome& other) const = default;
};

Outcome RunToEnd(fd_engine* engine, uint64_t id) {
  Outcome outcome;
  fd_event event = {};
  event.struct_size = sizeof(event);
  while (fd_next(engine, id, &event, kAnswerTimeoutNs) == 1) {
    outcome.user = event.user;
    outcome.choices += event.kind == FD_EVENT_FINISHED;
    if (event.choice > 0) continue;
    if (event.kind == FD_EVENT_FINISHED) {
      outcome.finish = event.finish;
      continue;
    }
    outcome.tokens.insert(outcome.tokens.end(), event.tokens, event.tokens + event.token_count);
    if (event.logprobs != nullptr) outcome.logprobs += event.token_count * (1 + event.top_logprob_count);
  }
  return outcome;
}

Outcome RunRequest(fd_engine* engine, const fd_request* request) {
  uint64_t id = 0;
  Outcome outcome;
  if (fd_status* refused = fd_submit(engine, request, &id); refused != nullptr) {
    outcome.refusal = TakeMessage(refused);
    return outcome;
  }
  return RunToEnd(engine, id);
}

class GrowthGivenTest : public InterfaceTest {
 protected:
  // Valid, and no field has its default.
  fd_request Unusual() {
    fd_request request;
    fd_request_init(&request, sizeof(request));
    request.add_special_tokens = 0;
    request.prompt = "not used, as there are parts";
    request.prompt_bytes = 3;
    request.prompt_ids = ids_;
    request.prompt_id_count = 3;
    part_ = {};
    part_.struct_size = sizeof(part_);
    part_.ids = ids_ + 1;
    part_.id_count = 4;
    request.parts = &part_;
    request.part_count = 1;
    request.user = this;
    request.deadline_ns = UINT64_MAX - 1;
    request.max_tokens = 11;
    request.min_tokens = 2;
    request.ignore_eos = 1;
    request.include_stop = 1;
    request.stop_token_ids = ids_;
    request.stop_token_id_count = 1;
    request.seed = 77;
    request.temperature = 0.9f;
    request.top_k = 40;
    request.top_p = 0.9f;
    request.min_p = 0.001f;
    request.repetition_penalty = 1.1f;
    request.presence_penalty = 0.1f;
    request.frequency_penalty = 0.2f;
    request.logprobs = 2;
    bias_ = {9, 3};
    request.logit_bias = &bias_;
    request.logit_bias_count = 1;
    request.show_special = 1;
    request.pause_events = 1;
    request.n = 2;
    request.no_prefix_cache = 1;
    request.cache_salt = "salt";
    request.cache_salt_bytes = 4;
    return request;
  }

  int32_t ids_[5] = {4, 5, 6, 7, 8};
  fd_prompt_part part_ = {};
  fd_logit_bias bias_ = {};
};

// What fd_request_init sets, as the header has it.
TEST_F(GrowthGivenTest, DefaultsAreWhatTheHeaderSays) {
  fd_request right = {};
  right.struct_size = sizeof(right);
  right.add_special_tokens = 1;
  right.max_tokens = 16;
  right.temperature = 1;
  right.top_p = 1;
  right.repetition_penalty = 1;
  right.logprobs = -1;
  right.prompt_logprobs = -1;
  right.n = 1;
  fd_bench_request right_bench = {};
  fd_synth right_synth = {};
  right_synth.seed = 1;
  right_synth.k_outlier_factor = 16;
  for (size_t bytes = 16; bytes <= sizeof(fd_request) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    SizedBuffer request(bytes, 1), bench(bytes, 1), synth(bytes, 1);
    fd_request_init(request.get<fd_request>(), bytes);
    request.ExpectBeginsAs(right);
    request.ExpectUntouchedFrom(1);
    fd_bench_request_init(bench.get<fd_bench_request>(), bytes);
    bench.ExpectBeginsAs(right_bench);
    bench.ExpectUntouchedFrom(1);
    fd_synth_init(synth.get<fd_synth>(), bytes);
    if (bytes >= offsetof(fd_synth, out_dir)) {
      right_synth.dtype = synth.get<fd_synth>()->dtype;  // wherever it lies
      EXPECT_STREQ(right_synth.dtype, "bf16");
    }
    synth.ExpectBeginsAs(right_synth);
    synth.ExpectUntouchedFrom(1);
    right_synth.dtype = nullptr;
  }
}

// Cut at every word, a request goes as one does that has the defaults there, valid or not.
TEST_F(GrowthGivenTest, SmallerRequestsHaveDefaultsBehindTheirEnd) {
  const auto engine = MakeEngine(Options());
  struct Case {
    const char* field;  // that is wrong; "": none
    size_t end;         // the byte behind it
    std::function<void(fd_request&)> change;
  };
#define FIELD(name) #name, offsetof(fd_request, name) + sizeof(fd_request::name)
  const Case cases[] = {
      {"", 0, [](fd_request&) {}},
      {FIELD(part_count), [](fd_request& r) { r.parts = nullptr; }},
      {FIELD(max_tokens), [](fd_request& r) { r.max_tokens = 0; }},
      {FIELD(min_tokens), [](fd_request& r) { r.min_tokens = 12; }},
      {FIELD(stop_token_id_count), [](fd_request& r) { r.stop_token_ids = nullptr; }},
      {FIELD(stop_count), [](fd_request& r) { r.stop_count = 1; }},
      {FIELD(temperature), [](fd_request& r) { r.temperature = -1; }},
      {FIELD(top_k), [](fd_request& r) { r.top_k = -1; }},
      {FIELD(top_p), [](fd_request& r) { r.top_p = 2; }},
      {FIELD(min_p), [](fd_request& r) { r.min_p = 2; }},
      {FIELD(repetition_penalty), [](fd_request& r) { r.repetition_penalty = 0; }},
      {FIELD(presence_penalty), [](fd_request& r) { r.presence_penalty = NAN; }},
      {FIELD(frequency_penalty), [](fd_request& r) { r.frequency_penalty = NAN; }},
      {FIELD(logprobs), [](fd_request& r) { r.logprobs = 21; }},
      {FIELD(logit_bias_count), [](fd_request& r) { r.logit_bias = nullptr; }},
      {FIELD(n), [](fd_request& r) { r.n = 0; }},
      {FIELD(cache_salt_bytes), [](fd_request& r) { r.cache_salt = nullptr; }},
  };
#undef FIELD
  for (const Case& one : cases) {
    fd_request whole = Unusual();
    one.change(whole);
    for (size_t bytes = 16; bytes <= sizeof(fd_request); bytes += 8) {
      SCOPED_TRACE(std::string(one.field) + " " + std::to_string(bytes));
      SizedBuffer cut = SizedBuffer::Of(whole, bytes);
      fd_request with_defaults;
      fd_request_init(&with_defaults, sizeof(with_defaults));
      std::memcpy(&with_defaults, &whole, bytes);
      with_defaults.struct_size = sizeof(with_defaults);

      const std::string wrong = TakeMessage(fd_request_check(cut.get<fd_request>()));
      EXPECT_EQ(wrong, TakeMessage(fd_request_check(&with_defaults)));
      if (one.end > 0) {
        const std::string named = std::string(one.field).substr(0, 4);
        EXPECT_EQ(wrong.find(named) != std::string::npos, bytes >= one.end) << wrong;
        continue;
      }
      EXPECT_EQ(wrong, "");
      const Outcome outcome = RunRequest(engine->get(), cut.get<fd_request>());
      EXPECT_EQ(outcome, RunRequest(engine->get(), &with_defaults)) << outcome.refusal;
      EXPECT_EQ(outcome.refusal.empty(), bytes >= offsetof(fd_request, parts)) << outcome.refusal;
      if (!outcome.refusal.empty()) continue;
      EXPECT_EQ(outcome.user, bytes > offsetof(fd_request, user) ? this : nullptr);
      EXPECT_EQ(outcome.tokens.size() > 11, bytes <= offsetof(fd_request, max_tokens));
      EXPECT_EQ(outcome.logprobs > 0, bytes > offsetof(fd_request, logprobs));
      EXPECT_EQ(outcome.choices, bytes > offsetof(fd_request, n) ? 2 : 1);
    }
  }
}

TEST_F(GrowthGivenTest, LargerRequestsAreTakenWhereTheyAreZeroBehindWhatIsKnown) {
  const auto engine = MakeEngine(Options());
  const fd_request whole = Unusual();
  const Outcome right = RunRequest(engine->get(), &whole);
  EXPECT_EQ(right.tokens.size(), 11u) << right.refusal;
  uint64_t id = 0;
  for (size_t bytes = sizeof(fd_request) + 8; bytes <= sizeof(fd_request) + 64; bytes += 8) {
    SizedBuffer larger = SizedBuffer::Of(whole, bytes);
    EXPECT_EQ(RunRequest(engine->get(), larger.get<fd_request>()), right);
    for (size_t i = sizeof(fd_request); i < bytes; ++i) {
      SizedBuffer newer = SizedBuffer::Of(whole, bytes);
      newer.at(0)[i] = 1;
      for (fd_status* refused :
           {fd_request_check(newer.get<fd_request>()), fd_submit(engine->get(), newer.get<fd_request>(), &id)}) {
        EXPECT_EQ(fd_status_code(refused), FD_INVALID_ARGUMENT);
        const std::string message = TakeMessage(refused);
        EXPECT_NE(message.find("fd_request.struct_size"), std::string::npos) << message;
        EXPECT_NE(message.find(std::to_string(sizeof(fd_request))), std::string::npos) << message;
      }
    }
  }
}

// The defaults of the model's makers are written where the caller has room for them, and nowhere else.
TEST_F(GrowthGivenTest, DefaultSamplingStaysWithinTheCallersStruct) {
  ScratchDir folder;
  std::filesystem::copy(model_, folder.File("model"));
  folder.Write("model/generation_config.json", R"({"temperature": 0.5, "top_k": 7, "top_p": 0.25,
                                                   "repetition_penalty": 1.5})");
  const auto engine = MakeEngine(Options() + OptionList{{"model", folder.File("model")}});
  fd_request right = Unusual();
  right.temperature = 0.5f;
  right.top_k = 7;
  right.top_p = 0.25f;
  right.repetition_penalty = 1.5f;
  for (size_t bytes = 16; bytes <= sizeof(fd_request) + 64; bytes += 8) {
    SizedBuffer request = SizedBuffer::Of(Unusual(), bytes);
    EXPECT_EQ(fd_default_sampling(engine->get(), request.get<fd_request>()), 0);
    request.ExpectBeginsAs(right);
    request.ExpectUntouchedFrom(1);
  }
}

TEST_F(GrowthGivenTest, SizesThatAreNoneAreRefusedByName) {
  const auto engine = MakeEngine(Options());
  const auto refused = [](fd_status* status, const std::string& name) {
    EXPECT_EQ(fd_status_code(status), FD_INVALID_ARGUMENT);
    const std::string message = TakeMessage(status);
    EXPECT_NE(message.find(name + ".struct_size"), std::string::npos) << message;
  };
  uint64_t id = 0;
  size_t count = 0;
  int32_t ids[8];
  fd_bench_request bench;
  fd_bench_request_init(&bench, sizeof(bench));
  for (const uint32_t size : kSizesThatAreNone) {
    SCOPED_TRACE(size);
    fd_request request = Unusual();
    part_.struct_size = size;
    refused(fd_submit(engine->get(), &request, &id), "fd_prompt_part");
    refused(fd_request_check(&request), "fd_prompt_part");
    refused(fd_tokenize(engine->get(), &part_, 1, 0, ids, 8, &count), "fd_prompt_part");
    request = Unusual();
    bench.struct_size = size;
    refused(fd_bench_submit(engine->get(), &request, &bench, &id), "fd_bench_request");
    bench.struct_size = sizeof(bench);
    request.struct_size = size;
    refused(fd_submit(engine->get(), &request, &id), "fd_request");
    refused(fd_bench_submit(engine->get(), &request, &bench, &id), "fd_request");
    refused(fd_request_check(&request), "fd_request");
    EXPECT_EQ(fd_default_sampling(engine->get(), &request), FD_BAD_STRUCT_SIZE);
    EXPECT_EQ(request.struct_size, size);
    EXPECT_EQ(request.temperature, 0.9f) << "a struct of no size is left alone";
    fd_synth synth;
    fd_synth_init(&synth, sizeof(synth));
    synth.struct_size = size;
    refused(fd_synthesize(&synth), "fd_synth");
  }
}

// The first one says how large each is.
TEST_F(GrowthGivenTest, ArraysOfPartsHaveTheirCallersStride) {
  const auto engine = MakeEngine(Options());
  const int32_t ids[] = {1, 2, 3, 4, 5, 6};
  for (size_t bytes = 16; bytes <= sizeof(fd_prompt_part) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    SizedBuffer parts(bytes, 3);
    for (size_t i = 0; i < 3; ++i) {
      fd_prompt_part part = {};
      part.struct_size = i == 0 ? static_cast<uint32_t>(bytes) : 13;  // nobody looks at the others'
      part.ids = ids + 2 * i;
      part.id_count = 2;
      std::memset(parts.at(i), 0, bytes);
      std::memcpy(parts.at(i), &part, std::min(bytes, sizeof(part)));
    }
    int32_t out[8] = {};
    size_t count = 0;
    fd_status* const status = fd_tokenize(engine->get(), parts.get<fd_prompt_part>(), 3, 0, out, 8, &count);
    if (bytes <
        offsetof(fd_prompt_part, joins)) {  // its ids are none, or it has no count of them: so does a part of zeros
      fd_status_destroy(status);
      EXPECT_EQ(count, 0u);
      continue;
    }
    EXPECT_EQ(TakeMessage(status), "");
    EXPECT_EQ(std::vector<int32_t>(out, out + count), std::vector<int32_t>(ids, ids + 6));
    fd_request request = Unusual();
    request.parts = parts.get<fd_prompt_part>();
    request.part_count = 3;
    const Outcome outcome = RunRequest(engine->get(), &request);
    request.part_count = 0;
    request.prompt_ids = ids;
    request.prompt_id_count = 6;
    EXPECT_EQ(outcome, RunRequest(engine->get(), &request));
    EXPECT_EQ(outcome.tokens.size(), 11u) << outcome.refusal;
    for (size_t i = sizeof(fd_prompt_part); i < bytes; ++i) {
      parts.at(2)[i] = 1;
      const std::string refusal =
          TakeMessage(fd_tokenize(engine->get(), parts.get<fd_prompt_part>(), 3, 0, out, 8, &count));
      EXPECT_NE(refusal.find("fd_prompt_part.struct_size"), std::string::npos) << refusal;
      parts.at(2)[i] = 0;
    }
  }
}

TEST_F(GrowthGivenTest, BenchRequestsOfOtherSizes) {
  const auto engine = MakeEngine(Options());
  const fd_request request = Unusual();
  std::vector<float> logits(4 * kVocab);
  fd_bench_request whole;
  fd_bench_request_init(&whole, sizeof(whole));
  whole.prompt_logits = logits.data();
  whole.prompt_logits_floats = logits.size();
  uint64_t id = 0;
  for (size_t bytes = 16; bytes <= sizeof(whole) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    SizedBuffer bench = SizedBuffer::Of(whole, bytes);
    std::fill(logits.begin(), logits.end(), NAN);
    const std::string refusal =
        TakeMessage(fd_bench_submit(engine->get(), &request, bench.get<fd_bench_request>(), &id));
    if (bytes < sizeof(whole)) {
      EXPECT_NE(refusal.find("prompt_logits_floats: 0"), std::string::npos) << refusal;
      continue;
    }
    EXPECT_EQ(refusal, "");
    EXPECT_EQ(RunToEnd(engine->get(), id).tokens.size(), 11u);
    for (const float logit : logits) ASSERT_FALSE(std::isnan(logit));
    if (bytes == sizeof(whole)) continue;
    bench.at(0)[bytes - 1] = 1;
    const std::string newer = TakeMessage(fd_bench_submit(engine->get(), &request, bench.get<fd_bench_request>(), &id));
    EXPECT_NE(newer.find("fd_bench_request.struct_size"), std::string::npos) << newer;
  }
}

TEST_F(GrowthGivenTest, SyntheticModelsOfOtherSizes) {
  const std::string right = ReadWhole(model_ + "/model.safetensors");
  fd_synth whole;
  fd_synth_init(&whole, sizeof(whole));
  whole.shape = "tiny-random";
  whole.seed = 9;  // the fixture's
  whole.dtype = "f32";
  whole.k_outlier_factor = 1;
  for (size_t bytes = 16; bytes <= sizeof(whole) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    const std::string folder = dir_.File(std::to_string(bytes));
    whole.out_dir = folder.c_str();
    SizedBuffer synth = SizedBuffer::Of(whole, bytes);
    const std::string refusal = TakeMessage(fd_synthesize(synth.get<fd_synth>()));
    if (bytes <= offsetof(fd_synth, out_dir)) {
      EXPECT_NE(refusal.find("out_dir"), std::string::npos) << refusal;
      continue;
    }
    EXPECT_EQ(refusal, "");
    EXPECT_EQ(ReadWhole(folder + "/model.safetensors"), right);
    if (bytes <= sizeof(whole)) continue;
    synth.at(0)[sizeof(whole)] = 1;
    const std::string newer = TakeMessage(fd_synthesize(synth.get<fd_synth>()));
    EXPECT_NE(newer.find("fd_synth.struct_size"), std::string::npos) << newer;
  }
}

}  // namespace
}  // namespace fastdecode
