#include "tools/latency/text/text_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "numa/check.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr size_t kGap = 2;

// How many bytes the character at `at` has; 0 if there is none, or it is a control character.
size_t CharacterBytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  // C2 80 to C2 9F are control characters too; C0 and C1 begin nothing.
  if (first < 0xe0) return first >= 0xc2 && follows(1) && !(first == 0xc2 && byte(1) < 0xa0) ? 2 : 0;
  if (first < 0xf0) return follows(1) && follows(2) && !(first == 0xe0 && byte(1) < 0xa0) ? 3 : 0;
  if (first >= 0xf5 || !follows(1) || !follows(2) || !follows(3)) return 0;
  return (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90) ? 0 : 4;
}

// "longer te~" for a width of 10.
std::string Cut(const std::string& text, size_t width) {
  if (Columns(text) <= width) return text;
  std::string cut;
  for (size_t at = 0, columns = 0; columns + 1 < width;) {
    const size_t bytes = std::max<size_t>(1, CharacterBytes(text, at));
    cut += text.substr(at, bytes);
    at += bytes;
    ++columns;
  }
  return cut + "~";
}

std::string Pad(const std::string& text, size_t width, bool left) {
  const std::string blanks(width - std::min(width, Columns(text)), ' ');
  return left ? text + blanks : blanks + text;
}

// The point of a number and what is behind it: "12.50" 3, "7" and "-" 0.
size_t FractionLength(const std::string& number) {
  const size_t point = number.find('.');
  return point == std::string::npos ? 0 : number.size() - point;
}

// Blanks behind the numbers of column `c`, so that their points stand above each other at its right end.
void AlignPoints(size_t c, std::vector<std::vector<std::string>>* rows) {
  size_t most = 0;
  for (const std::vector<std::string>& row : *rows) most = std::max(most, FractionLength(row[c]));
  for (std::vector<std::string>& row : *rows) {
    if (!row[c].empty()) row[c].append(most - FractionLength(row[c]), ' ');
  }
}

// Width of a line of these columns.
size_t LineWidth(const std::vector<size_t>& shown, const std::vector<size_t>& widths, size_t indent) {
  size_t width = indent;
  for (const size_t column : shown) width += widths[column] + kGap;
  return shown.empty() ? indent : width - kGap;
}

}  // namespace

std::string OneLine(const std::string& text) {
  std::string clean;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text, at);
    clean += bytes == 0 ? "?" : text.substr(at, bytes);
    at += std::max<size_t>(1, bytes);
  }
  return clean;
}

void TextTable::AddRow(std::vector<std::string> cells) {
  FD_CHECK(cells.size() == columns_.size(), "a row has as many cells as its table has columns");
  for (std::string& cell : cells) cell = OneLine(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::Format(size_t width, size_t indent) const {
  std::vector<std::vector<std::string>> rows = rows_;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].points) AlignPoints(c, &rows);
  }
  std::vector<size_t> widths, shown;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t content = 0;
    for (const std::vector<std::string>& row : rows) content = std::max(content, Columns(row[c]));
    widths.push_back(std::max(content, Columns(columns_[c].name)));
    if (content > 0) shown.push_back(c);
  }
  while (LineWidth(shown, widths, indent) > width) {
    const auto least = std::min_element(shown.rbegin(), shown.rend(), [this](size_t a, size_t b) {
      return columns_[a].importance < columns_[b].importance;
    });
    if (least == shown.rend() || columns_[*least].importance >= kAlways) break;
    shown.erase(std::next(least).base());
  }
  for (const size_t c : shown) {
    const size_t line = LineWidth(shown, widths, indent);
    const size_t shortest = columns_[c].shortest;
    if (line <= width || shortest == 0 || widths[c] <= shortest) continue;
    widths[c] = std::max(shortest, widths[c] - std::min(widths[c], line - width));
  }
  std::string out;
  const auto append = [&](const auto& cell) {
    std::string line(indent, ' ');
    for (const size_t c : shown) {
      if (c != shown.front()) line.append(kGap, ' ');
      line += Pad(Cut(cell(c), widths[c]), widths[c], columns_[c].left);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  append([this](size_t c) { return columns_[c].name; });
  for (const std::vector<std::string>& row : rows) append([&row](size_t c) { return row[c]; });
  return out;
}

}  // namespace fastdecode
