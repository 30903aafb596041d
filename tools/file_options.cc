#include "tools/file_options.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace fastdecode {

namespace {

namespace fs = std::filesystem;

// Options whose file is written; all others with one read it.
constexpr const char* kWriting[] = {"--logits", "--save", "--result-filename", "--access-log"};
// Options for which - is standard input or output.
constexpr const char* kTakingDash[] = {"--file", "--prompts-file", "--text", "--context", "FILE", "--access-log"};

bool IsOneOf(const std::string& name, const char* const* begin, const char* const* end) {
  return std::find(begin, end, name) != end;
}

// A file that an option names, or a standard stream that a command uses by itself.
struct NamedFile {
  std::string option;
  std::string path;
  bool is_written = false;
  bool is_there = false;
  struct stat status = {};

  std::string Text() const { return option + ": '" + path + "'"; }
};

bool IsSame(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// What is gone once it has been read.
bool IsPipe(const struct stat& status) { return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode); }

bool IsDescriptorName(int descriptor, const std::string& path) {
  const std::string number = std::to_string(descriptor);
  const std::string name = fs::path(path).lexically_normal().string();
  return name == "/dev/fd/" + number || name == "/proc/self/fd/" + number ||
         name == (descriptor == STDIN_FILENO ? "/dev/stdin" : "/dev/stdout");
}

// Whether it is this process's own standard input or output: by its name, or because it is the same pipe or terminal;
// an output also because it is the same file.
bool IsStandard(int descriptor, const NamedFile& file) {
  if (file.path == "-" || IsDescriptorName(descriptor, file.path)) return true;
  struct stat standard = {};
  if (!file.is_there || fstat(descriptor, &standard) != 0 || !IsSame(standard, file.status)) return false;
  if (file.is_written) return !S_ISCHR(standard.st_mode);
  return IsPipe(standard) || isatty(descriptor) != 0;
}

std::vector<NamedFile> NamedFiles(const CLI::App& command) {
  std::vector<NamedFile> files;
  for (const CLI::Option* option : command.get_options()) {
    const bool is_file = option->get_type_name().starts_with("FILE") || option->get_name() == "FILE";
    if (!is_file) continue;
    const std::string name = option->get_name();
    for (const std::string& path : option->results()) {
      NamedFile& file = files.emplace_back();
      file.option = name;
      file.path = path;
      file.is_written = IsOneOf(name, std::begin(kWriting), std::end(kWriting));
      file.is_there = stat(path.c_str(), &file.status) == 0;
      if (path != "-" || IsOneOf(name, std::begin(kTakingDash), std::end(kTakingDash))) continue;
      throw Error(FD_INVALID_ARGUMENT, file.Text() +
                                           (file.is_written ? ": it is not written to standard output"
                                                            : ": it is not read from standard input") +
                                           "; give the name of a file");
    }
  }
  return files;
}

// `user`: the option or the command that reads standard input.
void CheckStandardInput(const std::string& user, bool may_be_terminal) {
  const int flags = fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY) {
    throw Error(FD_INVALID_ARGUMENT, user + ": standard input is closed");
  }
  if (may_be_terminal || isatty(STDIN_FILENO) == 0) return;
  throw Error(FD_INVALID_ARGUMENT,
              user + ": standard input is a terminal; pipe a text into this command, or give the name of a file");
}

// Checks the files that a command reads.
void CheckRead(const CLI::App& command, const std::vector<NamedFile>& files) {
  const bool is_chat = command.get_name() == "chat";
  if (is_chat) CheckStandardInput("chat", /*may_be_terminal=*/true);
  const NamedFile* standard = nullptr;
  for (size_t i = 0; i < files.size(); ++i) {
    const NamedFile& file = files[i];
    if (file.is_written) continue;
    if (IsStandard(STDIN_FILENO, file)) {
      if (is_chat) throw Error(FD_INVALID_ARGUMENT, file.Text() + ": standard input has the messages of the chat");
      if (standard != nullptr) {
        throw Error(FD_INVALID_ARGUMENT, file.Text() + ": standard input is read once, and " + standard->option + " '" +
                                             standard->path + "' reads it; give the name of a file for one of them");
      }
      standard = &file;
      continue;
    }
    if (!file.is_there || !IsPipe(file.status)) continue;
    for (size_t j = 0; j < i; ++j) {
      if (files[j].is_written || !files[j].is_there || !IsSame(files[j].status, file.status)) continue;
      throw Error(FD_INVALID_ARGUMENT, file.Text() + ": a pipe is read once, and " + files[j].option + " '" +
                                           files[j].path + "' reads it; give the name of a file for one of them");
    }
  }
  if (standard != nullptr) CheckStandardInput(standard->Text(), /*may_be_terminal=*/false);
}

// Whether two paths are one file, be it there yet or not.
bool IsSameFile(const NamedFile& a, const NamedFile& b) {
  if (a.is_there && b.is_there) return IsSame(a.status, b.status);
  std::error_code ignored;
  return a.is_there == b.is_there && fs::weakly_canonical(fs::absolute(a.path, ignored), ignored) ==
                                         fs::weakly_canonical(fs::absolute(b.path, ignored), ignored);
}

// Checks the files that a command writes.
void CheckWritten(const std::vector<NamedFile>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const NamedFile& file = files[i];
    if (!file.is_written) continue;
    if (file.option == "--access-log" && (file.path == "none" || IsStandard(STDOUT_FILENO, file))) continue;
    if (IsStandard(STDOUT_FILENO, file)) {
      throw Error(FD_INVALID_ARGUMENT, file.Text() +
                                           ": it is this command's standard output, which has the rest; give "
                                           "the name of another file");
    }
    if (file.is_there && S_ISCHR(file.status.st_mode)) continue;  // /dev/null takes everything
    for (size_t j = 0; j < files.size(); ++j) {
      if (j == i || (files[j].is_written && j > i) || !IsSameFile(files[j], file)) continue;
      throw Error(FD_INVALID_ARGUMENT, file.Text() + ": " + files[j].option + " '" + files[j].path + "' " +
                                           (files[j].is_written ? "writes" : "reads") +
                                           " the same file; give the name of another one");
    }
  }
}

}  // namespace

void CheckFileOptions(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::vector<NamedFile> files = NamedFiles(*command);
  CheckRead(*command, files);
  CheckWritten(files);
}

}  // namespace fastdecode
