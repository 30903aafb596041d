#ifndef FASTDECODE_TOOLS_CHAT_CONVERSATION_H_
#define FASTDECODE_TOOLS_CHAT_CONVERSATION_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chat/chat_backend.h"

namespace fastdecode::chat {

// How a conversation looks.
struct Screen {
  bool interactive = false;  // somebody types: there are prompts and hints
  bool dims = false;         // the output is a terminal that can show reasoning dimmed
  bool shows_reasoning = true;
};

// A chat in a terminal: what was said, and what the lines that are typed do. Thread: one.
class Conversation {
 public:
  Conversation(Backend* backend, std::string system, Screen screen);

  // A line that was typed: a message, or a command that begins with /. False: the chat is over. Throws OutputError.
  bool Take(const std::string& line);
  // A chat that ended with an error that nobody could see on a prompt.
  bool failed() const { return failed_; }

 private:
  bool Command(const std::string& line);
  void Say(const std::string& message);
  void Note(const std::string& text) const;  // on stderr, to whoever types
  void ShowPiece(std::string_view reasoning, std::string_view content);
  void EndReasoning();
  void ShowStats() const;
  std::vector<Message> Messages(const std::string& message) const;

  Backend* const backend_;
  std::string system_;
  const Screen screen_;
  std::vector<Message> history_;
  std::optional<Reply> last_;
  bool in_reasoning_ = false;
  bool shown_ = false;  // something of the answer that comes has been written
  bool failed_ = false;
};

// Notes Ctrl-C (SIGINT), as often as it comes, while one exists, unless the process was told to ignore it. Thread: one,
// and one object at a time.
class CtrlC {
 public:
  CtrlC();
  ~CtrlC();
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

  // Whether it was pressed since the last Forget; readable_fd is readable then, whichever thread took the signal.
  static bool Pressed();
  static void Forget();
  static int readable_fd();
};

// Whether an answer is to stop: a CtrlC or an InterruptGuard, whichever there is, has noted a signal.
bool IsInterrupted();

}  // namespace fastdecode::chat

#endif  // FASTDECODE_TOOLS_CHAT_CONVERSATION_H_
