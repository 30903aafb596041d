#include "engine/model/json_fields.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/model_folder.h"

namespace fastdecode {
namespace {

constexpr int kNestingMax = 64;
constexpr size_t kShownBytesMax = 80;

// The deepest nesting of brackets outside of strings.
int Nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = ++depth > deepest ? depth : deepest;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// What Python's json writes and reads for numbers that JSON has not.
struct OddNumber {
  std::string_view word;
  double value;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr OddNumber kOddNumbers[] = {
    {"NaN", std::numeric_limits<double>::quiet_NaN()}, {"Infinity", kInfinity}, {"-Infinity", -kInfinity}};

// A place of the text, and the word that is a value there.
struct OddPlace {
  size_t at;
  std::string_view word;
};

std::vector<OddPlace> FindOddNumbers(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<OddPlace> places;
  bool in_string = false;
  char before = '[';  // the last one that is no space
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      before = '"';
      continue;
    }
    if (c == '"') in_string = true;
    const bool is_value = before == ':' || before == '[' || before == ',';
    if (is_value && (c == 'N' || c == 'I' || c == '-')) {
      for (const OddNumber& one : kOddNumbers) {
        const std::string_view rest = text.substr(i);
        if (!rest.starts_with(one.word)) continue;
        const char behind = rest.size() == one.word.size() ? ' ' : rest[one.word.size()];
        if (std::string_view(",]} \t\r\n").find(behind) == std::string_view::npos) continue;
        places.push_back({i, one.word});
        i += one.word.size() - 1;
        break;
      }
    }
    if (kSpace.find(text[i]) == std::string_view::npos) before = text[i];
  }
  return places;
}

// The text with strings in place of the odd numbers, each as long as its word, so that places in errors stay true.
std::string FillOddNumbers(std::string_view text, const std::vector<OddPlace>& places, char fill) {
  std::string filled(text);
  for (const OddPlace& place : places) {
    std::fill_n(filled.begin() + static_cast<ptrdiff_t>(place.at), place.word.size(), fill);
    filled[place.at] = filled[place.at + place.word.size() - 1] = '"';
  }
  return filled;
}

// Puts numbers where two documents differ, which have been filled differently.
void RestoreOddNumbers(const nlohmann::json& other, nlohmann::json* value) {
  if (value->is_string() && *value != other) {
    const size_t size = value->get_ref<const std::string&>().size() + 2;
    for (const OddNumber& one : kOddNumbers) {
      if (one.word.size() != size) continue;
      *value = one.value;
      return;
    }
  }
  if (value->is_array()) {
    for (size_t i = 0; i < value->size(); ++i) RestoreOddNumbers(other[i], &(*value)[i]);
  } else if (value->is_object()) {
    for (auto it = value->begin(); it != value->end(); ++it) RestoreOddNumbers(other.at(it.key()), &it.value());
  }
}

// Throws what nlohmann's parser does.
nlohmann::json ParseAsPython(std::string_view text) {
  const std::vector<OddPlace> places = FindOddNumbers(text);
  if (places.empty()) return nlohmann::json::parse(text.begin(), text.end());
  nlohmann::json root = nlohmann::json::parse(FillOddNumbers(text, places, '0'));
  RestoreOddNumbers(nlohmann::json::parse(FillOddNumbers(text, places, '1')), &root);
  return root;
}

// Reads `size` bytes, fewer if the file ends before.
absl::StatusOr<std::string> ReadDescriptor(int fd, size_t size, const std::string& path) {
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace

absl::StatusOr<int> OpenToRead(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) return fd;
  const int open_errno = errno;
  struct stat info;
  if (open_errno == ENOENT && lstat(path.c_str(), &info) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a link to nothing"));
  }
  return absl::ErrnoToStatus(open_errno, absl::StrCat(path, ": cannot open"));
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t bytes_max) {
  const absl::StatusOr<int> opened = OpenToRead(path);
  if (!opened.ok()) return opened.status();
  const int fd = *opened;
  absl::StatusOr<std::string> text;
  struct stat info;
  if (fstat(fd, &info) != 0) {
    text = absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot stat"));
  } else if (!S_ISREG(info.st_mode)) {
    text = absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  } else if (info.st_size > bytes_max) {
    text = absl::InvalidArgumentError(
        absl::StrFormat("%s: size is %d bytes, expected at most %d", path, info.st_size, bytes_max));
  } else {
    text = ReadDescriptor(fd, static_cast<size_t>(info.st_size), path);
  }
  close(fd);
  return text;
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file) {
  if (Nesting(text) > kNestingMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: not valid: nesting is %d deep, expected at most %d", file, Nesting(text), kNestingMax));
  }
  try {
    nlohmann::json root = ParseAsPython(text);
    if (root.is_object()) return root;
    return absl::InvalidArgumentError(absl::StrCat(file, ": content is ", ShowJson(root), ", expected a JSON object"));
  } catch (const nlohmann::json::parse_error& error) {
    const std::string guess = GuessContent(text);
    const std::string what = guess.empty() ? ShowParseError(error) : guess;
    const bool at_end = guess.empty() && error.byte > text.size();
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not valid JSON: ", what, at_end ? " (is the file whole?)" : ""));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid JSON: ", ShowParseError(error)));
  }
}

JsonFields::JsonFields(const nlohmann::json& object, std::string file, std::string prefix, absl::Status* error)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), error_(error) {}

const nlohmann::json* JsonFields::Find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::IsNull(const char* name) const {
  const auto it = object_.find(name);
  return it != object_.end() && it->is_null();
}

void JsonFields::Fail(const char* name, const std::string& expected) {
  if (!error_->ok()) return;
  const auto value = object_.find(name);
  const std::string what = value == object_.end() ? "missing" : ShowJson(*value);
  *error_ = absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", prefix_, ShowText(name), " is ", what, ", expected ", expected));
}

int64_t JsonFields::Integer(const char* name, int64_t min, int64_t max) {
  const nlohmann::json* value = Find(name);
  if (value != nullptr && value->is_number_integer()) {
    const bool fits = !value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX};
    const int64_t number = fits ? value->get<int64_t>() : 0;
    if (fits && number >= min && number <= max) return number;
  }
  if (value != nullptr && value->is_number_float()) {
    constexpr double kExactMax = 0x1p53;
    const double number = value->get<double>();
    const bool is_whole = std::abs(number) <= kExactMax && number == std::floor(number);
    if (is_whole && static_cast<int64_t>(number) >= min && static_cast<int64_t>(number) <= max) {
      return static_cast<int64_t>(number);
    }
  }
  Fail(name, absl::StrFormat("an integer from %d to %d", min, max));
  return min;
}

int64_t JsonFields::IntegerOr(const char* name, int64_t min, int64_t max, int64_t fallback) {
  return Has(name) ? Integer(name, min, max) : fallback;
}

double JsonFields::Number(const char* name, double min, double max) {
  const nlohmann::json* value = Find(name);
  if (value != nullptr && value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  Fail(name, absl::StrFormat("a number from %g to %g", min, max));
  return min;
}

double JsonFields::NumberOr(const char* name, double min, double max, double fallback) {
  return Has(name) ? Number(name, min, max) : fallback;
}

bool JsonFields::BoolOr(const char* name, bool fallback) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, "true or false");
  return fallback;
}

std::string JsonFields::String(const char* name) {
  const nlohmann::json* value = Find(name);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  Fail(name, "a string");
  return std::string();
}

std::string JsonFields::StringOr(const char* name, const std::string& fallback) {
  return Has(name) ? String(name) : fallback;
}

bool IsTruthy(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return false;
    case nlohmann::json::value_t::boolean:
      return value.get<bool>();
    case nlohmann::json::value_t::string:
      return !value.get_ref<const std::string&>().empty();
    case nlohmann::json::value_t::array:
    case nlohmann::json::value_t::object:
      return !value.empty();
    default:
      return value != 0;
  }
}

std::string ShowJson(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownBytesMax) text = text.substr(0, kShownBytesMax) + "...";
  return text;
}

std::string ShowText(std::string_view text, size_t bytes_max) {
  const std::string quoted =
      nlohmann::json(text.substr(0, bytes_max)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return absl::StrCat(quoted.substr(1, quoted.size() - 2), text.size() > bytes_max ? "..." : "");
}

std::string ShowParseError(const nlohmann::json::exception& error) { return ShowText(error.what(), 300); }

}  // namespace fastdecode
