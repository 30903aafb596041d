#ifndef FASTDECODE_ENGINE_TEXT_JINJA_TEXT_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastdecode::jinja {

// UTF-8 text that knows, byte for byte, what its template's author wrote and what came from the request ("foreign").
// Every operation keeps these marks, so that a rendered chat can say which of its characters may be special tokens.
//
// Owns: its bytes, which count for the rendering of this thread before they are there (SpendGrowth). Offsets count
// bytes and lie between characters. Thread: immutable but for the Append functions.
class Text {
 public:
  struct Span {
    size_t begin, end;
    bool operator==(const Span&) const = default;
  };

  Text() = default;
  explicit Text(std::string bytes, bool foreign = false);
  Text(const Text& other) { Append(other); }
  Text(Text&&) noexcept = default;
  Text& operator=(const Text& other) { return *this = Text(other); }
  Text& operator=(Text&&) noexcept = default;

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // The foreign stretches: in order, not empty, and none touches the next.
  const std::vector<Span>& foreign() const { return foreign_; }
  bool any_foreign() const { return !foreign_.empty(); }
  bool IsForeign(size_t offset) const;

  void Append(const Text& other) { Append(other, 0, other.size()); }
  void Append(const Text& other, size_t begin, size_t end);
  void Append(std::string_view bytes, bool foreign = false);

  Text Slice(size_t begin, size_t end) const;
  // The same bytes, of which all are foreign.
  Text AsForeign() const { return Text(bytes_, /*foreign=*/true); }

 private:
  void Mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<Span> foreign_;
};

// Characters (code points) of valid UTF-8.
size_t CountCharacters(std::string_view text);
// The offset of character `index`, or of the end if there are fewer.
size_t OffsetOf(std::string_view text, size_t index);
// Where `sought` begins in `text` at or behind `begin`, and where it begins last; std::string_view::npos: nowhere. Both
// take time for the sum of their sizes, whatever they hold.
size_t FindFirst(std::string_view text, std::string_view sought, size_t begin = 0);
size_t FindLast(std::string_view text, std::string_view sought);
// The character at `offset`, and its bytes.
char32_t CharacterAt(std::string_view text, size_t offset, size_t* bytes);
// What Python's str.isspace says of one character.
bool IsSpace(char32_t character);

// The range of `text` that Python's strip leaves: without white space at its ends or, if `characters` is not null,
// without these.
Text::Span Stripped(std::string_view text, const std::string_view* characters, bool left, bool right);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_TEXT_H_
