// Chats with an engine of this process.
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tools/chat/chat_backend.h"

namespace fastdecode::chat {

namespace {

constexpr int64_t kLookNs = 50'000'000;  // how long a Ctrl-C may wait

class WithEngine final : public Backend {
 public:
  WithEngine(std::unique_ptr<InferenceEngine> engine, const RequestFlags& flags, bool max_tokens_given)
      : engine_(std::move(engine)), flags_(flags), max_tokens_given_(max_tokens_given) {}

  int64_t context_tokens() const override { return engine_->max_context(); }

  Reply Ask(const std::vector<Message>& messages, const Show& show, const IsStopped& is_stopped) override {
    const int64_t question = asked_++;
    const Chat chat = engine_->RenderChat({.messages = MessagesJson(messages)});
    GenerateRequest request;
    ApplyRequestFlags(flags_, request);
    ApplyDefaultSampling(*engine_, flags_, request);
    chat.SetPrompt(&request);
    request.fields.seed += static_cast<uint64_t>(question);
    Reply reply;
    reply.prompt_tokens = static_cast<int64_t>(engine_->Tokenize(request.parts, false).size());
    LimitLength(reply.prompt_tokens, &request);
    ChatReader reader(chat);
    TokenStream stream = engine_->Submit(request);
    bool cancelled = false;
    reply.tokens = 0;
    for (bool finished = false; !finished;) {
      if (is_stopped() && !std::exchange(cancelled, true)) stream.Cancel();
      const std::optional<TokenEvent> event = stream.Next(kLookNs);
      if (!event) continue;
      finished = event->finished;
      const double since_s = static_cast<double>(event->time_ns - event->submit_ns) * 1e-9;
      if (!event->tokens.empty()) {
        reply.seconds = since_s;
        if (reply.first_token_s < 0) reply.first_token_s = since_s;
      }
      reply.tokens += static_cast<int64_t>(event->tokens.size());
      const ChatReader::Piece piece = reader.Read(*event);
      reply.reasoning += piece.reasoning;
      reply.content += piece.content;
      show(piece.reasoning, piece.content);
      if (finished) TakeEnd(*event, &reply);
    }
    return reply;
  }

 private:
  // Throws where the context has no room for a token of the answer.
  void LimitLength(int64_t prompt_tokens, GenerateRequest* request) const {
    const int64_t room = context_tokens() - prompt_tokens;
    if (room < 1) {
      throw Error(FD_INVALID_ARGUMENT,
                  "the chat has " + std::to_string(prompt_tokens) + " tokens, and the context " +
                      std::to_string(context_tokens()) +
                      ": there is no room for an answer; /reset begins a new chat, and --max-context "
                      "makes more room, if the model has it");
    }
    if (!max_tokens_given_) request->fields.max_tokens = static_cast<uint32_t>(room);
  }

  static void TakeEnd(const TokenEvent& event, Reply* reply) {
    reply->stopped = event.finish == FD_FINISH_CANCELLED;
    reply->cut_off = event.finish == FD_FINISH_LENGTH;
    if (event.finish == FD_FINISH_ERROR) reply->error = event.error;
  }

  const std::unique_ptr<InferenceEngine> engine_;
  const RequestFlags& flags_;
  const bool max_tokens_given_;
  int64_t asked_ = 0;
};

}  // namespace

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string MessagesJson(const std::vector<Message>& messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Message& message : messages) list.push_back({{"role", message.role}, {"content", message.content}});
  // What a terminal sends may be no UTF-8.
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::unique_ptr<Backend> EngineBackend(std::unique_ptr<InferenceEngine> engine, const RequestFlags& flags,
                                       bool max_tokens_given) {
  return std::make_unique<WithEngine>(std::move(engine), flags, max_tokens_given);
}

}  // namespace fastdecode::chat
