#include "tools/chat/conversation.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tools/interrupt.h"
#include "tools/output.h"

namespace fastdecode::chat {

namespace {

constexpr char kHelp[] =
    "/system TEXT  what the model is told before all else; without a text, nothing\n"
    "/reset        forget what was said\n"
    "/stats        tokens and times of the last answer\n"
    "/help         this\n"
    "/exit         leave, as Ctrl-D does; Ctrl-C stops an answer\n";

volatile std::sig_atomic_t pressed = 0;
struct sigaction old_action = {};
int press_pipe[2] = {-1, -1};

void NotePress(int) {
  const int error = errno;
  pressed = 1;
  static_cast<void>(!write(press_pipe[1], "", 1));
  errno = error;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// A number in words; below 0 it is not known.
std::string Figure(double value, const char* form, const char* unknown) {
  if (value < 0) return unknown;
  char text[80];
  std::snprintf(text, sizeof(text), form, value);
  return text;
}

}  // namespace

CtrlC::CtrlC() {
  if (pipe2(press_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Error(FD_RESOURCE_EXHAUSTED, std::string("a pipe cannot be made: ") + std::strerror(errno));
  }
  pressed = 0;
  sigaction(SIGINT, nullptr, &old_action);
  if (old_action.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = &NotePress;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

CtrlC::~CtrlC() {
  sigaction(SIGINT, &old_action, nullptr);
  for (const int fd : press_pipe) close(fd);
}

bool CtrlC::Pressed() { return pressed != 0; }

bool IsInterrupted() { return CtrlC::Pressed() || InterruptGuard::Signal() != 0; }

void CtrlC::Forget() {
  pressed = 0;
  char drained[64];
  while (read(press_pipe[0], drained, sizeof(drained)) > 0) {
  }
}

int CtrlC::readable_fd() { return press_pipe[0]; }

Conversation::Conversation(Backend* backend, std::string system, Screen screen)
    : backend_(backend), system_(std::move(system)), screen_(screen) {}

void Conversation::Note(const std::string& text) const { std::fprintf(stderr, "%s\n", text.c_str()); }

bool Conversation::Take(const std::string& line) {
  if (line.starts_with('/')) return Command(line);
  if (!Trimmed(line).empty()) Say(line);
  return true;
}

bool Conversation::Command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, space), rest = Trimmed(line.substr(space));
  if (name == "/exit" || name == "/quit") return false;
  if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/system") {
    system_ = rest;
    if (screen_.interactive) Note(rest.empty() ? "(no system message)" : "(the system message is set)");
  } else if (name == "/reset") {
    history_.clear();
    last_.reset();
    if (screen_.interactive) Note("(what was said is forgotten)");
  } else if (name == "/stats") {
    ShowStats();
  } else {
    Note("fastdecode: error: chat: there is no " + name + "; /help lists what there is");
    failed_ = true;
  }
  return true;
}

std::vector<Message> Conversation::Messages(const std::string& message) const {
  std::vector<Message> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), history_.begin(), history_.end());
  messages.push_back({"user", message});
  return messages;
}

// A question that nobody answered is not kept; an answer that was stopped is kept as it is. A Ctrl-C that came since the
// question was read stops the answer, too: only one that has been seen is forgotten.
void Conversation::Say(const std::string& message) {
  in_reasoning_ = shown_ = false;
  Reply reply;
  try {
    reply = backend_->Ask(
        Messages(message), [&](std::string_view reasoning, std::string_view content) { ShowPiece(reasoning, content); },
        &IsInterrupted);
  } catch (const OutputError&) {
    throw;
  } catch (const Error& error) {
    failed_ = true;
    EndReasoning();
    if (shown_) WriteOut("\n");
    Note(std::string("fastdecode: error: chat: ") + error.what() +
         (history_.empty() ? "" : " (what was said before is kept)"));
    return;
  }
  EndReasoning();
  WriteOut("\n");
  CtrlC::Forget();
  if (!reply.error.empty()) {
    failed_ = true;
    Note("fastdecode: error: chat: the answer broke off: " + reply.error);
  }
  if (reply.stopped && screen_.interactive) Note("(stopped)");
  if (reply.cut_off) Note("(the answer has reached its longest length: --max-tokens, or the end of the context)");
  if (!reply.content.empty()) {
    history_.push_back({"user", message});
    history_.push_back({"assistant", reply.content});
  }
  last_ = std::move(reply);
}

void Conversation::ShowPiece(std::string_view reasoning, std::string_view content) {
  std::string text;
  if (!reasoning.empty() && screen_.shows_reasoning) {
    if (!std::exchange(in_reasoning_, true)) text += screen_.dims ? "\033[2m" : "[reasoning]\n";
    text += reasoning;
  }
  shown_ = shown_ || !text.empty() || !content.empty();
  if (!text.empty()) WriteOut(text);
  if (content.empty()) return;
  EndReasoning();
  WriteOut(std::string(content));
}

void Conversation::EndReasoning() {
  if (std::exchange(in_reasoning_, false)) WriteOut(screen_.dims ? "\033[0m\n\n" : "\n[answer]\n");
}

void Conversation::ShowStats() const {
  if (!last_) return Note("(there is no answer yet)");
  const auto count = [](int64_t tokens) { return tokens < 0 ? std::string("unknown") : std::to_string(tokens); };
  const double first_s = last_->first_token_s;
  const double decode_s = first_s < 0 ? -1 : last_->seconds - first_s;
  const double rate = last_->tokens > 1 && decode_s > 0 ? static_cast<double>(last_->tokens - 1) / decode_s : -1;
  const std::string times = Figure(first_s, "first token after %.3f s", "time of the first token unknown") + ", " +
                            Figure(rate, "%.1f tokens/s", "rate unknown") + ", " +
                            Figure(last_->seconds, "%.2f s in all", "time unknown");
  Note("prompt " + count(last_->prompt_tokens) + " tokens, answer " + count(last_->tokens) + " tokens; " + times);
  const int64_t used = last_->prompt_tokens < 0 || last_->tokens < 0 ? -1 : last_->prompt_tokens + last_->tokens;
  Note("context " + count(used) + " of " + count(backend_->context_tokens()) + " tokens; " +
       std::to_string(history_.size() / 2) + " questions and answers");
}

}  // namespace fastdecode::chat
