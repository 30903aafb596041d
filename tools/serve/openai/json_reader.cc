#include "tools/serve/openai/json_reader.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

constexpr std::string_view kByteOrderMark = "\ufeff";
constexpr size_t kTokenShownMax = 40;    // bytes
constexpr size_t kReasonShownMax = 160;  // bytes

// "line 2, column 7" of the byte number `at`; columns count characters.
std::string PlaceOf(std::string_view body, size_t at) {
  const std::string_view before = body.substr(0, std::min(at, body.size()));
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // 0 if there is none
  return "line " + std::to_string(lines + 1) + ", column " +
         std::to_string(CountCharacters(before.substr(line_begin)) + 1);
}

ApiError NotJson(std::string_view body, size_t at, const std::string& what) {
  ApiError error;
  error.message = "the body is not valid JSON at " + PlaceOf(body, at) + ": " + what;
  return error;
}

// Goes over a text, and notes down how far.
class NotingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  NotingIterator(const char* at, const char** noted) : at_(at), noted_(noted) {}
  reference operator*() const { return *at_; }
  NotingIterator& operator++() {
    *noted_ = ++at_;
    return *this;
  }
  NotingIterator operator++(int) {
    NotingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const NotingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const NotingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** noted_;
};

// The end of a token, which is where it went wrong.
std::string EndOf(const std::string& token) {
  if (token.size() <= kTokenShownMax) return token;
  size_t begin = token.size() - kTokenShownMax;
  while (begin < token.size() && CountCharacters(token.substr(begin, 1)) == 0) ++begin;  // not inside of a character
  return "..." + token.substr(begin);
}

// What the parser says without the place, which it counts in bytes, and without the last token, which may be long.
std::string ReasonOf(const std::string& what, const std::string& last_token) {
  size_t begin = what.find("] ");
  begin = begin == std::string::npos ? 0 : begin + 2;
  if (what.compare(begin, 15, "parse error at ") == 0) {
    const size_t place_end = what.find(": ", begin);
    if (place_end != std::string::npos) begin = place_end + 2;
  }
  const size_t token_begin = what.find("; last read: ", begin);
  const std::string_view all = std::string_view(what).substr(0, token_begin).substr(begin);
  std::string reason(CutUtf8(all, kReasonShownMax));
  if (token_begin != std::string::npos && !last_token.empty()) reason += "; last read: " + EndOf(last_token);
  return reason;
}

// Builds the value from the parser's calls. Owns: nothing; throws ApiError. Thread: one.
class DepthLimitedBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  DepthLimitedBuilder(std::string_view body, JsonBody* out)
      : body_(body), noted_(body.data()), root_(&out->object), texts_(&out->texts) {}
  const char** noted() { return &noted_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return Open(nlohmann::json::object()); }
  bool start_array(size_t) override { return Open(nlohmann::json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (open_.size() == 1) name_ = name;
    member_ = &(*open_.back())[std::move(name)];
    return true;
  }
  bool parse_error(size_t position, const std::string& last_token, const nlohmann::json::exception& error) override {
    const size_t at = position > 0 ? position - 1 : 0;
    std::string reason = ReasonOf(error.what(), last_token);
    if (at < body_.size() && (body_[at] == 'N' || body_[at] == 'I')) {
      reason += "; JSON has no NaN and no Infinity";
    }
    throw NotJson(body_, at, reason);
  }

 private:
  nlohmann::json* Place(nlohmann::json&& value) {
    if (open_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    nlohmann::json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool Add(nlohmann::json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(nlohmann::json value) {
    if (open_.size() == kJsonDepthMax) {
      throw NotJson(body_, static_cast<size_t>(noted_ - body_.data()) - 1,
                    "brackets are nested more than " + std::to_string(kJsonDepthMax) + " deep");
    }
    open_.push_back(Place(std::move(value)));
    if (open_.size() == 2) begin_ = noted_ - 1;
    return true;
  }
  bool Close() {
    open_.pop_back();
    // An array's elements have no names, and are nobody's text.
    if (open_.size() == 1 && root_->is_object()) (*texts_)[name_] = {begin_, static_cast<size_t>(noted_ - begin_)};
    return true;
  }

  const std::string_view body_;
  const char* noted_;  // behind what the parser has read
  nlohmann::json* const root_;
  std::map<std::string, std::string_view, std::less<>>* const texts_;
  std::vector<nlohmann::json*> open_;  // the value that is read, and those around it
  nlohmann::json* member_ = nullptr;   // of the innermost object: the one whose key has come
  std::string name_;                   // the root's last key...
  const char* begin_ = nullptr;        // ...and where its value begins
};

}  // namespace

JsonBody ReadJsonBody(std::string_view body) {
  if (body.starts_with(kByteOrderMark)) body.remove_prefix(kByteOrderMark.size());
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    ApiError error;
    error.message = "the body is empty; send a JSON object";
    throw error;
  }
  // The parser would take a zero byte for the end.
  const size_t zero = body.find('\0');
  if (zero != std::string_view::npos) throw NotJson(body, zero, "there is a 0 byte");
  JsonBody read;
  DepthLimitedBuilder builder(body, &read);
  nlohmann::json::sax_parse(NotingIterator(body.data(), builder.noted()),
                            NotingIterator(body.data() + body.size(), builder.noted()), &builder);
  if (read.object.is_object()) return read;
  ApiError error;
  error.message = std::string("the body is a JSON ") + read.object.type_name() + "; send an object";
  throw error;
}

nlohmann::json ReadJsonObject(std::string_view body) { return ReadJsonBody(body).object; }

}  // namespace fastdecode::serve
