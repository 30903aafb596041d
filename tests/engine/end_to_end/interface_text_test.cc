// Text in and out of an engine, and tokenizers that are not as they should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/interface_fixture.h"
#include "tests/engine/request/llama2_tokenizer.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class InterfaceTextTest : public InterfaceTest {
 protected:
  void WriteTokenizer(const std::string& text) { dir_.Write("model/tokenizer.json", text); }
  // kLlama2TokenizerJson with one thing changed.
  static std::string Changed(const std::string& from, const std::string& to) {
    std::string text = kLlama2TokenizerJson;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  // An engine whose warnings are kept.
  std::unique_ptr<InferenceEngine> MakeHeard() {
    EngineOptions options;
    for (const auto& [name, value] : Options()) options.Set(name, value);
    const auto keep = [](void* user, int, const char* message) {
      const std::string text = message;
      if (text.find("token") != std::string::npos) static_cast<InterfaceTextTest*>(user)->warnings_.push_back(text);
    };
    options.SetLog(keep, this, /*level_min=*/2);
    return std::make_unique<InferenceEngine>(options);
  }
  static std::string TextOf(InferenceEngine& engine, const GenerateRequest& request) {
    TokenStream stream = engine.Submit(request);
    std::string text;
    while (const std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) text += event->text;
    return text;
  }
  // It generates this token alone.
  static GenerateRequest Repeat(std::vector<int32_t> prompt, int32_t token, uint32_t count) {
    GenerateRequest request = GreedyRequest(std::move(prompt), count);
    request.fields.ignore_eos = 1;
    request.logit_bias = {{token, 1000}};
    return request;
  }

  std::vector<std::string> warnings_;  // that tell of tokens or tokenizers
};

TEST_F(InterfaceTextTest, ATokenizerThatCannotBeReadStopsNobodyWhoGivesTokenIds) {
  const struct {
    std::string text;
    const char* reason;
  } cases[] = {{"{", "tokenizer.json: not valid JSON"},
               {Changed("\"a b\"", "\"a x\""), "tokenizer.json: model.merges"},
               {Changed("\"BPE\"", "\"Unigram\""), "tokenizer.json: model.type is \"Unigram\""}};
  for (const auto& [text, reason] : cases) {
    SCOPED_TRACE(reason);
    WriteTokenizer(text);
    warnings_.clear();
    const auto engine = MakeHeard();
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr(reason)));
    EXPECT_FALSE(engine->has_tokenizer());
    EXPECT_THAT(engine->tokenizer_missing_reason(), HasSubstr(reason));
    EXPECT_EQ(TextOf(*engine, GreedyRequest({1, 2, 3}, 4)), "");
    ExpectError(SubmitError(*engine, GenerateRequest("text")), FD_INVALID_ARGUMENT, reason);
    GenerateRequest stops = GreedyRequest({1, 2, 3}, 4);
    stops.stop = {"x"};
    ExpectError(SubmitError(*engine, stops), FD_INVALID_ARGUMENT, reason);
  }
}

TEST_F(InterfaceTextTest, WhoNeedsTextHearsOfItBeforeTheWeightsAreRead) {
  std::filesystem::remove(model_ + "/model.safetensors");
  const auto needing_text = [&](const char* value) {
    return EngineError(Options() + OptionList{{"need-text", value}});
  };
  EXPECT_THAT(needing_text("true").what(),
              AllOf(HasSubstr("no tokenizer: neither tokenizer.json"), HasSubstr("--prompt-ids")));
  EXPECT_EQ(needing_text("true").code(), FD_NOT_FOUND);
  WriteTokenizer(Changed("\"a b\"", "\"a x\""));
  EXPECT_THAT(needing_text("true").what(), AllOf(HasSubstr("tokenizer.json: model.merges"), HasSubstr("--prompt-ids")));
  EXPECT_EQ(needing_text("true").code(), FD_INVALID_ARGUMENT);
  EXPECT_THAT(needing_text("false").what(), HasSubstr("safetensors"));
  WriteTokenizer(kLlama2TokenizerJson);
  EXPECT_THAT(needing_text("true").what(), HasSubstr("safetensors"));
  ExpectError(needing_text("maybe"), FD_INVALID_ARGUMENT, "--need-text: 'maybe'");
}

TEST_F(InterfaceTextTest, WarnsOfTokensThatTheModelDoesNotHave) {
  WriteTokenizer(kLlama2TokenizerJson);  // less than the model has, which is usual
  MakeHeard();
  EXPECT_THAT(warnings_, IsEmpty());
  WriteTokenizer(Changed("\"f\": 10,", "\"f\": 10, \"z\": 299,"));
  const auto engine = MakeHeard();
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr(model_ + "/tokenizer.json: "), HasSubstr("up to 299"),
                                           HasSubstr("256 rows"), HasSubstr("from 256 on are refused"))));
  EXPECT_THAT(TextOf(*engine, Repeat(engine->Tokenize("ab"), 7, 2)), "aa");
  ExpectError(SubmitError(*engine, GenerateRequest("abz")), FD_INVALID_ARGUMENT,
              model_ + "/tokenizer.json: token id 299");
}

TEST_F(InterfaceTextTest, WarnsOnceOfPromptsThatBeginWithBosTwice) {
  WriteTokenizer(kLlama2TokenizerJson);
  const auto engine = MakeHeard();
  EXPECT_THAT(engine->Tokenize("ab"), ElementsAre(kLlama2Bos, 13));
  EXPECT_THAT(engine->Tokenize("<s>ab", /*add_special_tokens=*/false), ElementsAre(kLlama2Bos, 13));
  EXPECT_THAT(warnings_, IsEmpty());
  GenerateRequest twice("<s>ab");
  twice.fields.max_tokens = 1;
  for (int i = 0; i < 2; ++i) TextOf(*engine, twice);
  EXPECT_THAT(engine->Tokenize("<s>ab"), ElementsAre(kLlama2Bos, kLlama2Bos, 13));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("bos (token id 1) twice")));
}

TEST_F(InterfaceTextTest, PartsThatJoinAreOneText) {
  WriteTokenizer(kLlama2TokenizerJson);
  const auto engine = MakeEngine(Options());
  const auto ids = [&](const std::vector<PromptPart>& parts) {
    return engine->Tokenize(parts, /*add_special_tokens=*/false);
  };
  const PromptPart a = {"a", true, {}}, b = {"b", false, {}}, joining_b = {"b", false, {}, /*joins=*/true};
  EXPECT_THAT(ids({a, joining_b}), ElementsAre(13));
  EXPECT_EQ(ids({a, b}).size(), 2u);
  EXPECT_THAT(ids({{"<|us", true, {}}, {"er|>", true, {}, true}}), ElementsAre(kLlama2User));
  EXPECT_THAT(ids({{"<|us", true, {}}, {"er|>", false, {}, true}}), Not(Contains(kLlama2User)));
  GenerateRequest request(std::vector<PromptPart>{a, joining_b});
  request.fields.max_tokens = 1;
  TextOf(*engine, request);

  // Callers who do not know the field have arrays of smaller parts, which do not join.
  fd_prompt_part parts[] = {RequestView::View(a), RequestView::View(joining_b)};
  constexpr size_t kBefore = offsetof(fd_prompt_part, joins);
  for (fd_prompt_part& part : parts) part.struct_size = kBefore;
  std::vector<char> smaller(2 * kBefore);
  std::memcpy(smaller.data(), &parts[0], kBefore);
  std::memcpy(smaller.data() + kBefore, &parts[1], kBefore);
  int32_t out[8];
  size_t count = 0;
  ThrowIfError(
      fd_tokenize(engine->get(), reinterpret_cast<const fd_prompt_part*>(smaller.data()), 2, 0, out, 8, &count));
  EXPECT_EQ(std::vector<int32_t>(out, out + count), ids({a, b}));
  parts[0].struct_size = sizeof(fd_prompt_part);
  parts[1].reserved = 1;
  fd_status* const refused = fd_tokenize(engine->get(), parts, 2, 0, out, 8, &count);
  ASSERT_NE(refused, nullptr);
  EXPECT_STREQ(fd_status_message(refused), "fd_prompt_part.reserved: 1 is not 0");
  fd_status_destroy(refused);
}

TEST_F(InterfaceTextTest, SpecialTokensAreShownIfThatIsAskedFor) {
  WriteTokenizer(kLlama2TokenizerJson);
  const auto engine = MakeEngine(Options());
  GenerateRequest request = Repeat({kLlama2Bos, 13}, kLlama2User, 3);
  EXPECT_EQ(TextOf(*engine, request), "");
  request.fields.show_special = 1;
  EXPECT_EQ(TextOf(*engine, request), "<|user|><|user|><|user|>");
  request.stop = {"user|><"};
  EXPECT_EQ(TextOf(*engine, request), "<|");
  request.stop.clear();
  request.stop_token_ids = {kLlama2User};
  EXPECT_EQ(TextOf(*engine, request), "") << "a stop token is in no event";
  EXPECT_EQ(engine->Detokenize({kLlama2Bos, 13, kLlama2User}), "ab");
}

TEST_F(InterfaceTextTest, AnswersGoOnFromTheirPrompts) {
  WriteTokenizer(kLlama2TokenizerJson);
  const auto engine = MakeEngine(Options());
  for (const std::vector<int32_t>& prompt : {std::vector<int32_t>{kLlama2Bos}, engine->Tokenize("cab")}) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), {13, 13});
    EXPECT_EQ(engine->Detokenize(prompt) + TextOf(*engine, Repeat(prompt, 13, 2)), engine->Detokenize(all));
  }
}

// Llama 2 writes a line's end as a byte token, and a run of those is text only when it has ended.
TEST_F(InterfaceTextTest, StopStringsAreFoundInARunOfByteTokens) {
  WriteTokenizer(Changed("\"<0xA9>\": 5", "\"<0x0A>\": 5"));
  const auto engine = MakeEngine(Options());
  const struct {
    const char* stop;
    uint32_t min_tokens, max_tokens, generated;
    int32_t finish;
    const char* text;
  } cases[] = {{"\n\n", 0, 6, 2, FD_FINISH_STOP, ""},
               {"\n\n", 0, 2, 2, FD_FINISH_STOP, ""},
               {"\n", 3, 6, 4, FD_FINISH_STOP, "\n\n\n"},
               {"\n\n", 3, 6, 5, FD_FINISH_STOP, "\n\n\n"},
               {"\n\n", 5, 6, 6, FD_FINISH_LENGTH, "\n\n\n\n\n\n"},
               {"x", 0, 3, 3, FD_FINISH_LENGTH, "\n\n\n"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.stop) + " " + std::to_string(c.min_tokens) + " " + std::to_string(c.max_tokens));
    GenerateRequest request = Repeat({kLlama2Bos, 13}, 5, c.max_tokens);
    request.stop = {c.stop};
    request.fields.min_tokens = c.min_tokens;
    TokenStream stream = engine->Submit(request);
    std::string text;
    std::optional<TokenEvent> last;
    while (std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) {
      text += event->text;
      last = std::move(event);
    }
    ASSERT_TRUE(last.has_value() && last->finished);
    EXPECT_EQ(last->finish, c.finish);
    EXPECT_EQ(last->stop_index, c.finish == FD_FINISH_STOP ? 0 : -1);
    EXPECT_EQ(last->generated_tokens, c.generated);
    EXPECT_EQ(text, c.text);
  }
}

}  // namespace
}  // namespace fastdecode
