#include "engine/schedule/calibration.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

constexpr int kFormat = 2;

// Every field of an engine with its name.
template <class Engine, class Each>
void ForEachField(Engine& engine, Each&& each) {
  each("layers", engine.layers);
  each("hidden", engine.hidden);
  each("intermediate", engine.intermediate);
  each("heads", engine.heads);
  each("kv_heads", engine.kv_heads);
  each("head_dim", engine.head_dim);
  each("vocab", engine.vocab);
  each("compute", engine.compute);
  each("kv_type", engine.kv_type);
  each("isa", engine.isa);
  each("core_plan", engine.core_plan);
  each("home_kinds", engine.home_kinds);
}

// The costs that are one number each.
template <class Costs, class Each>
void ForEachCost(Costs& costs, Each&& each) {
  each("boundary_us", costs.boundary_us);
  each("boundary_row_us", costs.boundary_row_us);
  each("hop_us", costs.hop_us);
  each("hop_row_us", costs.hop_row_us);
  each("s_slowed", costs.s_slowed);
  each("r_slowed", costs.r_slowed);
}

nlohmann::json ToJson(const CostCurve& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (size_t i = 0; i < curve.count; ++i) points.push_back({curve.size[i], curve.us[i]});
  return points;
}

// Reads fields of a file, and says where it is wrong.
class FieldReader {
 public:
  FieldReader(const std::string& path, const nlohmann::json& json) : path_(path), json_(json) {}

  template <class Number>
  requires std::is_integral_v<Number>
  void Read(const char* name, Number& out) {
    const nlohmann::json* const field = Find(json_, name);
    if (field == nullptr) return;
    if (!field->is_number_integer()) return Fail(name, *field, "a whole number");
    out = field->get<Number>();
  }
  void Read(const char* name, std::string& out) {
    const nlohmann::json* const field = Find(json_, name);
    if (field == nullptr) return;
    if (!field->is_string()) return Fail(name, *field, "a text");
    out = field->get<std::string>();
  }
  // A time or a factor.
  void Read(const char* name, double& out) { ReadNumber(json_, name, out); }
  void Read(const char* name, CostCurve& out) {
    const nlohmann::json* const field = Find(json_, name);
    if (field == nullptr) return;
    constexpr const char* kWanted = "up to 16 pairs of rows and microseconds, with growing rows";
    if (!field->is_array() || field->empty() || field->size() > CostCurve::kPointsMax)
      return Fail(name, *field, kWanted);
    for (const nlohmann::json& point : *field) {
      const bool is_pair = point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number();
      if (!is_pair || !(point[1].get<double>() >= 0)) return Fail(name, point, kWanted);
      if (out.count > 0 && !(point[0].get<double>() > out.size[out.count - 1])) return Fail(name, point, kWanted);
      out.Add(point[0].get<double>(), point[1].get<double>());
    }
  }
  int ReadHomes(StepCosts& costs) {
    const nlohmann::json* const field = Find(json_, "homes");
    if (field == nullptr) return 0;
    if (!field->is_array() || field->empty() || field->size() > kHomesOfModelMax) {
      Fail("homes", *field, absl::StrFormat("a list of 1 to %d homes", kHomesOfModelMax).c_str());
      return 0;
    }
    for (size_t h = 0; h < field->size(); ++h) {
      const nlohmann::json& home = (*field)[h];
      HomeCosts& to = costs.homes[h];
      ReadNumber(home, "hop_us", to.hop_us);
      ReadNumber(home, "sequence_us", to.sequence_us);
      ReadNumber(home, "token_us", to.token_us);
      ReadNumber(home, "pair_us", to.pair_us);
      ReadNumber(home, "tokens_max", to.tokens_max);
      const nlohmann::json* const near = Find(home, "near");
      if (near == nullptr) return 0;
      if (!near->is_boolean()) Fail("near", *near, "true or false");
      to.near = near->is_boolean() && near->get<bool>();
    }
    for (size_t h = field->size(); h < kHomesOfModelMax; ++h) costs.homes[h] = costs.homes[field->size() - 1];
    return static_cast<int>(field->size());
  }

  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const nlohmann::json& in, const char* name) {
    if (in.is_object() && in.contains(name)) return &in[name];
    Note(absl::StrFormat("%s: no field '%s'", path_, name));
    return nullptr;
  }
  void ReadNumber(const nlohmann::json& in, const char* name, double& out) {
    const nlohmann::json* const field = Find(in, name);
    if (field == nullptr) return;
    if (!field->is_number() || !(field->get<double>() >= 0) || !std::isfinite(field->get<double>())) {
      return Fail(name, *field, "a number that is not negative");
    }
    out = field->get<double>();
  }
  void Fail(const char* name, const nlohmann::json& value, const char* wanted) {
    const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 60);
    Note(absl::StrFormat("%s: %s: %s is not %s", path_, name, text, wanted));
  }
  void Note(const std::string& fault) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(fault + "; 'fastdecode calibrate' writes such files");
  }

  const std::string& path_;
  const nlohmann::json& json_;
  absl::Status status_;
};

}  // namespace

CalibratedEngine ReadCalibratedEngine(const nlohmann::json& description) {
  CalibratedEngine engine;
  ForEachField(engine, [&](const char* name, auto& field) { description.at(name).get_to(field); });
  return engine;
}

nlohmann::json ToJson(const Calibration& calibration) {
  nlohmann::json json = {{"calibration", kFormat},
                         {"fastdecode", calibration.version},
                         {"machine", calibration.machine},
                         {"time", calibration.time_s}};
  ForEachField(calibration.engine, [&](const char* name, const auto& field) { json["engine"][name] = field; });
  nlohmann::json& costs = json["costs"];
  costs["stage"] = ToJson(calibration.costs.stage);
  costs["head"] = ToJson(calibration.costs.head);
  ForEachCost(calibration.costs, [&](const char* name, double cost) { costs[name] = cost; });
  for (int h = 0; h < calibration.homes; ++h) {
    const HomeCosts& home = calibration.costs.homes[static_cast<size_t>(h)];
    costs["homes"].push_back({{"hop_us", home.hop_us},
                              {"sequence_us", home.sequence_us},
                              {"token_us", home.token_us},
                              {"pair_us", home.pair_us},
                              {"tokens_max", home.tokens_max},
                              {"near", home.near}});
  }
  return json;
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& option, const std::string& path) {
  const std::string where = absl::StrCat(option, ": ", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(where + ": cannot be read");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("calibration")) {
    return absl::InvalidArgumentError(where + ": no calibration; 'fastdecode calibrate' writes such files");
  }
  if (json["calibration"] != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: calibration: format %s, this program reads %d; calibrate again", where,
                        json["calibration"].dump(), kFormat));
  }
  Calibration calibration;
  const nlohmann::json nothing;
  FieldReader engine(where, json.contains("engine") ? json["engine"] : nothing);
  ForEachField(calibration.engine, [&](const char* name, auto& field) { engine.Read(name, field); });
  if (!engine.status().ok()) return engine.status();
  FieldReader costs(where, json.contains("costs") ? json["costs"] : nothing);
  costs.Read("stage", calibration.costs.stage);
  costs.Read("head", calibration.costs.head);
  ForEachCost(calibration.costs, [&](const char* name, double& cost) { costs.Read(name, cost); });
  calibration.homes = costs.ReadHomes(calibration.costs);
  if (!costs.status().ok()) return costs.status();
  calibration.costs.layers = calibration.engine.layers;
  FieldReader rest(where, json);
  rest.Read("fastdecode", calibration.version);
  rest.Read("machine", calibration.machine);
  rest.Read("time", calibration.time_s);
  if (!rest.status().ok()) return rest.status();
  return calibration;
}

absl::Status CheckCalibration(const std::string& option, const std::string& path, const Calibration& calibration,
                              const CalibratedEngine& engine) {
  std::vector<std::pair<const char*, std::string>> there;
  ForEachField(calibration.engine,
               [&](const char* name, const auto& field) { there.emplace_back(name, absl::StrCat(field)); });
  size_t i = 0;
  absl::Status status;
  ForEachField(engine, [&](const char* name, const auto& field) {
    const std::string& measured = there[i++].second;
    if (!status.ok() || measured == absl::StrCat(field)) return;
    status = absl::InvalidArgumentError(
        absl::StrFormat("%s: %s: %s: measured with %s, this engine has %s; calibrate with the engine's options", option,
                        path, name, measured, absl::StrCat(field)));
  });
  return status;
}

}  // namespace fastdecode
