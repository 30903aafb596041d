#include "tools/latency/html/markup.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kLeastWidth = 0.5;

// With one decimal, which is a tenth of a pixel, and none where it is 0.
std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  std::string number = text;
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return number == "-0" ? "0" : number;
}

std::string Attribute(const char* name, double value) { return std::string(" ") + name + "=\"" + Number(value) + "\""; }

std::string Class(const std::string& css) { return css.empty() ? "" : " class=\"" + css + "\""; }

// The end of an element that may have a title inside.
std::string Close(const char* element, const std::string& title) {
  if (title.empty()) return "/>\n";
  return "><title>" + Escaped(title) + "</title></" + element + ">\n";
}

}  // namespace

std::string Escaped(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string HtmlNs(double ns) {
  std::string text = FormatNs(ns);
  if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "\u00b5");
  if (const size_t space = text.find(' '); space != std::string::npos) text.replace(space, 1, "\u00a0");
  return text;
}

std::string TickNs(double ns) {
  if (ns == 0) return "0";
  std::string text = HtmlNs(ns);
  const size_t unit = text.find("\u00a0");
  if (text.find('.') > unit) return text;
  const size_t last = text.find_last_not_of('0', unit - 1);
  return text.substr(0, text[last] == '.' ? last : last + 1) + text.substr(unit);
}

std::string HomeText(int home) { return home < 0 ? "" : "home " + std::to_string(home); }

std::string PlaceClass(Place place) {
  std::string css = "p";
  css += std::to_string(static_cast<int>(place));
  return css;
}

Svg::Svg(double width, double height, const std::string& label) {
  text_ = "<svg role=\"img\" viewBox=\"0 0 " + Number(width) + " " + Number(height) + "\" aria-label=\"" +
          Escaped(label) + "\">\n";
}

void Svg::Rect(Point corner, double width, double height, const std::string& css, const std::string& title) {
  text_ += "<rect" + Class(css) + Attribute("x", corner.x) + Attribute("y", corner.y) +
           Attribute("width", std::max(width, kLeastWidth)) + Attribute("height", std::max(height, kLeastWidth)) +
           Close("rect", title);
}

void Svg::Line(Point from, Point to, const std::string& css) {
  text_ += "<line" + Class(css) + Attribute("x1", from.x) + Attribute("y1", from.y) + Attribute("x2", to.x) +
           Attribute("y2", to.y) + "/>\n";
}

void Svg::Path(const std::vector<Point>& points, const std::string& css, const std::string& title) {
  if (points.empty()) return;
  text_ += "<path" + Class(css) + " d=\"";
  char separator = 'M';
  for (const Point& point : points) {
    text_ += separator + Number(point.x) + "," + Number(point.y);
    separator = 'L';
  }
  text_ += "\"" + Close("path", title);
}

void Svg::Dot(Point at, double radius, const std::string& css, const std::string& title) {
  text_ += "<circle" + Class(css) + Attribute("cx", at.x) + Attribute("cy", at.y) + Attribute("r", radius) +
           Close("circle", title);
}

void Svg::Text(Point at, const char* anchor, const std::string& text, const std::string& css) {
  text_ += "<text" + Class(css) + Attribute("x", at.x) + Attribute("y", at.y) + " text-anchor=\"" + anchor + "\">" +
           Escaped(text) + "</text>\n";
}

void Svg::BeginSeries(size_t series) {
  const std::string number = std::to_string(series);
  text_ += "<g class=\"series s" + number + "\" data-series=\"" + number + "\">\n";
}

void Svg::EndSeries() { text_ += "</g>\n"; }

std::string Svg::Take() { return std::move(text_) + "</svg>\n"; }

double Scale::At(double value) const {
  const double share = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + (to - from) * share;
}

std::vector<double> Ticks(const Scale& scale, size_t most) {
  std::vector<double> ticks;
  // Within less than a decade there may be no power of ten, or a single one.
  if (scale.logarithmic && scale.high > 8 * scale.low) {
    // 1, 2, 5, 10, ... while these are few; else every power of ten.
    const double decades = std::log10(scale.high / scale.low);
    const std::vector<double> steps =
        3 * decades <= static_cast<double>(most) ? std::vector<double>{1, 2, 5} : std::vector<double>{1};
    for (double power = std::pow(10, std::floor(std::log10(scale.low))); power <= scale.high; power *= 10) {
      for (const double step : steps) {
        const double value = power * step;
        if (value >= scale.low * 0.999 && value <= scale.high * 1.001) ticks.push_back(value);
      }
    }
    return ticks;
  }
  const double rough = (scale.high - scale.low) / static_cast<double>(most);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double factor = rough / power;
  const double step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  for (double value = std::ceil(scale.low / step) * step; value <= scale.high * (1 + 1e-9); value += step) {
    ticks.push_back(value);
  }
  return ticks;
}

std::string Legend(const std::vector<std::string>& names) {
  std::string out = "<p class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string number = std::to_string(i);
    out += "<button type=\"button\" aria-pressed=\"true\" data-series=\"" + number + "\"><i class=\"s" + number +
           "\"></i>" + Escaped(names[i]) + "</button>";
  }
  return out + "</p>\n";
}

Table::Table(const std::vector<std::string>& headings) {
  text_ = "<div class=\"wide\"><table><thead><tr>";
  for (const std::string& heading : headings) {
    figures_.push_back(heading.starts_with('#'));
    text_ += std::string("<th") + (figures_.back() ? " class=\"figure\">" : ">") +
             Escaped(heading.substr(figures_.back() ? 1 : 0)) + "</th>";
  }
  text_ += "</tr></thead>\n<tbody>\n";
}

void Table::Row(const std::vector<std::string>& cells) {
  text_ += "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    text_ += std::string("<td") + (figures_[i] ? " class=\"figure\">" : ">") + cells[i] + "</td>";
  }
  text_ += "</tr>\n";
}

std::string Table::Take() { return std::move(text_) + "</tbody></table></div>\n"; }

std::string ShareBar(double share, const std::string& css) {
  const double percent = std::isfinite(share) ? 100 * std::clamp(share, 0.0, 1.0) : 0;
  return "<span class=\"bar\"><i class=\"" + css + "\" style=\"width:" + Number(percent) + "%\"></i></span> " +
         Escaped(FormatShare(share));
}

std::string Section(const std::string& id, const std::string& heading, const std::string& body) {
  return "<section id=\"" + id + "\">\n<h2>" + Escaped(heading) + "</h2>\n" + body + "</section>\n";
}

}  // namespace fastdecode
