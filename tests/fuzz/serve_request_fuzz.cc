#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tools/serve/api_error.h"
#include "tools/serve/openai/chat_request.h"
#include "tools/serve/openai/chat_writer.h"
#include "tools/serve/openai/completion_request.h"
#include "tools/serve/openai/completion_writer.h"
#include "tools/serve/openai/json_reader.h"
#include "tools/serve/openai/tokenize_request.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using serve::ApiError;

const serve::RequestLimits kLimits = {
    .choices = 4, .sequences = 6, .stop_strings = 3, .stop_bytes = 9, .stop_token_ids = 3, .logit_bias = 3};

// True if `read` throws nothing. An error that it throws must be one that a client can be told.
bool Accepts(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const ApiError& error) {
    FD_CHECK(error.status == 400 && !error.message.empty(), "a refusal says why");
    FD_CHECK(error.message.size() < 2000, "a refusal is short");
    FD_CHECK(error.message.compare(0, error.param.size(), error.param) == 0, "a refusal names its field first");
    const json written = json::parse(serve::ErrorJson(error));
    FD_CHECK(written["error"]["type"] == "invalid_request_error", "a refusal can be written");
    return false;
  }
}

bool IsIn(double value, double low, double high) { return value >= low && value <= high; }

void CheckFields(const serve::AnswerRequest& request) {
  const fd_request& fields = request.generate.fields;
  FD_CHECK(IsIn(fields.temperature, 0, 100) && IsIn(fields.top_p, 0.9e-6, 1) && IsIn(fields.min_p, 0, 1),
           "sampling is in range");
  FD_CHECK(IsIn(fields.repetition_penalty, 0.0099, 100) && IsIn(fields.presence_penalty, -2, 2) &&
               IsIn(fields.frequency_penalty, -2, 2) && fields.top_k >= 0,
           "penalties are in range");
  FD_CHECK(IsIn(fields.logprobs, -1, 20) && IsIn(fields.prompt_logprobs, -1, 20), "logprobs are in range");
  FD_CHECK(request.length_field == nullptr || fields.min_tokens <= fields.max_tokens, "lengths fit each other");
  FD_CHECK(fields.max_tokens > 0 || fields.prompt_logprobs >= 0, "something is wanted");
  FD_CHECK(request.generate.stop.size() <= kLimits.stop_strings, "stop strings have a limit");
  for (const std::string& stop : request.generate.stop) {
    FD_CHECK(!stop.empty() && stop.size() <= kLimits.stop_bytes && stop.find('\0') == std::string::npos &&
                 serve::IsUtf8(stop),
             "a stop string can be looked for");
  }
  FD_CHECK(request.generate.stop_token_ids.size() <= kLimits.stop_token_ids, "stop tokens have a limit");
  for (const int32_t id : request.generate.stop_token_ids) FD_CHECK(id >= 0, "ids are not negative");
  FD_CHECK(request.generate.logit_bias.size() <= kLimits.logit_bias, "biases have a limit");
  for (const fd_logit_bias& bias : request.generate.logit_bias) {
    FD_CHECK(bias.token >= 0 && IsIn(bias.bias, -100, 100), "biases are in range");
  }
}

void CheckPrompts(const serve::CompletionRequest& request) {
  FD_CHECK(request.n >= 1 && request.n <= kLimits.choices, "the number of answers has a limit");
  FD_CHECK(!request.prompts.empty() && request.prompts.size() * request.n <= kLimits.sequences,
           "the number of sequences has a limit");
  for (const serve::Prompt& prompt : request.prompts) {
    FD_CHECK(serve::IsUtf8(prompt.text), "a prompt is UTF-8");
    FD_CHECK(prompt.is_ids != prompt.ids.empty(), "a prompt of ids has some");
    for (const int32_t id : prompt.ids) FD_CHECK(id >= 0, "ids are not negative");
  }
}

// An answer that says what the request does.
void WriteAnswer(const serve::CompletionRequest& request) {
  serve::CompletionWriter::Head head;
  head.id = request.request_id;
  head.model = request.model;
  head.logprobs = true;
  head.return_token_ids = request.return_token_ids;
  const serve::Prompt& prompt = request.prompts[0];
  const serve::CompletionWriter writer(
      head, [&](int32_t id) { return prompt.text.substr(static_cast<size_t>(id) % (prompt.text.size() + 1), 3); });
  serve::Piece piece;
  piece.text = prompt.text;
  piece.run.tokens = {0, 1, 2, 3};
  piece.run.logprobs = {std::nanf(""), request.generate.fields.top_p, -INFINITY, -0.5f};
  if (!request.generate.stop.empty()) piece.stop_string = request.generate.stop[0];
  std::string chunk;
  writer.AppendChunk(&piece, {}, &chunk);
  FD_CHECK(chunk.find('\n') == chunk.size() - 2, "an event is one line");
  const json written = json::parse(chunk.substr(6));
  FD_CHECK(written["model"] == request.model && written["choices"][0]["text"] == prompt.text,
           "what was written reads back");
  FD_CHECK(written["choices"][0]["logprobs"]["tokens"].size() == 4, "every token has a name");
}

// What the engine gets of a chat is what was checked.
void CheckChat(const serve::ChatInput& input, const json& body) {
  FD_CHECK(json::parse(input.messages) == body["messages"], "the engine reads the messages that were checked");
  for (const json& message : body["messages"]) {
    const std::string& role = message["role"].get_ref<const std::string&>();
    FD_CHECK(!role.empty() && role.size() <= 64, "a message has a role");
  }
  for (const std::string& list : {input.tools, input.documents}) {
    FD_CHECK(list.empty() || json::parse(list).is_array(), "lists are lists");
  }
  FD_CHECK(input.variables.empty() || json::parse(input.variables).is_object(), "variables are an object");
  FD_CHECK(!(input.add_generation_prompt && input.continue_final_message), "a prompt ends in one way");
}

void WriteChat(const serve::ChatRequest& request) {
  serve::AnswerWriter::Head head;
  head.model = request.model;
  head.logprobs = true;
  const std::string& text = request.input.messages;
  const serve::ChatWriter writer(
      head, [&](int32_t id) { return text.substr(static_cast<size_t>(id) % (text.size() + 1), 3); },
      request.include_reasoning);
  serve::Piece piece;
  piece.text = piece.reasoning = text;
  piece.run.tokens = {0, 1, 2, 3};
  piece.run.logprobs = {-0.0f, request.generate.fields.top_p, -INFINITY, -0.5f};
  std::string chunk;
  writer.AppendChunk(&piece, {}, &chunk);
  FD_CHECK(chunk.find('\n') == chunk.size() - 2, "an event is one line");
  const json choice = json::parse(chunk.substr(6))["choices"][0];
  FD_CHECK(choice["delta"]["content"] == text, "what was written reads back");
  FD_CHECK(choice["delta"].contains("reasoning") == request.include_reasoning, "reasoning is there if it may be");
  FD_CHECK(choice["logprobs"]["content"].size() == 4, "every token is there");
}

}  // namespace

// The input: the body of a request. It is accepted if any of the four endpoints would take it.
bool FuzzOne(const std::string& input) {
  serve::JsonBody whole;
  if (!Accepts([&] { whole = serve::ReadJsonBody(input); })) return false;
  const json& body = whole.object;
  FD_CHECK(body.is_object() && serve::ReadJsonObject(body.dump()) == body, "what was read can be written");
  for (const auto& [name, text] : whole.texts) {
    FD_CHECK(!body[name].is_structured() || json::parse(text) == body[name], "a member's text is its value");
  }
  fd_request defaults;
  fd_request_init(&defaults, sizeof(defaults));
  serve::CompletionRequest request;
  const bool completes = Accepts([&] { request = serve::ReadCompletionRequest(body, kLimits, defaults, 7); });
  if (completes) {
    CheckFields(request);
    CheckPrompts(request);
    WriteAnswer(request);
  }
  serve::ChatRequest chat;
  const bool chats = Accepts([&] { chat = serve::ReadChatRequest(whole, kLimits, defaults, 7); });
  if (chats) {
    CheckFields(chat);
    CheckChat(chat.input, body);
    WriteChat(chat);
  }
  const bool tokenizes = Accepts([&] { serve::ReadTokenizeRequest(whole); });
  const bool detokenizes = Accepts([&] { serve::ReadDetokenizeRequest(body); });
  // What can be completed can be tokenized as well.
  return completes || chats || detokenizes || (tokenizes && !body.contains("temperature"));
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"model":"tiny","prompt":"Once \u00e9\ud83d\ude00","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":-1,)"
      R"("min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":1,"seed":-3,"stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},"stop":["\n","END"],"user":"me"})",
      R"({"prompt":[[1,2,3],[4]],"max_tokens":1,"echo":true,"logprobs":1,"temperature":0,"seed":1234,"n":1})",
      R"({"prompt":["a","b"],"n":2,"best_of":2,"logit_bias":{"5":-100,"17":2.5},"min_tokens":1,"ignore_eos":false,)"
      R"("stop_token_ids":[2],"skip_special_tokens":true,"add_special_tokens":false,"return_token_ids":true,)"
      R"("include_stop_str_in_output":false,"request_id":"r-1","temperature":null,"metadata":{"a":[[[]]]}})",
      R"({"prompt":[7,8.0],"suffix":"","response_format":{"type":"text"},"use_beam_search":false,"priority":0,)"
      R"("length_penalty":1.0,"spaces_between_special_tokens":true,"bad_words":[],"temperature":1,"max_tokens":0,)"
      R"("echo":true})",
      R"({"model":"tiny","prompt":"Once","add_special_tokens":true,"return_token_strs":true})",
      R"({"model":"tiny","tokens":[1,2,300]})",
      R"({"model":"tiny","messages":[{"role":"system","content":"a\u00e9"},{"role":"user","name":"me","content":[)"
      R"({"type":"text","text":"b"},{"type":"refusal","refusal":"no"}]}],"max_completion_tokens":7,"max_tokens":9,)"
      R"("logprobs":true,"top_logprobs":3,"n":2,"temperature":0.5,"stop":"END","stream":true,)"
      R"("stream_options":{"include_usage":true},"seed":1,"include_reasoning":false,"user":"me"})",
      R"({"messages":[{"role":"user"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","a":1.50}]}],)"
      R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none","documents":[{"title":"t"}],)"
      R"("chat_template_kwargs":{"enable_thinking":false,"a":[1]},"reasoning_effort":"low","temperature":1,)"
      R"("add_generation_prompt":false,"continue_final_message":true,"response_format":{"type":"text"}})",
  };
}

}  // namespace fastdecode
