#ifndef FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_TABLE_H_
#define FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_TABLE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace fastdecode {

// Text that comes from elsewhere, as one line that no terminal takes for a command: control characters, line ends and
// bytes that are no UTF-8 become "?".
std::string OneLine(const std::string& text);

// A table with aligned columns that fits a terminal: one that is too narrow loses columns, never lines.
// Bounded: by its rows.
class TextTable {
 public:
  struct Column {
    std::string name;
    bool left = false;    // aligned; figures stand at the right
    int importance = 0;   // columns of the least importance go first, the rightmost of equal ones first; kAlways: never
    size_t shortest = 0;  // a column of names may be cut to this, once nothing else can go; 0: it may not
    bool points = false;  // numbers of different precision stand with their points above each other
  };
  static constexpr int kAlways = 100;
  // A column of plain numbers, points above points.
  static Column Numbers(std::string name, int importance) { return {std::move(name), false, importance, 0, true}; }

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many as there are columns.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  // Header and rows, `indent` blanks before each, lines of at most `width` columns if that can be had. A column that is
  // empty in all rows is left out.
  std::string Format(size_t width, size_t indent) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_TABLE_H_
