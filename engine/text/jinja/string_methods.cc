// The methods of Python's str.
#include <unicode/uchar.h>

#include <algorithm>
#include <map>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/format_spec.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

Value Like(const Value& self, Text text) { return Value::String(std::move(text), self.markup()); }

// Parts of a string as strings.
using Spans = std::vector<Text::Span>;
Value ListLike(const Value& self, const Spans& spans) {
  std::vector<Value> values;
  for (const Text::Span& span : spans) values.push_back(Like(self, self.text().Slice(span.begin, span.end)));
  return Value::List(std::move(values));
}
void AddSpan(size_t begin, size_t end, Spans* spans) {
  SpendBytes(sizeof(Text::Span));
  spans->push_back({begin, end});
}

template <Case to>
Value ChangeCase(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("case conversion", arguments), arguments, {});
  return Like(self, WithCase(self.text(), to));
}

template <bool left, bool right>
Value Strip(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("strip", arguments), arguments, {"chars"});
  const Text& text = self.text();
  SpendSearch(text.size());
  if (!reader.Has(0) || reader.Get(0).Is(Kind::kNone)) {
    const Text::Span span = Stripped(text.bytes(), nullptr, left, right);
    return Like(self, text.Slice(span.begin, span.end));
  }
  const Value characters = reader.String(0, nullptr);
  const std::string_view bytes = characters.bytes();
  const Text::Span span = Stripped(text.bytes(), &bytes, left, right);
  return Like(self, text.Slice(span.begin, span.end));
}

// The pieces between white space, as split() without a separator gives them.
Spans Words(std::string_view bytes, Integer splits, bool from_right) {
  Spans words;
  Text::Span rest = Stripped(bytes, nullptr, !from_right, from_right);
  for (; rest.begin < rest.end && splits != 0; --splits) {
    size_t at = from_right ? rest.end : rest.begin, size = 0;
    const auto in_word = [&] {
      if (from_right ? at == rest.begin : at == rest.end) return false;
      const std::string_view one = from_right ? LastUtf8(bytes.substr(rest.begin, at - rest.begin))
                                              : bytes.substr(at, NextUtf8(bytes.substr(at)).bytes);
      size = one.size();
      return !IsSpace(Utf8Character(one, size));
    };
    while (in_word()) at = from_right ? at - size : at + size;
    AddSpan(from_right ? at : rest.begin, from_right ? rest.end : at, &words);
    (from_right ? rest.end : rest.begin) = at;
    const Text::Span cut = Stripped(bytes.substr(rest.begin, rest.end - rest.begin), nullptr, !from_right, from_right);
    rest = {rest.begin + cut.begin, rest.begin + cut.end};
  }
  if (rest.begin < rest.end) AddSpan(rest.begin, rest.end, &words);
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

Spans Pieces(std::string_view bytes, std::string_view separator, Integer splits, bool from_right) {
  Spans pieces;
  size_t begin = 0, end = bytes.size();
  for (; splits != 0; --splits) {
    const size_t found = from_right ? FindLast(bytes.substr(0, end), separator) : FindFirst(bytes, separator, begin);
    if (found == std::string_view::npos) break;
    if (from_right) {
      AddSpan(found + separator.size(), end, &pieces);
      end = found;
    } else {
      AddSpan(begin, found, &pieces);
      begin = found + separator.size();
    }
  }
  AddSpan(begin, end, &pieces);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

template <bool from_right>
Value Split(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const Integer splits = reader.Int(1, -1);
  SpendSearch(self.text().size());
  if (reader.Get(0).Is(Kind::kNone)) return ListLike(self, Words(self.bytes(), splits, from_right));
  const Value separator = reader.String(0, nullptr);
  if (separator.text().empty()) throw Failure{.message = "empty separator"};
  return ListLike(self, Pieces(self.bytes(), separator.bytes(), splits, from_right));
}

Value SplitLines(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("splitlines", arguments, {"keepends"});
  return ListLike(self, Lines(self.bytes(), reader.True(0, false)));
}

template <bool from_right>
Value Partition(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("partition", arguments), arguments, {"sep"}, 1);
  const Value separator = reader.String(0, nullptr);
  if (separator.text().empty()) throw Failure{.message = "empty separator"};
  const Text& text = self.text();
  const size_t found =
      from_right ? FindLast(text.bytes(), separator.bytes()) : FindFirst(text.bytes(), separator.bytes());
  if (found == std::string_view::npos) {
    const Value none = Like(self, Text());
    return Value::Tuple(from_right ? std::vector<Value>{none, none, self} : std::vector<Value>{self, none, none});
  }
  const size_t end = found + separator.text().size();
  return Value::Tuple(
      {Like(self, text.Slice(0, found)), Like(self, text.Slice(found, end)), Like(self, text.Slice(end, text.size()))});
}

// The bytes that [start:end] of a search mean; none if start lies behind the text.
std::optional<Text::Span> SearchedPart(const Value& self, const ArgumentReader& reader) {
  const std::string& bytes = self.bytes();
  const auto length = static_cast<Integer>(Length(self));
  const auto place = [&](Integer index) { return index < 0 ? std::max<Integer>(index + length, 0) : index; };
  const Integer begin = place(reader.Int(1, 0));
  const Integer end = std::min(place(reader.Int(2, length)), length);
  if (begin > length || begin > end) return std::nullopt;
  SpendSearch(bytes.size());
  return Text::Span{OffsetOf(bytes, static_cast<size_t>(begin)), OffsetOf(bytes, static_cast<size_t>(end))};
}

template <bool from_right, bool must_be_there>
Value Find(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("find", arguments), arguments, {"sub", "start", "end"}, 1);
  const Value sub = reader.String(0, nullptr);
  const std::optional<Text::Span> part = SearchedPart(self, reader);
  if (part) {
    const std::string_view bytes = self.bytes();
    const std::string_view searched = bytes.substr(part->begin, part->end - part->begin);
    const size_t found = from_right ? FindLast(searched, sub.bytes()) : FindFirst(searched, sub.bytes());
    if (found != std::string_view::npos) {
      return Value::Int(static_cast<Integer>(CountCharacters(bytes.substr(0, part->begin + found))));
    }
  }
  if (must_be_there) throw Failure{.message = "substring not found"};
  return Value::Int(-1);
}

Value CountMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("count", arguments), arguments, {"sub", "start", "end"}, 1);
  const Value sub = reader.String(0, nullptr);
  const std::optional<Text::Span> part = SearchedPart(self, reader);
  if (!part) return Value::Int(0);
  const std::string_view bytes = std::string_view(self.bytes()).substr(part->begin, part->end - part->begin);
  if (sub.text().empty()) return Value::Int(static_cast<Integer>(CountCharacters(bytes)) + 1);
  Integer count = 0;
  for (size_t at = FindFirst(bytes, sub.bytes()); at != std::string_view::npos;
       at = FindFirst(bytes, sub.bytes(), at + sub.text().size())) {
    ++count;
  }
  return Value::Int(count);
}

template <bool at_end>
Value Affixed(Interpreter&, const Value& self, const Arguments& arguments) {
  const char* const name = at_end ? "endswith" : "startswith";
  const ArgumentReader reader(Positional(name, arguments), arguments, {at_end ? "suffix" : "prefix", "start", "end"},
                              1);
  const Value affix = reader.Get(0);
  const std::vector<Value> affixes = affix.Is(Kind::kTuple) ? affix.items() : std::vector<Value>{affix};
  const std::optional<Text::Span> part = SearchedPart(self, reader);
  const std::string_view bytes =
      part ? std::string_view(self.bytes()).substr(part->begin, part->end - part->begin) : std::string_view();
  bool fits = false;
  for (const Value& each : affixes) {
    RequireDefined(each);
    SpendSearch(each.Is(Kind::kString) ? each.text().size() : 0);
    if (!each.Is(Kind::kString)) {
      throw Failure{.message = std::string(name) + " first arg must be str or a tuple of str, not " + TypeName(each)};
    }
    fits = fits || (part && (at_end ? bytes.ends_with(each.bytes()) : bytes.starts_with(each.bytes())));
  }
  return Value::Bool(fits);
}

template <bool at_end>
Value RemoveAffix(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("removeprefix", arguments), arguments, {"affix"}, 1);
  const Value value = reader.String(0, nullptr);
  const Text &affix = value.text(), &text = self.text();
  if (at_end) {
    const bool has = !affix.empty() && text.bytes().ends_with(affix.bytes());
    return Like(self, text.Slice(0, text.size() - (has ? affix.size() : 0)));
  }
  return Like(self, text.Slice(text.bytes().starts_with(affix.bytes()) ? affix.size() : 0, text.size()));
}

Text EscapedFor(const Value& self, const Value& value) {
  return self.markup() && !value.markup() ? Escaped(value.text()) : value.text();
}

Value ReplaceMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("replace", arguments), arguments, {"old", "new", "count"}, 2);
  const Value from = reader.String(0, nullptr), to = reader.String(1, nullptr);
  return Like(self, Replaced(self.text(), from.text(), EscapedFor(self, to), reader.Int(2, -1)));
}

Value JoinMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("join", arguments), arguments, {"iterable"}, 1);
  Text text;
  size_t index = 0;
  for (const Value& item : SharedItemsOf(reader.Get(0))) {
    if (!item.Is(Kind::kString)) {
      throw Failure{.message = "sequence item " + std::to_string(index) + ": expected str instance, " + TypeName(item) +
                               " found"};
    }
    Spend(1);
    if (index++ > 0) text.Append(self.text());
    text.Append(EscapedFor(self, item));
  }
  return Like(self, std::move(text));
}

// The argument of ljust and the like.
size_t WidthOf(const ArgumentReader& reader) {
  const auto width = static_cast<size_t>(std::clamp<Integer>(reader.Int(0, 0), 0, SIZE_MAX));
  RequireSize(width);
  return width;
}

template <char align>
Value Justify(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("justify", arguments), arguments, {"width", "fillchar"}, 1);
  const Value filler = reader.String(1, " ");
  const Text& fill = filler.text();
  if (Length(filler) != 1) throw Failure{.message = "The fill character must be exactly one character long"};
  const size_t columns = WidthOf(reader);
  if (align != '^') return Like(self, Padded(self.text(), columns, align, fill));
  // Python puts the odd one to the left if the width is odd.
  const size_t count = Length(self);
  if (columns <= count) return self;
  const size_t gap = columns - count;
  const size_t left = gap / 2 + (gap & columns & 1);
  const Text with_left = Padded(self.text(), count + left, '>', fill);
  return Like(self, Padded(with_left, columns, '<', fill));
}

Value FillZeros(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("zfill", arguments), arguments, {"width"}, 1);
  const size_t width = WidthOf(reader);
  const Text& text = self.text();
  const size_t sign = text.bytes().starts_with('+') || text.bytes().starts_with('-') ? 1 : 0;
  Text out = text.Slice(0, sign);
  const size_t count = Length(self);
  for (size_t i = count; i < width; ++i) out.Append("0");
  out.Append(text, sign, text.size());
  return Like(self, std::move(out));
}

Value FormatMethod(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return BraceFormat(interpreter, self, arguments);
}

Value FormatMapMethod(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("format_map", arguments, {"mapping"}, 1);
  const Value mapping = reader.Get(0);
  if (!mapping.Is(Kind::kDict)) throw Failure{.message = "format_map() takes a dict, not " + TypeName(mapping)};
  Arguments named;
  for (const auto& [key, value] : mapping.dict().items) {
    if (!key.Is(Kind::kString)) continue;
    SpendBytes(2 * sizeof(Value));
    named.named.emplace_back(key, value);
  }
  return BraceFormat(interpreter, self, named);
}

// Whether there are characters and all are of this kind.
template <bool (*is)(UChar32)>
Value All(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("test of characters", arguments), arguments, {});
  const std::string& bytes = self.bytes();
  size_t size = 0;
  for (size_t at = 0; at < bytes.size(); at += size) {
    Spend(1);
    if (!is(static_cast<UChar32>(CharacterAt(bytes, at, &size)))) return Value::Bool(false);
  }
  return Value::Bool(!bytes.empty());
}

int32_t NumericType(UChar32 c) { return u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE); }
bool IsDecimalCharacter(UChar32 c) { return NumericType(c) == U_NT_DECIMAL; }
bool IsDigitCharacter(UChar32 c) { return NumericType(c) == U_NT_DECIMAL || NumericType(c) == U_NT_DIGIT; }
bool IsNumericCharacter(UChar32 c) { return NumericType(c) != U_NT_NONE; }
bool IsAlphaCharacter(UChar32 c) { return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0; }
bool IsAlnumCharacter(UChar32 c) { return IsAlphaCharacter(c) || IsNumericCharacter(c); }
bool IsSpaceCharacter(UChar32 c) { return IsSpace(static_cast<char32_t>(c)); }

Value IsAsciiMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("test of characters", arguments), arguments, {});
  SpendSearch(self.text().size());
  return Value::Bool(
      std::all_of(self.bytes().begin(), self.bytes().end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
}
Value IsLowerMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("test of characters", arguments), arguments, {});
  return Value::Bool(IsLowerText(self.bytes()));
}
Value IsUpperMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("test of characters", arguments), arguments, {});
  return Value::Bool(IsUpperText(self.bytes()));
}

Value IsTitleMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("test of characters", arguments), arguments, {});
  bool cased_before = false, any = false;
  size_t size = 0;
  for (size_t at = 0; at < self.bytes().size(); at += size) {
    Spend(1);
    const auto c = static_cast<UChar32>(CharacterAt(self.bytes(), at, &size));
    const bool upper = u_hasBinaryProperty(c, UCHAR_UPPERCASE) != 0 || u_charType(c) == U_TITLECASE_LETTER;
    const bool lower = u_hasBinaryProperty(c, UCHAR_LOWERCASE) != 0;
    if ((upper && cased_before) || (lower && !cased_before)) return Value::Bool(false);
    cased_before = upper || lower;
    any = any || cased_before;
  }
  return Value::Bool(any);
}

}  // namespace

jinja::Method FindStringMethod(std::string_view name) {
  static const std::map<std::string_view, jinja::Method> kMethods = {
      {"capitalize", &ChangeCase<Case::kCapitalized>},
      {"casefold", &ChangeCase<Case::kFolded>},
      {"center", &Justify<'^'>},
      {"count", &CountMethod},
      {"endswith", &Affixed<true>},
      {"find", &Find<false, false>},
      {"format", &FormatMethod},
      {"format_map", &FormatMapMethod},
      {"index", &Find<false, true>},
      {"isalnum", &All<IsAlnumCharacter>},
      {"isalpha", &All<IsAlphaCharacter>},
      {"isascii", &IsAsciiMethod},
      {"isdecimal", &All<IsDecimalCharacter>},
      {"isdigit", &All<IsDigitCharacter>},
      {"islower", &IsLowerMethod},
      {"isnumeric", &All<IsNumericCharacter>},
      {"isspace", &All<IsSpaceCharacter>},
      {"istitle", &IsTitleMethod},
      {"isupper", &IsUpperMethod},
      {"join", &JoinMethod},
      {"ljust", &Justify<'<'>},
      {"lower", &ChangeCase<Case::kLower>},
      {"lstrip", &Strip<true, false>},
      {"partition", &Partition<false>},
      {"removeprefix", &RemoveAffix<false>},
      {"removesuffix", &RemoveAffix<true>},
      {"replace", &ReplaceMethod},
      {"rfind", &Find<true, false>},
      {"rindex", &Find<true, true>},
      {"rjust", &Justify<'>'>},
      {"rpartition", &Partition<true>},
      {"rsplit", &Split<true>},
      {"rstrip", &Strip<false, true>},
      {"split", &Split<false>},
      {"splitlines", &SplitLines},
      {"startswith", &Affixed<false>},
      {"strip", &Strip<true, true>},
      {"swapcase", &ChangeCase<Case::kSwapped>},
      {"title", &ChangeCase<Case::kTitle>},
      {"upper", &ChangeCase<Case::kUpper>},
      {"zfill", &FillZeros},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace fastdecode::jinja
