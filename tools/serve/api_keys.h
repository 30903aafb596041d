#ifndef FASTDECODE_TOOLS_SERVE_API_KEYS_H_
#define FASTDECODE_TOOLS_SERVE_API_KEYS_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode::serve {

// The keys that a file names, one a line: `KEY`, `NAME:KEY`, or a key's SHA-256 in its place, so that the file does not
// hold it: `NAME:sha256=HEX` (`printf %s KEY | sha256sum`). Empty lines and those that begin with # are skipped, and
// spaces at the ends of a line are not part of it. NAME has letters, digits and ._-@ and is what the access log says;
// without one it is key-N, N being the line. KEY has printable ASCII characters without spaces. Immutable; a changed
// file is read into a new object. Thread: any.
class ApiKeys {
 public:
  // Throws Error naming file, line and what is wrong with it, and never a key: unreadable, no key at all, a hash that
  // is none, a name or key twice, or a file that the rule below forbids.
  //
  // The rule is that of the option secret-file: the file is this user's or root's, and gives no permission to others
  // and none to a group, but that root's file may be read by a group where this user is not root. So Kubernetes hands
  // secrets out with fsGroup and defaultMode 0440, and systemd with LoadCredential=; a Kubernetes volume with the
  // default mode, 0644, is refused, and hashes are what may be in it. A file with nothing but hashes may be read by
  // all, and written by its owner alone.
  static ApiKeys Read(const std::string& path);

  // The name of the key that the header `Authorization: Bearer KEY` presents; none: it is no key. The time that it
  // takes does not depend on how much of a key was right, or on which one it was. Throws Error if OpenSSL fails.
  std::optional<std::string> Name(std::string_view authorization) const;
  size_t size() const { return keys_.size(); }

 private:
  struct Key {
    std::string name;
    std::array<unsigned char, 32> sha256;
    bool clear;  // its line has the key itself
  };
  static Key ParseLine(const std::string& where, int number, std::string_view line);
  void Parse(const std::string& path, std::string_view text);

  std::vector<Key> keys_;
};

// The permissions that a file of keys must not give, by the rule above.
mode_t ForbiddenKeyFileMode(uid_t owner, uid_t user, bool has_clear_keys);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_API_KEYS_H_
