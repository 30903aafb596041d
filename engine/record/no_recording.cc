#include "engine/record/no_recording.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/record/abstract_socket.h"

namespace fastdecode {

namespace {

// Which namespace a process is in, "net:[4026531840]"; empty where this process may not know.
std::string NamespaceOf(const std::string& process, const char* kind) {
  std::error_code unknown;
  return std::filesystem::read_symlink(absl::StrCat("/proc/", process, "/ns/", kind), unknown).string();
}

bool IsInAnother(const char* kind, pid_t pid) {
  const std::string there = NamespaceOf(absl::StrCat(pid), kind);
  return !there.empty() && there != NamespaceOf("self", kind);
}

// What the process was called with; empty: not known.
std::vector<std::string> ReadArguments(pid_t pid) {
  std::ifstream file(absl::StrFormat("/proc/%d/cmdline", pid));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return absl::StrSplit(text, '\0');
}

// The value of --NAME VALUE or --NAME=VALUE, the last one; empty: it was not given.
std::string ValueOf(const std::vector<std::string>& arguments, const std::string& option) {
  std::string value;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view text = arguments[i];
    if (text == option && i + 1 < arguments.size()) value = arguments[i + 1];
    if (absl::ConsumePrefix(&text, option + "=")) value = std::string(text);
  }
  return value;
}

// What the command line of the program `fastdecode` says; empty: nothing.
std::string ExplainCommand(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || std::filesystem::path(arguments[0]).filename() != "fastdecode") return "";
  const std::string& command = arguments[1];
  const bool is_group = command == "bench" || command == "latency";
  const std::string what = is_group && arguments.size() > 2 ? absl::StrCat(command, " ", arguments[2]) : command;
  constexpr std::string_view kWithEngine[] = {"generate",   "chat",           "serve",
                                              "bench step", "bench accuracy", "latency step"};
  if (std::find(std::begin(kWithEngine), std::end(kWithEngine), what) == std::end(kWithEngine)) {
    const bool asks = what == "bench serve" || what == "latency attach";
    return absl::StrFormat("runs 'fastdecode %s', which has no engine%s", what,
                           asks ? " of its own: give the process that it asks" : "");
  }
  if (command == "chat" && !ValueOf(arguments, "--url").empty()) {
    return absl::StrFormat("chats with the server at %s: give the server's process id, on its host",
                           ValueOf(arguments, "--url"));
  }
  const std::string socket = ValueOf(arguments, "--record-socket");
  if (socket == "off") return "has --record-socket off: nobody can record it";
  if (!socket.empty() && socket != "auto") return absl::StrFormat("has --record-socket '%s': give that path", socket);
  return "";
}

}  // namespace

std::string ProcessName(pid_t pid) {
  std::string name;
  std::ifstream file(absl::StrFormat("/proc/%d/comm", pid));
  std::getline(file, name);
  return name.empty() ? absl::StrCat(pid) : absl::StrFormat("%d (%s)", pid, name);
}

std::string ExplainNoRecording(pid_t pid) {
  const std::string who = absl::StrCat("process ", ProcessName(pid), " ");
  for (const char* kind : {"net", "pid"}) {
    if (!IsInAnother(kind, pid)) continue;
    return absl::StrCat(who, "is in another ", kind,
                        " namespace (a container), where it is not found by its id: start ",
                        "it with --record-socket PATH in a folder that both see, and give that path");
  }
  if (ProcessSign::IsUp(kLoadingName, pid)) {
    return absl::StrCat(who, "is still loading its model: try again when that is loaded, as its log says");
  }
  if (ProcessSign::IsUp(kWorkerName, pid)) {
    return absl::StrCat(who,
                        "is a worker, no engine: give the process id of an engine that it serves, whose recording ",
                        "has the hops to this worker");
  }
  const std::string command = ExplainCommand(ReadArguments(pid));
  if (!command.empty()) return who + command;
  return absl::StrCat(who,
                      "lets nobody read a recording: it is no engine, one that ends or has --record-socket off or "
                      "a path, or one in another network or pid namespace");
}

}  // namespace fastdecode
