#include "tools/latency/export/export_csv.h"

#include <cctype>
#include <cmath>
#include <cstdio>
#include <string>

namespace fastdecode {

namespace {

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string PercentileField(const Distribution& ns, double share) {
  const std::optional<uint64_t> value = ns.Percentile(share);
  return value ? std::to_string(*value) : "";
}

std::string Real(double value) {
  if (!std::isfinite(value)) return "";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

// "home attend" becomes "home_attend_ns", "S-Part" "s_part_ns".
std::string ColumnName(Place place) {
  std::string name = PlaceName(place);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? static_cast<char>(std::tolower(c)) : '_';
  return name + "_ns";
}

void WritePhase(const Phase& phase, std::ostream& out) {
  const Distribution& ns = phase.ns;
  out << Quoted(phase.name) << ',' << Quoted(phase.where) << ',' << ns.count() << ',';
  if (ns.empty()) {
    out << ",,,,,,,";
  } else {
    out << ns.min_ns() << ',' << PercentileField(ns, 0.5) << ',' << PercentileField(ns, 0.9) << ','
        << PercentileField(ns, 0.99) << ',' << PercentileField(ns, 0.999) << ',' << ns.max_ns() << ','
        << Real(ns.mean_ns()) << ',' << Real(ns.stdev_ns());
  }
  out << ',' << Real(phase.share) << ',' << Quoted(phase.note) << '\n';
}

}  // namespace

void WritePhasesCsv(const LatencyResult& result, std::ostream& out) {
  out << "phase,where,count,min_ns,p50_ns,p90_ns,p99_ns,p999_ns,max_ns,mean_ns,stdev_ns,share,note\n";
  for (const Phase& phase : result.phases) WritePhase(phase, out);
}

void WriteTokensCsv(const Timeline& timeline, std::ostream& out) {
  out << "request,index,micro_batch,step,rows,start_ns,end_ns,ns";
  for (int place = 0; place < kPlaces; ++place) out << ',' << ColumnName(static_cast<Place>(place));
  out << ",residual_ns\n";
  for (const TokenTimes& token : timeline.tokens) {
    const StepTimes& step = timeline.steps[token.step];
    out << token.id << ',' << token.index << ',' << int{step.micro_batch} << ',' << step.step << ',' << step.rows << ','
        << step.start_ns << ',' << step.end_ns << ',' << step.end_ns - step.start_ns;
    for (const uint64_t ns : step.place_ns) out << ',' << ns;
    out << ',' << step.residual_ns << '\n';
  }
}

}  // namespace fastdecode
