#ifndef FASTDECODE_TOOLS_DOCTOR_SYS_ROOT_H_
#define FASTDECODE_TOOLS_DOCTOR_SYS_ROOT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastdecode {

// What /proc, /sys and /dev say, read below a root folder, which tests make up. Nothing here fails: what is not there,
// or cannot be read, is "none". Thread: any.
class SysRoot {
 public:
  // "" is this host.
  explicit SysRoot(std::string root = "") : root_(std::move(root)) {}

  // The file's first bytes without white space at its end.
  static constexpr size_t kTextBytesMax = size_t{1} << 20;
  std::optional<std::string> Text(const std::string& path, size_t bytes_max = kTextBytesMax) const;
  std::optional<int64_t> Number(const std::string& path) const;
  // The value of a "key:  value" line, white space around it removed.
  std::optional<std::string> Field(const std::string& path, const std::string& key) const;
  // Names in a folder, shorter ones first, so that 10 comes after 9. Empty if there is no such folder.
  std::vector<std::string> List(const std::string& path) const;
  bool Exists(const std::string& path) const;
  // The last part of a symbolic link's target.
  std::optional<std::string> LinkName(const std::string& path) const;
  // Why this process may not read and write it ("Permission denied"); "" if it may.
  std::string AccessError(const std::string& path) const;

  // What goes before every path.
  const std::string& prefix() const { return root_; }

 private:
  std::string root_;
};

// "0,2-5" as the kernel writes lists of CPUs; nothing if it is none, or has numbers above 65535.
std::optional<std::vector<int>> ParseCpuList(const std::string& text);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_DOCTOR_SYS_ROOT_H_
