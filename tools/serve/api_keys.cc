#include "tools/serve/api_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fastdecode/fastdecode.hpp>
#include <map>
#include <utility>

namespace fastdecode::serve {

namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kKeyBytesMax = 1024;
constexpr std::string_view kHashPrefix = "sha256=";
constexpr std::string_view kScheme = "bearer";

// The file's bytes, which are wiped at the end.
struct KeyFile {
  explicit KeyFile(const std::string& path);
  ~KeyFile() {
    OPENSSL_cleanse(text.data(), text.size());
    if (fd >= 0) close(fd);
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;

  int fd = -1;
  struct stat info = {};
  // Read in place, so that no copy is left anywhere; one byte more than may be, to see that there are too many.
  std::vector<char> text = std::vector<char>(kFileBytesMax + 1);
  size_t bytes = 0;
};

[[noreturn]] void ThrowErrno(const std::string& what, int error) {
  fd_code code = FD_INTERNAL;
  if (error == EACCES || error == EPERM) code = FD_PERMISSION_DENIED;
  if (error == ENOENT || error == ENOTDIR) code = FD_NOT_FOUND;
  throw Error(code, what + ": " + std::strerror(error));
}

KeyFile::KeyFile(const std::string& path) {
  // Not blocking: a FIFO must not keep us here.
  fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) ThrowErrno(path, errno);
  if (fstat(fd, &info) != 0) ThrowErrno(path, errno);
  if (!S_ISREG(info.st_mode)) throw Error(FD_INVALID_ARGUMENT, path + ": is no regular file");
  while (bytes < text.size()) {
    const ssize_t got = read(fd, text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowErrno(path, errno);
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  if (bytes > kFileBytesMax) {
    throw Error(FD_INVALID_ARGUMENT, path + ": has more than " + std::to_string(kFileBytesMax) + " bytes");
  }
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("._-@").find(c) != std::string_view::npos;
  });
}

bool IsKey(std::string_view text) {
  return !text.empty() && text.size() <= kKeyBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::array<unsigned char, 32> Sha256(std::string_view text) {
  std::array<unsigned char, 32> hash;
  static_assert(hash.size() == SHA256_DIGEST_LENGTH);
  if (SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data()) == nullptr) {
    throw Error(FD_INTERNAL, "OpenSSL: SHA-256 has failed");
  }
  return hash;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::array<unsigned char, 32>> ReadHash(std::string_view hex) {
  std::array<unsigned char, 32> hash;
  if (hex.size() != 2 * hash.size()) return std::nullopt;
  for (size_t i = 0; i < hash.size(); ++i) {
    const int high = HexDigit(hex[2 * i]), low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    hash[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return hash;
}

void CheckOwnerAndMode(const std::string& path, const struct stat& info, bool has_clear_keys) {
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    throw Error(FD_PERMISSION_DENIED, path + ": owner: uid " + std::to_string(info.st_uid) + " is neither this user (" +
                                          std::to_string(geteuid()) + ") nor root; chown it");
  }
  const mode_t forbidden = ForbiddenKeyFileMode(info.st_uid, geteuid(), has_clear_keys);
  if ((info.st_mode & forbidden) == 0) return;
  char mode[8], right[8];
  std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(info.st_mode & 07777));
  std::snprintf(right, sizeof(right), "%o", static_cast<unsigned>(0666 & ~forbidden));
  throw Error(
      FD_PERMISSION_DENIED,
      path + ": mode: " + mode + (has_clear_keys ? " lets others read or write keys; " : " lets others write it; ") +
          "chmod " + right + " " + path +
          (has_clear_keys ? ", or put NAME:sha256=HEX in the place of each key (printf %s KEY | sha256sum)" : ""));
}

}  // namespace

mode_t ForbiddenKeyFileMode(uid_t owner, uid_t user, bool has_clear_keys) {
  if (!has_clear_keys) return 022;
  return owner == 0 && user != 0 ? 037 : 077;
}

ApiKeys ApiKeys::Read(const std::string& path) {
  const KeyFile file(path);
  ApiKeys keys;
  keys.Parse(path, std::string_view(file.text.data(), file.bytes));
  const bool has_clear_keys =
      std::any_of(keys.keys_.begin(), keys.keys_.end(), [](const Key& key) { return key.clear; });
  CheckOwnerAndMode(path, file.info, has_clear_keys);
  return keys;
}

std::optional<std::string> ApiKeys::Name(std::string_view authorization) const {
  const std::string_view header = Trimmed(authorization);
  if (header.size() <= kScheme.size() || strncasecmp(header.data(), kScheme.data(), kScheme.size()) != 0 ||
      (header[kScheme.size()] != ' ' && header[kScheme.size()] != '\t')) {
    return std::nullopt;
  }
  const std::array<unsigned char, 32> presented = Sha256(Trimmed(header.substr(kScheme.size())));
  // Every key is looked at, and no branch depends on which one was equal.
  size_t found = 0;  // its number from 1
  for (size_t i = 0; i < keys_.size(); ++i) {
    const size_t differs = CRYPTO_memcmp(presented.data(), keys_[i].sha256.data(), presented.size()) & 0xff;
    const size_t equal_mask = ~(size_t{0} - ((differs + 0xff) >> 8));  // all ones where nothing differs
    found |= (i + 1) & equal_mask;
  }
  if (found == 0) return std::nullopt;
  return keys_[found - 1].name;
}

ApiKeys::Key ApiKeys::ParseLine(const std::string& where, int number, std::string_view line) {
  Key key;
  key.name = "key-" + std::to_string(number);
  std::string_view value = line;
  if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
    if (!IsName(line.substr(0, colon))) {
      throw Error(FD_INVALID_ARGUMENT, where + ": the name before the colon: 1 to " + std::to_string(kNameBytesMax) +
                                           " letters, digits and ._-@ are one (a key that has a colon itself needs a "
                                           "name before it)");
    }
    key.name = line.substr(0, colon);
    value = Trimmed(line.substr(colon + 1));
  }
  key.clear = value.substr(0, kHashPrefix.size()) != kHashPrefix;
  if (!key.clear) {
    const auto hash = ReadHash(value.substr(kHashPrefix.size()));
    if (!hash) {
      throw Error(FD_INVALID_ARGUMENT, where + ": 64 hexadecimal digits must follow sha256=, and " +
                                           std::to_string(value.size() - kHashPrefix.size()) +
                                           " characters do (printf %s KEY | sha256sum prints them)");
    }
    key.sha256 = *hash;
    return key;
  }
  if (!IsKey(value)) {
    throw Error(FD_INVALID_ARGUMENT, where + ": the key: 1 to " + std::to_string(kKeyBytesMax) +
                                         " printable ASCII characters without spaces are one");
  }
  key.sha256 = Sha256(value);
  return key;
}

void ApiKeys::Parse(const std::string& path, std::string_view text) {
  std::map<std::string, int> names;                     // the lines that have them
  std::map<std::array<unsigned char, 32>, int> hashes;  // as above
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::string where = path + ":" + std::to_string(number);
    Key key = ParseLine(where, number, line);
    const auto refuse_second = [&](const std::string& what, int first) {
      throw Error(FD_INVALID_ARGUMENT, where + ": " + what + " is that of line " + std::to_string(first) + ", too");
    };
    if (const auto [at, added] = names.emplace(key.name, number); !added)
      refuse_second("the name " + key.name, at->second);
    if (const auto [at, added] = hashes.emplace(key.sha256, number); !added) refuse_second("the key", at->second);
    keys_.push_back(std::move(key));
  }
  if (keys_.empty()) {
    throw Error(FD_INVALID_ARGUMENT, path + ": has no key; write one a line, KEY or NAME:KEY");
  }
}

}  // namespace fastdecode::serve
