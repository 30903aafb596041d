// fastdecode chat: a chat in a terminal, with an engine of this process or with a server.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tools/chat/chat_backend.h"
#include "tools/chat/conversation.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/load_engine.h"
#include "tools/prompts.h"

namespace fastdecode {

namespace {

struct ChatFlags {
  RequestFlags request;
  chat::ServerFlags server;
  std::string system;
  bool hides_reasoning = false;
};

constexpr int kLookMs = 100;  // how long a signal may wait

// Lines of standard input. Thread: one.
class LineReader {
 public:
  explicit LineReader(bool interactive) : interactive_(interactive) {}

  // None at the end of the input, or at a signal where nobody types.
  std::optional<std::string> Next() {
    Prompt();
    while (true) {
      const size_t end = held_.find('\n');
      if (end != std::string::npos) return Cut(end);
      if (!interactive_ && InterruptGuard::Signal() != 0) return std::nullopt;
      pollfd looks[] = {{STDIN_FILENO, POLLIN, 0}, {chat::CtrlC::readable_fd(), POLLIN, 0}};
      if (poll(looks, interactive_ ? 2 : 1, interactive_ ? -1 : kLookMs) <= 0) continue;  // signals are looked at next
      if (interactive_ && looks[1].revents != 0) {
        OnInterrupt();
        continue;
      }
      char part[1 << 12];
      const ssize_t bytes = read(STDIN_FILENO, part, sizeof(part));
      if (bytes > 0) {
        held_.append(part, static_cast<size_t>(bytes));
      } else if (bytes < 0 && errno == EINTR) {
        continue;
      } else if (held_.empty()) {
        if (interactive_) std::fputc('\n', stderr);
        return std::nullopt;
      } else {
        return std::exchange(held_, "");
      }
    }
  }

 private:
  void Prompt() const {
    if (interactive_) std::fputs("> ", stderr);
  }

  void OnInterrupt() {
    chat::CtrlC::Forget();
    held_.clear();
    std::fputs("\n(Ctrl-D or /exit leaves)\n", stderr);
    Prompt();
  }

  std::string Cut(size_t end) {
    std::string line = held_.substr(0, end);
    held_.erase(0, end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  const bool interactive_;
  std::string held_;
};

std::unique_ptr<chat::Backend> MakeEngine(const ChatFlags& flags, bool max_tokens_given, EngineFlags& engine_flags) {
  engine_flags.SetDefault("need-text", "true");
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  std::unique_ptr<InferenceEngine> engine = LoadEngine(*options);
  if (!engine->has_chat_template()) throw Error(FD_FAILED_PRECONDITION, engine->chat_template_missing_reason());
  return chat::EngineBackend(std::move(engine), flags.request, max_tokens_given);
}

// A server has an engine of its own.
void RefuseEngineFlags(const EngineFlags& engine_flags) {
  for (const std::string& name : EngineFlagNames()) {
    if (name == "model" || !engine_flags.Given(name)) continue;  // a model is one of the server's, by its name
    throw Error(FD_INVALID_ARGUMENT, "--" + name + ": it is for an engine of this program; leave it out, or --url");
  }
}

void RunChat(ChatFlags& flags, bool max_tokens_given, EngineFlags& engine_flags) {
  CheckRequestFlags(flags.request);
  const bool remote = !flags.server.url.empty();
  if (remote) RefuseEngineFlags(engine_flags);
  if (!remote && !flags.server.api_key_file.empty()) {
    throw Error(FD_INVALID_ARGUMENT, "--api-key-file: it is for a server; give --url");
  }
  if (remote && engine_flags.Given("model")) flags.server.model = engine_flags.Value("model");
  const std::unique_ptr<chat::Backend> backend =
      remote ? chat::ServerBackend(flags.server, flags.request, max_tokens_given)
             : MakeEngine(flags, max_tokens_given, engine_flags);
  const bool interactive = isatty(STDIN_FILENO) != 0;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  // Whoever types goes on after Ctrl-C; a script ends.
  std::optional<chat::CtrlC> ctrl_c;
  std::optional<InterruptGuard> guard;
  if (interactive) {
    ctrl_c.emplace();
  } else {
    guard.emplace();
  }
  chat::Conversation conversation(
      backend.get(), flags.system,
      {.interactive = interactive, .dims = terminal, .shows_reasoning = !flags.hides_reasoning});
  if (interactive) std::fputs("(/help lists the commands; Ctrl-D leaves)\n", stderr);
  LineReader lines(interactive);
  while (const std::optional<std::string> line = lines.Next()) {
    if (!conversation.Take(*line)) break;
  }
  if (guard) ThrowIfInterrupted();
  // Whoever types has seen the errors; a script learns of them by the exit status.
  if (!interactive && conversation.failed()) throw Error(FD_UNAVAILABLE, "some lines had no answer");
}

}  // namespace

void AddChat(CLI::App& program) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = program.add_subcommand("chat", "Chat with a model in the terminal, or with a server (--url)");
  const char* group = "Chat";
  command->add_option("--system", flags->system, "what the model is told before all else")
      ->type_name("TEXT")
      ->group(group);
  command->add_flag("--no-reasoning", flags->hides_reasoning, "do not show the reasoning")->group(group);
  command
      ->add_option(
          "--url", flags->server.url,
          "a server that speaks OpenAI's API, such as http://127.0.0.1:8000; --model is then a name [its first]")
      ->type_name("URL")
      ->group(group);
  command->add_option("--api-key-file", flags->server.api_key_file, "file whose first line is the key for the server")
      ->type_name("FILE")
      ->group(group);
  AddChatRequestFlags(command, flags->request);
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  command->callback([flags, engine_flags, command] {
    RunChat(*flags, command->get_option("--max-tokens")->count() > 0, *engine_flags);
  });
}

}  // namespace fastdecode
