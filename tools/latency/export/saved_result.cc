#include "tools/latency/export/saved_result.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "tools/latency/export/export_json.h"
#include "tools/latency/export/saved_fields.h"

namespace fastdecode {

namespace {

// A thousand phases, with all the samples that are kept of them, take some 50 MB.
constexpr uintmax_t kFileBytesMax = uintmax_t{256} << 20;

Place PlaceAt(const SavedFields& field) {
  const std::string name = field.String();
  for (int place = 0; place < kPlaces; ++place) {
    if (name == PlaceName(static_cast<Place>(place))) return static_cast<Place>(place);
  }
  field.Refuse("is no place of a token");
  return Place::kBoundary;
}

Uncertainties UncertaintiesAt(const SavedFields& in) {
  const auto of = [&in](const char* statistic) -> Uncertainty {
    return {in.At(statistic).At("error_ns").Number(), in.At(statistic).At("freedom").Number()};
  };
  return {of("mean"), of("p50"), of("p90"), of("p99")};
}

// All, or as many as a file holds.
std::vector<uint64_t> SamplesAt(const SavedFields& in, uint64_t count) {
  std::vector<uint64_t> samples = in.Ascending(kSavedSamplesMax);
  const uint64_t expected = std::min<uint64_t>(count, kSavedSamplesMax);
  if (samples.size() != expected) in.Refuse("is not of the " + std::to_string(expected) + " that count asks for");
  return samples;
}

SavedDistribution DistributionAt(const SavedFields& in) {
  SavedDistribution out;
  out.count = in.At("count").Count();
  out.unfinished = in.At("unfinished").Count();
  out.min_ns = in.At("min_ns").OptionalCount();
  out.max_ns = in.At("max_ns").OptionalCount();
  out.mean_ns = in.At("mean_ns").OptionalNumber();
  out.stdev_ns = in.At("stdev_ns").OptionalNumber();
  out.p50_ns = in.At("p50_ns").OptionalCount();
  out.p90_ns = in.At("p90_ns").OptionalCount();
  out.p99_ns = in.At("p99_ns").OptionalCount();
  out.p999_ns = in.At("p999_ns").OptionalCount();
  const SavedFields least = in.At("at_least_ns");
  out.at_least_ns = {least.At("p50").OptionalCount(), least.At("p90").OptionalCount(), least.At("p99").OptionalCount(),
                     least.At("p999").OptionalCount()};
  out.uncertainty = UncertaintiesAt(in.At("uncertainty"));
  out.samples_ns = SamplesAt(in.At("samples_ns"), out.count);
  out.unfinished_ns = SamplesAt(in.At("unfinished_ns"), out.unfinished);
  return out;
}

SavedPhase PhaseAt(const SavedFields& in) {
  return {in.At("name").String(), in.At("where").String(), DistributionAt(in.At("distribution")),
          in.At("share").Number(), in.At("note").String()};
}

CriticalPath CriticalPathAt(const SavedFields& in) {
  CriticalPath out;
  out.tokens = in.At("tokens").Count();
  out.token_ns = in.At("token_ns").Number();
  for (const SavedFields& part : in.At("parts").Elements()) {
    out.parts.push_back(
        {PlaceAt(part.At("place")), part.At("mean_ns").Number(), part.At("share").Number(), part.At("home").Index()});
  }
  out.residual_ns = in.At("residual_ns").Number();
  out.wire_uncertain_ns = in.At("wire_uncertain_ns").Number();
  return out;
}

Bubble BubbleAt(const SavedFields& in) {
  return {in.At("where").String(), in.At("cause").String(), in.At("total_ns").Number(), in.At("share").Number()};
}

HomeFigures HomeAt(const SavedFields& in) {
  HomeFigures out;
  out.home = in.At("home").Index();
  out.name = in.At("name").String();
  out.hops = in.At("hops").Count();
  out.last_share = in.At("last_share").Number();
  out.waited_for_ns = in.At("waited_for_ns").Number();
  out.busy_share = in.At("busy_share").Number();
  out.kv_share = in.At("kv_share").Number();
  out.gb_per_s = in.At("gb_per_s").Number();
  out.min_round_trip_ns = in.At("min_round_trip_ns").Number();
  out.clock_offset_ns = in.At("clock_offset_ns").Number();
  out.clock_drift_ppm = in.At("clock_drift_ppm").Number();
  out.clock_bound_ns = in.At("clock_bound_ns").Number();
  return out;
}

Achieved AchievedAt(const SavedFields& in) {
  return {in.At("what").String(), in.At("achieved").Number(), in.At("possible").OptionalNumber().value_or(0),
          in.At("unit").String(), in.At("possible_by").String(), in.At("note").String()};
}

TokenStory StoryAt(const SavedFields& in) {
  TokenStory out;
  out.id = in.At("id").Count();
  out.index = static_cast<uint32_t>(in.At("index").Count(UINT32_MAX));
  out.step = static_cast<uint32_t>(in.At("step").Count(UINT32_MAX));
  out.micro_batch = in.At("micro_batch").Index();
  out.start_ns = in.At("start_ns").Count();
  out.end_ns = in.At("end_ns").Count();
  for (int place = 0; place < kPlaces; ++place) {
    out.place_ns[static_cast<size_t>(place)] = in.At("place_ns").At(PlaceName(static_cast<Place>(place))).Count();
  }
  for (const SavedFields& span : in.At("longest").Elements()) {
    out.longest.push_back({PlaceAt(span.At("place")), span.At("layer").Index(), span.At("home").Index(),
                           span.At("start_ns").Count(), span.At("ns").Count()});
  }
  return out;
}

SavedRequests RequestsAt(const SavedFields& in) {
  SavedRequests out;
  out.start = in.At("start").String();
  out.requests = in.At("requests").Count();
  out.failed = in.At("failed").Count();
  out.unfinished = in.At("unfinished").Count();
  out.ttft_ns = DistributionAt(in.At("ttft"));
  out.tpot_ns = DistributionAt(in.At("tpot"));
  out.itl_ns = DistributionAt(in.At("itl"));
  out.e2e_ns = DistributionAt(in.At("e2e"));
  return out;
}

SloVerdict SloAt(const SavedFields& in) {
  return {in.At("text").String(), in.At("limit_ns").Number(), in.At("share").Number(), in.At("got_ns").OptionalNumber(),
          in.At("met").Bool(), in.At("at_least").Bool()};
}

Finding FindingAt(const SavedFields& in) {
  Finding out;
  out.phase = in.At("phase").String();
  out.home = in.At("home").Index();
  out.layer = in.At("layer").Index();
  out.kind = in.At("kind").String();
  out.amount = in.At("amount").Number();
  out.unit = in.At("unit").String();
  out.share = in.At("share").Number();
  out.period_ns = in.At("period_ns").Number();
  out.cost_ns = in.At("cost_ns").Number();
  out.line = in.At("line").String();
  return out;
}

template <typename T>
std::vector<T> EachAt(const SavedFields& in, T (*read)(const SavedFields&)) {
  std::vector<T> out;
  for (const SavedFields& element : in.Elements()) out.push_back(read(element));
  return out;
}

// Before anything else: a file of another version has other fields.
absl::Status CheckVersion(const nlohmann::json& json, const std::string& file) {
  const auto version = json.is_object() ? json.find("schema_version") : json.end();
  if (version == json.end()) {
    return absl::InvalidArgumentError(file + ": schema_version: missing; this is no result of `fastdecode latency`");
  }
  if (*version == LatencyResult::kSchemaVersion) return absl::OkStatus();
  absl::Status status;
  SavedFields(&*version, "schema_version", &file, &status)
      .Refuse("is another version than " + std::to_string(LatencyResult::kSchemaVersion) +
              ", the one that this program reads and writes: measure again");
  return absl::FailedPreconditionError(status.message());
}

// A parser's message as one of ours: cut, and in ASCII without control characters.
std::string ShownText(const std::string& message) {
  constexpr size_t kShownMax = 300;
  const std::string quoted =
      nlohmann::json(message.substr(0, kShownMax)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (message.size() > kShownMax ? "..." : "");
}

absl::Status CannotRead(const std::string& path) {
  const std::string message = path + ": cannot be read: " + std::strerror(errno);
  if (errno == ENOENT) return absl::NotFoundError(message);
  if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(message);
  return absl::InvalidArgumentError(message);
}

}  // namespace

const SavedPhase* SavedResult::FindPhase(const std::string& name, const std::string& where) const {
  for (const SavedPhase& phase : phases) {
    if (phase.name == name && phase.where == where) return &phase;
  }
  return nullptr;
}

absl::StatusOr<SavedResult> FromJson(const nlohmann::json& json, const std::string& file) {
  absl::Status status = CheckVersion(json, file);
  if (!status.ok()) return status;
  const SavedFields in(&json, "", &file, &status);
  SavedResult out;
  out.command = in.At("command").String();
  out.provenance = in.At("provenance").value();
  out.engine = in.At("engine").value();
  out.recording_cost = in.At("recording_cost").value();
  const SavedFields recording = in.At("recording");
  out.start_ns = recording.At("start_ns").Count();
  out.end_ns = recording.At("end_ns").Count();
  out.events = recording.At("events").Count();
  out.lost_events = recording.At("lost_events").Count();
  out.steps = recording.At("steps").Count();
  out.tokens = recording.At("tokens").Count();
  out.phases = EachAt(in.At("phases"), PhaseAt);
  out.critical_path = CriticalPathAt(in.At("critical_path"));
  const SavedFields busy = in.At("busy");
  out.s_busy = busy.At("s_busy").Number();
  out.r_busy = busy.At("r_busy").Number();
  out.overlap = busy.At("overlap").Number();
  out.bubbles = EachAt(in.At("bubbles"), BubbleAt);
  out.homes = EachAt(in.At("homes"), HomeAt);
  out.achieved = EachAt(in.At("achieved"), AchievedAt);
  out.worst = EachAt(in.At("worst"), StoryAt);
  out.requests = EachAt(in.At("requests"), RequestsAt);
  out.slo = EachAt(in.At("slo"), SloAt);
  out.findings = EachAt(in.At("findings"), FindingAt);
  out.interrupted = in.At("interrupted").Bool();
  for (const SavedFields& warning : in.At("warnings").Elements()) out.warnings.push_back(warning.String());
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<SavedResult> ReadSavedResult(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(path + ": is not a regular file");
  }
  if (const uintmax_t bytes = std::filesystem::file_size(path, error); !error && bytes > kFileBytesMax) {
    return absl::InvalidArgumentError(path + ": has " + std::to_string(bytes) + " bytes, more than the " +
                                      std::to_string(kFileBytesMax) + " of any saved result");
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in) return CannotRead(path);
  text << in.rdbuf();
  if (in.bad()) return CannotRead(path);
  try {
    return FromJson(nlohmann::json::parse(text.str()), path);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...", or of a number without a place. It
    // quotes what was read last, be it the whole file.
    const std::string what = error.what();
    const size_t at = what.find("at line");
    const std::string shown = ShownText(at == std::string::npos ? what : what.substr(at));
    return absl::InvalidArgumentError(path + ": is not JSON: " + shown);
  }
}

}  // namespace fastdecode
