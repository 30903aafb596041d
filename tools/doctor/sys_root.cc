#include "tools/doctor/sys_root.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fastdecode {

namespace {

constexpr int kCpuMax = 65535;

std::string Strip(const std::string& text) { return std::string(absl::StripAsciiWhitespace(text)); }

}  // namespace

std::optional<std::string> SysRoot::Text(const std::string& path, size_t bytes_max) const {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen((root_ + path).c_str(), "re"), &std::fclose);
  if (file == nullptr) return std::nullopt;
  std::string text;
  char chunk[4096];
  for (size_t bytes; text.size() < bytes_max && (bytes = std::fread(chunk, 1, sizeof(chunk), file.get())) > 0;) {
    text.append(chunk, bytes);
  }
  text.resize(std::min(text.size(), bytes_max));
  // A folder, or an attribute that the driver does not support.
  if (std::ferror(file.get()) != 0) return std::nullopt;
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::optional<int64_t> SysRoot::Number(const std::string& path) const {
  const std::optional<std::string> text = Text(path);
  int64_t value;
  if (!text || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

std::optional<std::string> SysRoot::Field(const std::string& path, const std::string& key) const {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(Text(path).value_or(""), '\n'))) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && Strip(line.substr(0, colon)) == key) return Strip(line.substr(colon + 1));
  }
  return std::nullopt;
}

std::vector<std::string> SysRoot::List(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

bool SysRoot::Exists(const std::string& path) const { return access((root_ + path).c_str(), F_OK) == 0; }

std::optional<std::string> SysRoot::LinkName(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(root_ + path, error);
  if (error) return std::nullopt;
  return target.filename().string();
}

std::string SysRoot::AccessError(const std::string& path) const {
  if (access((root_ + path).c_str(), R_OK | W_OK) == 0) return "";
  return std::generic_category().message(errno);
}

std::optional<std::vector<int>> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  if (text.empty()) return cpus;
  for (const std::string& range : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first, last;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last > kCpuMax) {
      return std::nullopt;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace fastdecode
