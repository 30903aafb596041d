#ifndef FASTDECODE_TOOLS_LATENCY_HTML_MARKUP_H_
#define FASTDECODE_TOOLS_LATENCY_HTML_MARKUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/latency/result.h"

namespace fastdecode {

// What the sections of the report are written with. Text that is given is escaped here and nowhere else, class names
// are our own.

// For text between tags and in attributes.
std::string Escaped(const std::string& text);

// "12.3 us" with a real micro sign, not to be broken between lines.
std::string HtmlNs(double ns);
// The same for round values, without the zeros that only say that it was measured: "5 ms".
std::string TickNs(double ns);
// "home 3", or "" for none.
std::string HomeText(int home);

// The class that gives the places of a token their colours, the same in all drawings: "p0" to "p13".
std::string PlaceClass(Place place);

struct Point {
  double x = 0, y = 0;
};

// One drawing. Sizes are in CSS pixels at full width; the drawing shrinks with the page.
class Svg {
 public:
  // `label` says what is drawn, for who cannot see it.
  Svg(double width, double height, const std::string& label);
  // With a text that appears when the pointer is over it; empty: none. What has no area is drawn a hair wide.
  void Rect(Point corner, double width, double height, const std::string& css, const std::string& title = "");
  void Line(Point from, Point to, const std::string& css);
  void Path(const std::vector<Point>& points, const std::string& css, const std::string& title = "");
  void Dot(Point at, double radius, const std::string& css, const std::string& title = "");
  // `anchor`: start, middle or end of the text is at the point.
  void Text(Point at, const char* anchor, const std::string& text, const std::string& css = "");
  // What follows belongs to the series of this number, which the legend shows and hides.
  void BeginSeries(size_t series);
  void EndSeries();
  std::string Take();

 private:
  std::string text_;
};

// From values to places in a drawing, evenly or by logarithm. REQUIRES: low < high; logarithm: low > 0.
struct Scale {
  double low = 0, high = 1;
  double from = 0, to = 1;
  bool logarithmic = false;
  double At(double value) const;
};

// Round values from low to high to draw lines at, `most` at most but never less than two decades of a logarithmic
// scale.
std::vector<double> Ticks(const Scale& scale, size_t most);

// Buttons that show and hide a drawing's series, and say what they are. The i-th has the colours of series i.
std::string Legend(const std::vector<std::string>& names);

// A table. Cells are HTML already.
class Table {
 public:
  // A heading that begins with '#' is of a column of figures.
  explicit Table(const std::vector<std::string>& headings);
  void Row(const std::vector<std::string>& cells);
  std::string Take();

 private:
  std::vector<bool> figures_;
  std::string text_;
};

// A bar of that share of its cell, the share written behind it.
std::string ShareBar(double share, const std::string& css);

// <section> with a heading. `id` is what links and tests find it by.
std::string Section(const std::string& id, const std::string& heading, const std::string& body);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_HTML_MARKUP_H_
